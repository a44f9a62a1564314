"""What two runs of a program observed, side by side."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from .observing import Table

__all__ = ["CRASH", "RIGHT", "SILENT", "TOGETHER", "VERDICTS", "Observation", "Outcome", "compare"]

RIGHT, SILENT, ERROR, OTHER_ERROR = "right", "silently wrong", "error", "other error"
NO_ERROR, CRASH = "no error", "crash"
# Right alone, but not after other programs in the same process.
TOGETHER = "only after others"
VERDICTS = (RIGHT, SILENT, ERROR, OTHER_ERROR, NO_ERROR, CRASH, TOGETHER)


@dataclasses.dataclass
class Observation:
    """One step of a schedule: what it showed, the error that it raised, whether the engine ran in it.

    Attributes:
        error: the name of its class.
        caught_as: the names of the classes as which a program catches it.
        rounded: whether autocast was on, now or before: where a weight is used twice, eager adds its gradients up in
            the short type, the engine in floats.
    """

    what: str
    table: Table
    error: str | None = None
    caught_as: frozenset[str] = frozenset()
    message: str = ""
    engine: bool | None = None
    rounded: bool = False


@dataclasses.dataclass
class Outcome:
    """How a wrapper did: the verdict, the step and what differed there; whether the engine ran before and after."""

    verdict: str
    step: int = -1
    text: str = ""
    before: bool = False
    after: bool = False


def compare(wanted: list[Observation], got: list[Observation]) -> Outcome:
    """The verdict of the first step that differs. An error is the same where what catches eager's catches it."""
    for i, (a, b) in enumerate(zip(wanted, got)):
        if a.error != b.error and a.error not in b.caught_as:
            if a.error is None:
                return Outcome(ERROR, i, f"{b.error}: {b.message}")
            if b.error is None:
                return Outcome(NO_ERROR, i, f"eager raises {a.error}: {a.message}")
            return Outcome(OTHER_ERROR, i, f"{b.error}: {b.message}, eager {a.error}: {a.message}")
        text = difference(a.table, b.table, a.rounded)
        if text:
            return Outcome(SILENT, i, text)
    if len(wanted) != len(got):
        return Outcome(CRASH, len(got), "the run ended early")
    return Outcome(RIGHT)


def difference(wanted: Table, got: Table, rounded: bool = False) -> str:
    """The first paths that differ, in words; empty if none does."""
    found = []
    for path in [*wanted, *(p for p in got if p not in wanted)]:
        if path not in got or path not in wanted:
            found.append(f"{path}: {'only in eager' if path in wanted else 'not in eager'}")
        elif not _same(wanted[path], got[path], rounded):
            found.append(f"{path}: {_short(got[path])} instead of {_short(wanted[path])}")
    return "; ".join(found[:3])


def _same(a: Any, b: Any, rounded: bool) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        if a[2:] != b[2:] or a[1].dtype != b[1].dtype or a[1].shape != b[1].shape:
            return False
        return _close(a[1], b[1], rounded)
    return type(a) is type(b) and a == b


def _close(a: torch.Tensor, b: torch.Tensor, rounded: bool) -> bool:
    """Whether values are as close as another order of sums leaves them, by the size of the whole tensor.

    One rounding of a tanh near 1 is the whole of its derivative there: 6e-8, behind the largest factors of the programs
    (a few hundred) 3e-5. Gradients that are added up in bfloat16 are off by several of its steps of 1/256.
    """
    if a.is_meta or b.is_meta:
        return a.is_meta == b.is_meta
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    short = rounded or a.dtype in (torch.float16, torch.bfloat16)
    finite = a[a.isfinite()].abs()
    scale = max(1.0, float(finite.max())) if finite.numel() else 1.0
    return torch.allclose(
        a.to(torch.complex128),
        b.to(torch.complex128),
        1e-2 if short else 1e-4,
        (2e-2 if rounded else 2e-3 if short else 5e-5) * scale,
        equal_nan=True,
    ) and torch.equal(_signs(a), _signs(b))


def _signs(a: torch.Tensor) -> torch.Tensor:
    """Where an infinity or a NaN is, and of which sign."""
    return a.real.nan_to_num(3.0, 4.0, -4.0) * ~a.isfinite()


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        _, tensor, grad, _ = value
        held = [] if tensor.is_meta else tensor.reshape(-1)[:4].tolist()
        numbers = ", ".join(f"{v:.5g}" if isinstance(v, float) else str(v) for v in held)
        return f"{str(tensor.dtype)[6:]}{list(tensor.shape)}{'*' if grad else ''}({numbers})"
    return str(value)[:80]
