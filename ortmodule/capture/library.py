"""Operators of the `ortmodule` torch namespace that a trace needs, with their shape rules.

`python_op` stands for a user's `autograd.Function`: opaque while the module is traced, `cls.apply` when it is executed,
so that autograd uses the user's own backward. `lstm`, `gru`, `rnn_tanh` and `rnn_relu` stand for torch's recurrent
layers: torch's own shape rules unroll over time and so fix the length of the sequence; these do not. They exist only
while tracing, and the converter writes them as the `aten` operators they stand for.

Who puts these operators into a trace is in `compat.py`; this file knows no patch.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..errors import CaptureError

__all__ = ["FunctionCall", "call_function_class", "tracing"]

LIBRARY = torch.library.Library("ortmodule", "FRAGMENT")  # noqa: TOR901
LIBRARY.define("python_op(Tensor[] xs, int fid, SymInt[] sizes=[]) -> Tensor[]")
_RECURRENT = "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional"
LIBRARY.define(
    f"lstm(Tensor input, Tensor[] hx, {_RECURRENT}, bool batch_first) -> (Tensor, Tensor, Tensor)",
)
for _name in ("gru", "rnn_tanh", "rnn_relu"):
    LIBRARY.define(f"{_name}(Tensor input, Tensor hx, {_RECURRENT}, bool batch_first) -> (Tensor, Tensor)")

_fids = itertools.count()
_calls: weakref.WeakValueDictionary[int, FunctionCall] = weakref.WeakValueDictionary()


class _Tracing(threading.local):
    """What the capture running on this thread collects; `calls` is None outside a capture."""

    calls: list[FunctionCall] | None = None


tracing = _Tracing()


class _Slot:
    """Marks, among the flat arguments of a call, the place of a tensor or of a symbolic size."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


_TENSOR, _SIZE = _Slot("tensor"), _Slot("size")


class _ShapeContext:
    """The `ctx` given to a user's forward when only the shapes of its results are wanted."""

    def __init__(self, arguments: int) -> None:
        self.needs_input_grad = (True,) * arguments

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        pass

    def mark_non_differentiable(self, *tensors: Any) -> None:
        pass

    def set_materialize_grads(self, value: bool) -> None:
        pass

    def mark_dirty(self, *tensors: Any) -> None:
        raise CaptureError("a custom autograd.Function that changes its input in place (mark_dirty) cannot be captured")


class FunctionCall:
    """One traced call of a custom `autograd.Function`: the class and its arguments that are not tensors.

    `fid` names it in the graph. The registry holds it weakly, so it lives as long as the capture that owns it.
    """

    def __init__(self, cls: type[torch.autograd.Function], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        leaves, self._spec = pytree.tree_flatten((args, kwargs))
        self.cls = cls
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self.sizes = [leaf for leaf in leaves if isinstance(leaf, torch.SymInt)]
        self._leaves = [
            _TENSOR if isinstance(leaf, torch.Tensor) else _SIZE if isinstance(leaf, torch.SymInt) else leaf
            for leaf in leaves
        ]
        self._results: list[Any] = []
        self._results_spec: pytree.TreeSpec | None = None
        self.fid = next(_fids)
        _calls[self.fid] = self

    def arguments(self, xs: Sequence[torch.Tensor], sizes: Sequence[int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The `(args, kwargs)` of `cls.apply` for these tensors and sizes."""
        x, s = iter(xs), iter(sizes)
        leaves = [next(x) if leaf is _TENSOR else next(s) if leaf is _SIZE else leaf for leaf in self._leaves]
        return pytree.tree_unflatten(leaves, self._spec)

    def infer(self, xs: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        """Runs the user's forward on fake tensors and keeps the structure of what it returns."""
        args, kwargs = self.arguments(xs, sizes)
        if self.cls.setup_context is torch.autograd.Function.setup_context:
            results = self.cls.forward(_ShapeContext(len(args)), *args, **kwargs)
        else:
            results = self.cls.forward(*args, **kwargs)
        leaves, self._results_spec = pytree.tree_flatten(results)
        self._results = [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        return [torch.empty_like(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def restore(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The value that `cls.apply` returned, with these tensors in it."""
        assert self._results_spec is not None
        t = iter(tensors)
        return pytree.tree_unflatten(
            [next(t) if leaf is _TENSOR else leaf for leaf in self._results], self._results_spec
        )

    def run(self, xs: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        """Executes the call with real tensors; under grad mode the user's backward is recorded."""
        args, kwargs = self.arguments(xs, sizes)
        return [leaf for leaf in pytree.tree_leaves(self.cls.apply(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]


def call_function_class(cls: type[torch.autograd.Function], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Records one call of a custom Function in the running trace as a single opaque `ortmodule::python_op`."""
    assert tracing.calls is not None
    call = FunctionCall(cls, args, kwargs)
    tracing.calls.append(call)
    return call.restore(torch.ops.ortmodule.python_op(call.tensors, call.fid, call.sizes))


@torch.library.register_fake("ortmodule::python_op", lib=LIBRARY)
def _python_op_shapes(xs: list[torch.Tensor], fid: int, sizes: Sequence[int] = ()) -> list[torch.Tensor]:
    return _calls[fid].infer(xs, sizes)


def _python_op_run(xs: list[torch.Tensor], fid: int, sizes: Sequence[int] = ()) -> list[torch.Tensor]:
    call = _calls.get(fid)
    if call is None:
        raise CaptureError(f"the autograd.Function call {fid} belongs to a capture that is gone")
    return call.run(xs, sizes)


def _python_op_autograd(xs: list[torch.Tensor], fid: int, sizes: Sequence[int] = ()) -> list[torch.Tensor]:
    if tracing.calls is None:
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
