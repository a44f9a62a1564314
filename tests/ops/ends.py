"""The ends of the floating types in every operator's samples: what numbers are planted, where, and how results compare.

They are made from every row's samples, so that no row has to list them: a sample grows to lengths around the widths of
vectors and takes infinities, NaN, signed zeros, denormals and the smallest and largest numbers in every lane. What the
tests of it are is in test_ends.py.

PyTorch has more than one value at some ends: its loops over vectors, its loops over what is not contiguous and oneDNN
follow different formulas, and 16-bit numbers overflow between two operators that we compute in float. Each of these
values is right (`wanted`); a class that none of them has is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from ortmodule.testing.op_tester import other_strides

from .table import Case

Tensors = list[torch.Tensor]

# Below, at and above vectors of 8, 16 and 32 elements, and of the loops that take four vectors of 16 at once.
LENGTHS = (1, 7, 8, 9, 15, 16, 17, 33, 65)
HEIGHT = 25
WIDER = {torch.float32: torch.float64, torch.float16: torch.float32, torch.bfloat16: torch.float32}


def ends(dtype: torch.dtype) -> torch.Tensor:
    info = torch.finfo(dtype)
    denormal = info.smallest_normal * info.eps
    exponent = math.log(info.max)
    sizes = [0.0, math.inf, info.max, info.smallest_normal, denormal, info.eps, 1.0, math.sqrt(info.max) / 2, exponent,
             exponent + 1, 6.0, 20.0]  # fmt: skip
    signed = [number for size in sizes for number in (size, -size)]
    return torch.tensor([*signed, math.nan], dtype=torch.float64).to(dtype)


def stretched(value: torch.Tensor | None, old: int, new: int) -> torch.Tensor | None:
    """Each axis of size `old` has size `new`: its numbers again and again."""
    if value is None:
        return None
    for axis, size in enumerate(value.shape):
        if size == old:
            value = value.index_select(axis, torch.arange(new) % old)
    return value


def longer(case: Case, length: int) -> Case | None:
    """The sample with the last axis of its largest operand at `length`, and its first one at HEIGHT, wherever those
    sizes occur; None where it has no such axis."""
    floating = [v for v in case.inputs if v is not None and v.is_floating_point() and v.dim()]
    largest = max(floating, key=torch.Tensor.numel, default=None)
    if largest is None or largest.numel() == 0:
        return None
    old, rows = largest.shape[-1], largest.shape[0]
    inputs = [v if i in case.constants else stretched(v, old, length) for i, v in enumerate(case.inputs)]
    if largest.dim() > 1 and rows not in (old, length):
        inputs = [v if i in case.constants else stretched(v, rows, HEIGHT) for i, v in enumerate(inputs)]
    return replace(case, inputs=tuple(inputs))


def everywhere(value: torch.Tensor, slow: bool) -> torch.Tensor:
    """Nothing but ends, the next one in each element; with `slow` one more every HEIGHT elements, so that two operands
    make all pairs."""
    numbers = ends(value.dtype)
    count = torch.arange(value.numel())
    return numbers[(count // HEIGHT + count if slow else count) % HEIGHT].view(value.shape)


def planted(value: torch.Tensor, slow: bool) -> torch.Tensor:
    """One end in each slice of the first axis, at another place in each."""
    out = value.clone()
    rows = out.view(value.shape[0] if value.dim() > 1 else 1, -1)
    r = torch.arange(len(rows))
    rows[r, (r * 5 + slow) % rows.shape[1]] = ends(value.dtype)[(r + slow) % HEIGHT]
    return out


def constant(value: torch.Tensor, slow: bool) -> torch.Tensor:
    """Each row of the last axis is one end."""
    rows = value.numel() // (value.shape[-1] if value.dim() else 1)
    column = ends(value.dtype)[(torch.arange(rows) + slow) % HEIGHT]
    return column[:, None].expand(rows, value.numel() // rows).reshape(value.shape).contiguous()


def fed(case: Case, fill: Callable[[torch.Tensor, bool], torch.Tensor]) -> Iterator[Case]:
    """The sample with ends in each floating operand by itself, then in all at once."""
    which = [i for i, v in enumerate(case.inputs) if v is not None and v.is_floating_point() and v.numel()]
    which = [i for i in which if i not in case.constants]
    for group in [*([i] for i in which), *([which] if len(which) > 1 else [])]:
        yield replace(case, inputs=tuple(
            fill(v, i != group[0]) if v is not None and i in group else v for i, v in enumerate(case.inputs)
        ))  # fmt: skip


def wanted(reference: Callable[[list[Any]], Tensors], inputs: list[Any]) -> list[Tensors]:
    """What `reference` may give: for the operands as they are, with other strides, and in a wider type, rounded."""

    def moved(change: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
        return [change(v) if v is not None and v.is_floating_point() else v for v in inputs]

    own = reference(inputs)
    out = [own, reference(moved(other_strides))]
    try:
        wide = reference(moved(lambda v: v.to(WIDER.get(v.dtype, v.dtype))))
    except RuntimeError:  # an attribute or a constant fixes the type
        return out
    rounded = [w.to(y.dtype) for w, y in zip(wide, own, strict=True)]
    half = any(v is not None and v.dtype in (torch.float16, torch.bfloat16) for v in inputs)
    if half:
        return [*out, rounded]
    # In float32 the wider type says only what an overflow within a formula hides: a number where there is an infinity
    # or none, an infinity where there is no number (GELU of inf, by oneDNN's formula for some processors).
    hidden = [(~y.isfinite() & w.isfinite()) | (y.isnan() & ~w.isnan()) for w, y in zip(rounded, own, strict=True)]
    return [*out, [torch.where(h, w, y) for h, w, y in zip(hidden, rounded, own, strict=True)]]


def seeds_of(outputs: Iterable[torch.Tensor]) -> Tensors:
    """Gradients of the outputs: fixed numbers of both signs that every type has."""
    generator = torch.Generator().manual_seed(7)
    return [(torch.randint(-19, 45, y.shape, generator=generator) / 64).to(y.dtype) for y in outputs]


def differs(got: torch.Tensor, want: torch.Tensor, tolerance: float, zeros: bool) -> torch.Tensor:
    """Where two results differ by class (NaN, an infinity, with `zeros` the sign of a zero) or by more than the
    tolerance, relative to the larger of 1 and the number."""
    if not want.is_floating_point():
        return got != want
    got, want = got.double(), want.double()
    same = (got == want) | (got.isnan() & want.isnan())
    near = ((got - want).abs() <= tolerance * want.abs().clamp(min=1.0)) & want.isfinite()
    bad = ~(same | near)
    return bad | ((got == 0) & (want == 0) & (got.signbit() != want.signbit())) if zeros else bad


def mismatch(got: torch.Tensor, wants: Tensors, tolerance: float, zeros: bool = False) -> str | None:
    """Says where `got` is none of `wants`."""
    assert got.dtype == wants[0].dtype and got.shape == wants[0].shape, f"{got.dtype} {tuple(got.shape)}"
    bad = torch.stack([differs(got, want, tolerance, zeros) for want in wants]).all(0)
    places = [tuple(int(k) for k in at) for at in bad.nonzero()]
    shown = [f"{at}: {got[at].item():.7g}, not {' or '.join(f'{w[at].item():.7g}' for w in wants)}" for at in places]
    return f"{len(places)} elements, {'; '.join(shown[:4])}" if places else None
