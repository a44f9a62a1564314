"""What goes wrong between ranks. Each is an ORTModuleError; every rank that is alive raises the same text.

Not here: errors of one process alone (ortmodule.errors).
"""

from __future__ import annotations

from ortmodule.errors import ORTModuleError

__all__ = ["CheckpointError", "DistributedError", "LostRankError", "RankDisagreementError"]


class DistributedError(ORTModuleError):
    """Ranks cannot go on together."""


class RankDisagreementError(DistributedError):
    """Ranks would do different things: their parameters, options or graphs differ."""


class LostRankError(DistributedError):
    """A rank did not come to where the others wait: it is slow, hangs or is gone."""


class CheckpointError(DistributedError):
    """A checkpoint is not whole, or not of this model."""
