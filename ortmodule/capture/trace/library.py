"""Operators of the `ortmodule` torch namespace that a trace needs, with their shape rules.

`python_op` stands for a user's `autograd.Function` (function_call.py). `with_value_` is a write under no_grad: the
tensor takes the value, and its gradient passes as if nothing had happened, as in torch. `lstm`, `gru`, `rnn_tanh` and
`rnn_relu` stand for torch's recurrent layers: torch's own shape rules unroll over time and so fix the length of the
sequence; these do not. The recurrent ones exist only while tracing: the converter writes the `aten` operators they
stand for.

Who puts these operators into a trace is in patches/ and in rewrite/; this file knows no patch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch

from ...errors import CaptureError
from .function_call import call_of
from .tracing import current_trace

__all__: list[str] = []

LIBRARY = torch.library.Library("ortmodule", "FRAGMENT")  # noqa: TOR901
LIBRARY.define("python_op(Tensor[] xs, int fid, SymInt[] sizes=[]) -> Tensor[]")
LIBRARY.define("with_value(Tensor self, Tensor value) -> Tensor")
LIBRARY.define("with_value_(Tensor(a!) self, Tensor value) -> Tensor(a!)")
_RECURRENT = "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional"
LIBRARY.define(
    f"lstm(Tensor input, Tensor[] hx, {_RECURRENT}, bool batch_first) -> (Tensor, Tensor, Tensor)",
)
for _name in ("gru", "rnn_tanh", "rnn_relu"):
    LIBRARY.define(f"{_name}(Tensor input, Tensor hx, {_RECURRENT}, bool batch_first) -> (Tensor, Tensor)")


@torch.library.register_fake("ortmodule::python_op", lib=LIBRARY)
def _python_op_shapes(xs: list[torch.Tensor], fid: int, sizes: Sequence[int] = ()) -> list[torch.Tensor]:
    call = call_of(fid)
    assert call is not None
    state = current_trace()
    with contextlib.nullcontext() if state is None else state.user_code():
        return call.infer(xs, sizes)


def _python_op_run(xs: list[torch.Tensor], fid: int, sizes: Sequence[int] = ()) -> list[torch.Tensor]:
    call = call_of(fid)
    if call is None:
        raise CaptureError(f"the autograd.Function call {fid} belongs to a capture that is gone")
    return call.run(xs, sizes)


def _python_op_autograd(xs: list[torch.Tensor], fid: int, sizes: Sequence[int] = ()) -> list[torch.Tensor]:
    if current_trace() is None:
        return _python_op_run(xs, fid, sizes)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.ortmodule.python_op(xs, fid, sizes)


LIBRARY.impl("python_op", _python_op_run, "CompositeExplicitAutograd")
LIBRARY.impl("python_op", _python_op_autograd, "Autograd")


@torch.library.register_fake("ortmodule::lstm", lib=LIBRARY)
def _lstm_shapes(
    input: torch.Tensor, hx: list[torch.Tensor], params: list[torch.Tensor], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    width = hx[0].shape[-1] * (2 if bidirectional else 1)
    return input.new_empty((*input.shape[:-1], width)), torch.empty_like(hx[0]), torch.empty_like(hx[1])


def _rnn_shapes(
    input: torch.Tensor, hx: torch.Tensor, params: list[torch.Tensor], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    width = hx.shape[-1] * (2 if bidirectional else 1)
    return input.new_empty((*input.shape[:-1], width)), torch.empty_like(hx)


for _name in ("gru", "rnn_tanh", "rnn_relu"):
    torch.library.register_fake(f"ortmodule::{_name}", _rnn_shapes, lib=LIBRARY)
