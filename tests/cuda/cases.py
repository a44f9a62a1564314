"""One operator after the other through its CUDA kernels, beside PyTorch in double precision.

A case is a node, the operands that it is given at one size, and PyTorch's own function. Each runs in three types,
forward and gradient, from memory that is aligned and memory that is not, with threads in three orders that have to give
the same bits. Not here: whole models (models.py), how the parts are run (__main__.py).
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ortmodule.testing.node_model import node_model

from . import real, simulated
from .simulated import ORDERS, Counts

DEVICE = "guarded"
TYPES = (torch.float32, torch.float16, torch.bfloat16)
# Of the largest element of what is compared; sums of many terms of a 16-bit type are rounded once.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
# Around vectors of 4 and 8, warps with one vector a thread, teams of a warp and of a block that hold their row, and
# rows that are read again.
WIDTHS = (1, 3, 4, 7, 8, 31, 32, 33, 128, 129, 255, 256, 257, 511, 512, 513, 1024, 1025, 4096, 4100, 8200)

Operands = list[torch.Tensor | None]


def normal(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape, dtype=torch.float64) * scale).to(dtype)


@dataclasses.dataclass(frozen=True)
class Case:
    """`kernels`: patterns of names of those that have to run for it. `wrt`: the operands that get a gradient."""

    name: str
    op: str
    operands: Callable[[torch.dtype], Operands]
    reference: Callable[..., Any] | None  # None: the engine's kernel on the CPU, to the bit where `exact`
    kernels: tuple[str, ...]
    domain: str = ""
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)
    wrt: tuple[int, ...] = (0,)
    outputs: int = 1
    constants: tuple[int, ...] = ()
    error: str = ""  # what a kernel ends with instead of results
    loose: float = 0.0  # tolerance of float32 results of operands that were rounded on the way
    aligned: bool = True  # rows begin at multiples of 32 bytes in all three types: sectors are looked at
    exact: bool = True
    # In place of a node: what is done to the operands on a device, from aligned memory or not.
    program: Callable[[Operands, str, bool], list[torch.Tensor]] | None = None


class Failed(AssertionError):
    """What a case does wrong."""


def shifted(x: torch.Tensor) -> torch.Tensor:
    """The same values one element further on in memory."""
    held = torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)
    moved = held[1:].view(x.shape)
    moved.copy_(x)
    return moved


def placed(operands: Operands, case: Case, device: str, aligned: bool) -> list[torch.Tensor]:
    given = []
    for i, value in enumerate(operands):
        if value is None or i in case.constants:
            continue
        there = value.to(device)
        there = there if aligned else shifted(there)
        given.append(there.detach().requires_grad_(i in case.wrt and there.is_floating_point()))
    return given


def weights_of(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [(torch.rand(y.shape, generator=generator, dtype=torch.float64) - 0.3).to(y.dtype) for y in outputs]


def run(case: Case, operands: Operands, device: str, aligned: bool) -> list[torch.Tensor]:
    """Outputs and gradients of the engine."""
    if case.program:
        return case.program(operands, device, aligned)
    built = node_model(
        case.op, operands, case.attributes, domain=case.domain, outputs=case.outputs, constants=case.constants
    )
    given = placed(operands, case, device, aligned)
    trainable = [n for n, v in zip(built.names, given, strict=True) if v.requires_grad]
    outputs = list(built.session(trainable, device).run(given))
    flowing = [y for y in outputs if y.requires_grad]
    found = [y.detach() for y in outputs]
    if flowing:
        leaves = [v for v in given if v.requires_grad]
        seeds = [w.to(device) for w in weights_of(flowing)]
        found += torch.autograd.grad(flowing, leaves, seeds)
    return [t.cpu() for t in found]


def expected(case: Case, operands: Operands) -> list[torch.Tensor]:
    if case.reference is None:
        return run(case, operands, "cpu", aligned=True)
    doubles = [
        v.double().requires_grad_(i in case.wrt) if v is not None and v.is_floating_point() else v
        for i, v in enumerate(operands)
    ]
    made = case.reference(*doubles)
    outputs = [made] if isinstance(made, torch.Tensor) else list(made)
    found = [y.detach() for y in outputs]
    if case.wrt:
        dtype = next(v.dtype for v in operands if v is not None and v.is_floating_point())
        seeds = [w.double() for w in weights_of([y.detach().to(dtype) for y in outputs])]
        leaves = [v for i, v in enumerate(doubles) if i in case.wrt and v is not None]
        found += torch.autograd.grad(outputs, leaves, seeds)
    return found


def compare(case: Case, got: list[torch.Tensor], want: list[torch.Tensor], exact: bool = True) -> None:
    if case.reference is None and exact:
        if not same_bits(got, want):
            raise Failed("other bits than on the CPU")
        return
    if len(got) != len(want):
        raise Failed(f"{len(got)} results for {len(want)}")
    for k, (g, w) in enumerate(zip(got, want)):
        if g.shape != w.shape:
            raise Failed(f"result {k} has shape {tuple(g.shape)} for {tuple(w.shape)}")
        tolerance = max(TOLERANCE.get(g.dtype, 0.0), case.loose)  # booleans are equal
        largest = float(w.double().abs().nan_to_num(0, 0, 0).max().clamp(min=1)) if w.numel() else 1.0
        torch.testing.assert_close(
            g.double(), w.to(g.dtype).double(), rtol=tolerance, atol=tolerance * largest, equal_nan=True,
            msg=lambda m, k=k: f"result {k}: {' '.join(m.split())}",
        )  # fmt: skip


def same_bits(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(_bytes(x), _bytes(y)) for x, y in zip(a, b, strict=True))


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().reshape(-1).view(torch.uint8)


def check(case: Case, dtype: torch.dtype, *, orders: Sequence[str] = ORDERS, device: str = DEVICE) -> Counts:
    """Raises Failed or AssertionError for what is wrong; what the kernels did on aligned memory."""
    gpu = simulated if device == DEVICE else real
    torch.manual_seed(0)
    operands = case.operands(dtype)
    if case.error:
        if gpu is simulated:  # on a real one it is the last that the process does with the device
            refuse(case, operands)
        return {}
    want = expected(case, operands)
    counts: Counts = {}
    for aligned in (True, False):
        first: list[torch.Tensor] = []
        for name in orders:
            with gpu.counted() as now, gpu.order(name, sectors=aligned and name == "forward"):
                got = run(case, operands, device, aligned)
            if gpu is simulated and (missing := [k for k in case.kernels if not fnmatch.filter(now, k)]):
                raise Failed(f"{missing} did not run, but {sorted(now)}")
            counts = counts or now
            if not first:
                # A step's powers are a library's, which on a GPU is another than the host's.
                compare(case, got, want, case.exact and (gpu is simulated or not case.program))
            elif not same_bits(first, got):
                raise Failed(f"threads that run {name} give other bits")
            first = first or got
    return counts


def refuse(case: Case, operands: Operands) -> None:
    try:
        run(case, operands, DEVICE, aligned=True)
        torch.accelerator.synchronize(0)
    except RuntimeError as error:
        if case.error in str(error):
            return
        raise
    raise Failed(f"there is no error '{case.error}'")


def wasteful(case: Case, counts: Counts, most: float = 1.25) -> dict[str, float]:
    """The kernels of the case that touched more sectors than that for each one that they needed."""
    if not case.aligned or not counts:
        return {}
    names = {k for pattern in case.kernels for k in fnmatch.filter(counts, pattern)}
    ratios = {k: counts[k]["touched"] / max(1, counts[k]["needed"]) for k in sorted(names)}
    return {k: round(ratio, 2) for k, ratio in ratios.items() if ratio > most}


def all_cases() -> Iterator[Case]:
    from . import composed_cases, generated_cases, kernel_cases, step_cases

    yield from kernel_cases.CASES
    yield from step_cases.cases()
    yield from generated_cases.cases()
    yield from composed_cases.cases()
