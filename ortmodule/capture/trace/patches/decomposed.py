"""Operators of aten that a trace takes apart, into those that torch itself runs for them.

A trace keeps what torch composes of other operators whole, so that a translator sees `linear` and not its parts. Those
listed here have no translator: their parts have one, and the parts are what eager runs and differentiates. Listed are
those whose composition keeps sizes symbolic and looks at no element.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.fx.experimental import proxy_tensor

from ..patching import Patch
from ..tracing import TraceState

__all__ = ["PATCHES"]

_NAMES = """
alpha_dropout alpha_dropout_ atleast_1d atleast_2d atleast_3d cartesian_prod column_stack cosine_embedding_loss
cumulative_trapezoid dstack feature_alpha_dropout feature_alpha_dropout_ feature_dropout feature_dropout_ float_power
frobenius_norm ger gru_cell hinge_embedding_loss hstack inner isclose linalg_matrix_norm linalg_norm lstm_cell
margin_ranking_loss meshgrid nanmean one_hot outer pairwise_distance poisson_nll_loss rnn_relu_cell rnn_tanh_cell
tensordot tile trapezoid triplet_margin_loss vstack
"""


@functools.cache
def _listed() -> frozenset[Any]:
    packets = [getattr(torch.ops.aten, name) for name in _NAMES.split()]
    return frozenset(getattr(packet, overload) for packet in packets for overload in packet.overloads())


@functools.cache
def _known_to_autocast(operator: Any, device: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), f"Autocast{device.upper()}")


def _is_dropping_nothing(operator: Any, args: Any) -> bool:
    """Whether it is a dropout that gives its argument itself, of which torch's rule for traces makes a copy."""
    return operator is torch.ops.aten.dropout.default and len(args) == 3 and (args[1] == 0 or args[2] is False)


def _is_taken_apart(operator: Any) -> bool:
    """Whether a trace shall see the operator's parts: not where autocast casts its operands as a whole."""
    if operator not in _listed():
        return False
    return not any(torch.is_autocast_enabled(d) and _known_to_autocast(operator, d) for d in ("cpu", "cuda"))


def _taken_apart(original: Any, state: TraceState) -> Any:
    def handle(mode: Any, operator: Any, args: Any, kwargs: Any) -> Any:
        if _is_dropping_nothing(operator, args):
            return args[0]
        if not _is_taken_apart(operator):
            return original(mode, operator, args, kwargs)
        with mode:
            return operator.decompose(*args, **kwargs)

    return handle


PATCHES = (Patch(proxy_tensor, "maybe_handle_decomp", _taken_apart),)
