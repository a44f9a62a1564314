"""What an operator gives of one contiguous tensor with symbolic sizes: another of the same sizes and type.

With numbers for sizes, torch asks its C++ for a result's shape; with symbols it runs a decomposition in Python, whose
operators are decomposed in turn: a `cumsum` is a sum over a masked matrix. Where the result is plain it is made at
once. Arguments that are not plain go to torch, which says what is wrong with them.

Not here: shapes that torch has no rule for (../shape_probes.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import is_contiguous_or_false
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ...patching import Patch
from ...tracing import TraceState

__all__ = ["PATCHES"]

_ATEN = torch.ops.aten
_ALONE = (
    "abs", "clone", "cos", "erf", "exp", "log", "neg", "reciprocal", "relu", "rsqrt", "sigmoid", "silu", "sin", "sqrt",
    "tanh",
)  # fmt: skip


def _is_plain(x: Any) -> bool:
    return (
        type(x) is FakeTensor
        and x._has_symbolic_sizes_strides
        and x.is_floating_point()
        and x.layout is torch.strided
        and x.constant is None
        and is_contiguous_or_false(x)
    )


def _fits(small: Any, x: FakeTensor) -> bool:
    """Whether `small` is contiguous, on the device of `x`, and broadcast over it leaves the sizes as they are."""
    return (
        type(small) is FakeTensor
        and small.device == x.device
        and small.dim() <= x.dim()
        and is_contiguous_or_false(small)
        and all(
            (isinstance(m, int) and m == 1) or m is s or statically_known_true(m == s)
            for m, s in zip(reversed(small.shape), reversed(x.shape), strict=False)
        )
    )


def _along(x: FakeTensor, axis: Any, *rest: Any) -> FakeTensor | None:
    return x if isinstance(axis, int) and -x.dim() <= axis < x.dim() and not any(rest) else None


def _matrix(x: FakeTensor, diagonal: Any = 0) -> FakeTensor | None:
    return x if isinstance(diagonal, int) and x.dim() >= 2 else None


def _power(x: FakeTensor, exponent: Any) -> FakeTensor | None:
    return x if type(exponent) in (int, float) else None


def _filled(x: FakeTensor, mask: Any, value: Any) -> FakeTensor | None:
    return x if type(value) in (int, float) and mask.dtype == torch.bool and _fits(mask, x) else None


def _chosen(condition: FakeTensor, x: Any, y: Any) -> FakeTensor | None:
    if condition.dtype != torch.bool or x.dtype != y.dtype:
        return None
    pairs = ((x, y), (y, x))
    return next((a for a, b in pairs if _fits(b, a) and _fits(condition, a)), None)


# By operator: the argument whose sizes and type the result has, None where it is not plain.
_RULES: dict[Any, Callable[..., FakeTensor | None]] = {
    **{getattr(_ATEN, name).default: lambda x: x for name in _ALONE},
    _ATEN.pow.Tensor_Scalar: _power,
    _ATEN.cumsum.default: _along,
    _ATEN._softmax.default: _along,
    _ATEN.tril.default: _matrix,
    _ATEN.triu.default: _matrix,
    _ATEN.masked_fill.Scalar: _filled,
    _ATEN.where.self: _chosen,
}


def _made_at_once(original: Any, state: TraceState) -> Any:
    def dispatch(mode: Any, operator: Any, types: Any, args: Any, kwargs: Any) -> Any:
        rule = _RULES.get(operator)
        try:
            x = rule(*args) if rule is not None and not kwargs else None
        except TypeError:  # more arguments, or fewer
            x = None
        if x is None or not _is_plain(x):
            return original(mode, operator, types, args, kwargs)
        with in_kernel_invocation_manager(mode):
            made = torch.empty(x.shape, dtype=x.dtype, device="meta")
        return FakeTensor(mode, made, x.device)

    return dispatch


PATCHES = (Patch(FakeTensorMode, "_dispatch_impl", _made_at_once, when=lambda state: state.symbolic),)
