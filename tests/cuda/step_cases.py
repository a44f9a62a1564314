"""Cases of optimizers' steps and of clipping, over lists of tensors: beside the same on the CPU.

SGD and Adam have the CPU's bits, LAMB sums its norms in another order. Not here: many steps beside torch.optim's
(steps.py), how a case is run (cases.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .cases import Case, Operands, normal, shifted

STEPS = 3
Shapes = Sequence[tuple[int, ...]]
Program = Callable[[Operands, str, bool], list[Tensor]]

SMALL: Shapes = [(3,), (4, 2), (5,), (1,), (33, 3)]
ALIGNED: Shapes = [(64, 64), (2048,)]
LISTED: Shapes = [(1 + i % 5,) for i in range(65)]  # a list has 64
LONG: Shapes = [(4097,), (2, 8200)]  # a block has 4096 elements, or 8192 of 16 bits
CUT: Shapes = [(16384,), (16385,), (7,), (40000,)]  # LAMB's have 16384, and the norm's


def given(value: Tensor, device: str, aligned: bool) -> Tensor:
    there = value.detach().to(device, copy=True)
    return there if aligned else shifted(there)


def program_of(
    make: Callable[[list[nn.Parameter]], Any], shapes: Shapes, around: Callable[[Any, int, str], None] | None = None
) -> Program:
    """Parameters, gradients and states after some steps. `around(optimizer, step, device)` comes before each."""

    def program(operands: Operands, device: str, aligned: bool) -> list[Tensor]:
        values = [given(v, device, aligned) for v in operands if v is not None]
        count = len(shapes)
        ps = [nn.Parameter(v) for v in values[:count]]
        optimizer = make(ps)
        for step in range(STEPS):
            for p, gradient in zip(ps, values[count * (step + 1) :], strict=False):
                p.grad = gradient
            if around:
                around(optimizer, step, device)
            optimizer.step()
        inner = getattr(optimizer, "optimizer", optimizer)
        masters = list((getattr(optimizer, "_masters", None) or {}).values())
        kept = [v for p in ps for v in inner.state[p].values() if isinstance(v, Tensor)]
        return [t.detach().cpu() for t in (*ps, *(p.grad for p in ps), *masters, *kept)]

    return program


def operands_of(shapes: Shapes, scale: float = 1.0) -> Callable[[torch.dtype], Operands]:
    return lambda d: [normal(*shape, dtype=d, scale=scale if k else 1.0) for k in range(STEPS + 1) for shape in shapes]


def scaled(found_at: int) -> Callable[[Any, int, str], None]:
    """What torch.amp.GradScaler gives an optimizer: gradients are of 8 times the loss, and of a step infinite."""

    def around(optimizer: Any, step: int, device: str) -> None:
        if step:  # the first momentum is begun by a step that the host decides
            optimizer.grad_scale = torch.tensor(8.0, device=device)
            optimizer.found_inf = torch.tensor(float(step == found_at), device=device)

    return around


def clipped(optimizer: Any, step: int, device: str) -> None:
    """MixedPrecision's own way: no pass of its own over the gradients."""
    optimizer.clip_grad_norm_(0.5)


def steps_of(kind: str, kernels: tuple[str, ...], variants: dict[str, dict[str, Any]], exact: bool) -> list[Case]:
    from ortmodule import optim

    cases = []
    for name, options in variants.items():
        lists = {"small": SMALL, "aligned": ALIGNED}
        if not name:
            lists |= {"cut": CUT} if kind == "LAMB" else {"long": LONG}
        for title, shapes in lists.items():
            made = program_of(lambda ps, o=options: getattr(optim, kind)(ps, **o), shapes)
            cases.append(step_case(f"{kind} step {name} {title}", shapes, made, kernels, exact, title == "aligned"))
    options = next(iter(variants.values()))
    more = () if kind == "SGD" else ("advance_steps",)
    for found_at, shapes in ((1, LISTED if kind == "Adam" else SMALL), (2, SMALL)):
        made = program_of(lambda ps, o=options: getattr(optim, kind)(ps, **o), shapes, scaled(found_at))
        name = f"{kind} step scaled {found_at}"
        cases.append(step_case(name, shapes, made, (*kernels, *more), exact, False, 8.0))
    mixed = program_of(lambda ps, o=options: optim.MixedPrecision(getattr(optim, kind), ps, **o), SMALL)
    cases.append(step_case(f"{kind} step of masters", SMALL, mixed, kernels, exact, False))
    wide = program_of(lambda ps, o=options: optim.MixedPrecision(getattr(optim, kind), ps, **o), ALIGNED)
    cases.append(step_case(f"{kind} step of wide masters", ALIGNED, wide, kernels, exact, True))
    return cases


def step_case(
    name: str, of: Shapes, program: Program, kernels: tuple[str, ...], exact: bool, aligned: bool, scale: float = 1.0
) -> Case:  # fmt: skip
    return Case(
        name, "", operands_of(of, scale), None, kernels, wrt=(), program=program, aligned=aligned, exact=exact
    )  # fmt: skip


def clips() -> list[Case]:
    """Chunks of 16384 elements, lists of 128 gradients."""
    from ortmodule import optim

    cases = []
    lists: dict[str, Shapes] = {
        "small": SMALL, "cut": CUT, "aligned": ALIGNED, "listed": [(1 + i % 5,) for i in range(129)],
        "blocks": [(4, 1024), *((3,) for _ in range(300))],
    }  # fmt: skip
    for title, shapes in lists.items():
        long = title in ("listed", "blocks")
        for order in (2.0,) if long else (2.0, 1.0, math.inf):
            for most in (0.5,) if long else (0.5, 1e6):

                def program(operands: Operands, device: str, aligned: bool, order=order, most=most) -> list[Tensor]:  # type: ignore[no-untyped-def]
                    ps = [nn.Parameter(given(v, device, aligned)) for v in operands if v is not None]
                    for p in ps:
                        p.grad = p.detach()
                    clip = nn.utils.clip_grad_norm_ if device == "cpu" else optim.clip_grad_norm_
                    norm = clip(ps, most, order)
                    return [t.detach().cpu() for t in (norm, *(p.grad for p in ps))]

                cases.append(Case(
                    f"clip_grad_norm_ {title} of {order:g} to {most:g}", "",
                    lambda d, of=shapes: [normal(*shape, dtype=d) for shape in of],
                    lambda *values, run=program: run(list(values), "cpu", True),
                    ("gradient_parts", "scale_gradients"), wrt=(), program=program, aligned=title == "aligned",
                ))  # fmt: skip
    return cases


def lamb_of_nothing() -> Case:
    """A parameter of zeros, and one whose gradient and decay are none: ratios of 1."""
    from ortmodule import optim

    shapes: Shapes = [(5,), (7,), (3,)]

    def operands(dtype: torch.dtype) -> Operands:
        values = operands_of(shapes)(dtype)
        first = values[0]
        assert first is not None
        first.zero_()
        for k in range(STEPS):
            gradient = values[len(shapes) * (k + 1) + 1]
            assert gradient is not None
            gradient.zero_()
        return values

    program = program_of(lambda ps: optim.LAMB(ps, lr=0.01), shapes)
    return Case(
        "LAMB step of nothing", "", operands, None, ("lamb_moments", "lamb_step"), wrt=(), program=program,
        aligned=False, exact=False,
    )  # fmt: skip


def clipped_masters() -> list[Case]:
    """MixedPrecision's clipping by a number of the device, and its own scaler, for which the host decides."""
    from ortmodule import optim

    def make(ps: list[nn.Parameter], scaled: bool) -> optim.MixedPrecision:
        scaler = optim.DynamicLossScaler(8.0) if scaled else None
        return optim.MixedPrecision(optim.AdamW, ps, lr=0.01, loss_scaler=scaler)

    return [
        step_case(
            f"MixedPrecision step clipped {'and scaled' * scaled}", SMALL,
            program_of(lambda ps, s=scaled: make(ps, s), SMALL, clipped), ("gradient_parts", "adam_step"),
            exact=False, aligned=False,
        )
        for scaled in (False, True)
    ]  # fmt: skip


def cases() -> list[Case]:
    sgd = {
        "": {"lr": 0.1, "momentum": 0.9},
        "plain": {"lr": 0.1},
        "nesterov": {"lr": 0.01, "momentum": 0.8, "weight_decay": 0.1, "nesterov": True},
        "damped": {"lr": 0.01, "momentum": 0.9, "dampening": 0.3, "maximize": True},
    }
    adam = {
        "": {"lr": 0.01, "weight_decay": 0.1},
        "amsgrad": {"lr": 0.01, "betas": (0.3, 0.9), "weight_decay": 0.1, "amsgrad": True, "maximize": True},
    }
    transformers = {"transformers": {"lr": 0.01, "weight_decay": 0.1, "decay": "transformers", "eps": 1e-6}}
    lamb = {
        "": {"lr": 0.01, "weight_decay": 0.1},
        "bounded": {"lr": 0.01, "ratio": (2.0, 3.0), "betas": (0.4, 0.9), "correct_bias": False},
        "low": {"lr": 0.01, "ratio": (0.0, 0.5)},
    }
    return [
        *steps_of("SGD", ("sgd_step",), sgd, exact=True),
        *steps_of("Adam", ("adam_step",), adam, exact=True),
        *steps_of("AdamW", ("adam_step",), adam | transformers, exact=True),
        *steps_of("LAMB", ("lamb_moments", "lamb_step"), lamb, exact=False),
        lamb_of_nothing(),
        *clipped_masters(),
        *clips(),
    ]
