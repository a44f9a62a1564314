"""The one owner of "must we export again?".

A call's signature says which graph it needs; the manager finds that graph among those it keeps, or redoes exactly the
step that is missing: re-export, new session. Every transition has a reason that a person can read.
"""

from __future__ import annotations

from .info import FLOATING, NoLossError, PostExportProcessedModelInfo
from .manager import GraphTransitionManager
from .signature import CallSignature

__all__ = [
    "FLOATING",
    "CallSignature",
    "GraphTransitionManager",
    "NoLossError",
    "PostExportProcessedModelInfo",
]
