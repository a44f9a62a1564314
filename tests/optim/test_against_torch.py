"""500 steps of each optimizer beside torch.optim's: SGD to the last bit, the others to 1e-6.

Adam rounds where torch does, but for the root: torch's is MKL's, whose last bit is not always the right one.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule import optim

from .problems import close, parameters, same_bits, set_gradients, trained

STEPS = 500
SGDS: list[dict[str, Any]] = [
    {"lr": 0.1},
    {"lr": 0.01, "momentum": 0.9},
    {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
    {"lr": 0.01, "momentum": 0.8, "dampening": 0.3, "maximize": True, "weight_decay": 0.01},
]
ADAMS: list[dict[str, Any]] = [
    {"lr": 0.01},
    {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1},
    {"lr": 0.01, "amsgrad": True, "maximize": True},
    {"lr": 0.003, "betas": (0.3, 0.9), "weight_decay": 0.2, "amsgrad": True},
]
CASES = [("SGD", o) for o in SGDS] + [(kind, o) for kind in ("Adam", "AdamW") for o in ADAMS]


def names(case: tuple[str, dict[str, Any]]) -> str:
    return f"{case[0]}-{'-'.join(case[1])}"


@pytest.mark.parametrize("case", CASES, ids=names)
def test_500_steps_equal_torchs(case: tuple[str, dict[str, Any]]) -> None:
    kind, options = case
    ours = trained(lambda ps: getattr(optim, kind)(ps, **options), STEPS)
    theirs = trained(lambda ps: getattr(torch.optim, kind)(ps, **options), STEPS)
    if kind == "SGD":
        same_bits(ours, theirs)
    else:
        close(ours, theirs)


@pytest.mark.parametrize("case", [CASES[2], CASES[5], CASES[10]], ids=names)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.complex128], ids=str)
def test_other_types_equal_torchs(case: tuple[str, dict[str, Any]], dtype: torch.dtype) -> None:
    kind, options = case
    ours = trained(lambda ps: getattr(optim, kind)(ps, **options), 20, dtype=dtype)
    theirs = trained(lambda ps: getattr(torch.optim, kind)(ps, **options), 20, dtype=dtype)
    if kind == "SGD" and not dtype.is_complex:  # torch multiplies complex numbers there
        same_bits(ours, theirs)
    else:
        close(ours, theirs, 1e-6 if dtype == torch.complex64 else 1e-14)


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_the_moments_of_adam_have_torchs_bits(kind: str) -> None:
    states = []
    for module in (optim, torch.optim):
        ps = parameters()
        optimizer = getattr(module, kind)(ps, lr=0.01, betas=(0.3, 0.99), weight_decay=0.0, amsgrad=True)
        for step in range(20):
            for p in ps:
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        states.append([value for p in ps for value in optimizer.state[p].values()])
    same_bits(*states)


def rounded_steps(make: Any, steps: int, dtype: torch.dtype) -> list[nn.Parameter]:
    """torch's step in float32, whose results are rounded to `dtype` before the next."""
    low = parameters(dtype=dtype)
    whole = [nn.Parameter(p.detach().float()) for p in low]
    optimizer = make(whole)
    with torch.no_grad():
        for step in range(steps):
            set_gradients(low, step)
            for p, q in zip(low, whole, strict=True):
                q.grad = p.grad.float()
            optimizer.step()
            for p, q in zip(low, whole, strict=True):
                for value in (q, *(v for name, v in optimizer.state[q].items() if name != "step")):
                    value.copy_(value.to(dtype))
                p.copy_(q)
    return low


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_16_bit_parameters_are_computed_in_float_and_rounded_once(kind: str, dtype: torch.dtype) -> None:
    options = {"lr": 0.01, "weight_decay": 0.1} | ({"momentum": 0.9} if kind == "SGD" else {"eps": 1e-4})
    ours = trained(lambda ps: getattr(optim, kind)(ps, **options), 20, dtype=dtype)
    theirs = rounded_steps(lambda ps: getattr(torch.optim, kind)(ps, **options), 20, dtype)
    for p, q in zip(ours, theirs, strict=True):
        assert p.dtype == dtype
        close([p], [q], torch.finfo(dtype).eps)
        assert (p == q).float().mean() > 0.95


ADAFACTORS: list[dict[str, Any]] = [
    {},
    {"lr": 0.1, "beta2_decay": -0.6, "weight_decay": 0.1, "d": 2.0},
    {"eps": (1e-3, 1e-2), "maximize": True},
]


@pytest.mark.parametrize("options", ADAFACTORS, ids="-".join)
def test_500_steps_of_adafactor_equal_torchs(options: dict[str, Any]) -> None:
    shapes = ((64, 33), (129,), (3, 5, 7), (1,), (20, 3, 3, 3))
    ours = trained(lambda ps: optim.Adafactor(ps, **options), STEPS, shapes=shapes)
    close(ours, trained(lambda ps: torch.optim.Adafactor(ps, **options), STEPS, shapes=shapes))


TRANSFORMERS: list[dict[str, Any]] = [
    {},
    {"warmup_init": True, "beta1": 0.9},
    {"lr": 0.01, "relative_step": False, "scale_parameter": False, "weight_decay": 0.1},
]


@pytest.mark.parametrize("options", TRANSFORMERS, ids="-".join)
def test_500_steps_of_adafactor_equal_those_of_transformers(options: dict[str, Any]) -> None:
    optimization = pytest.importorskip("transformers.optimization")
    shapes = ((64, 33), (129,), (3, 5, 7), (20, 3, 3, 3))
    ours = trained(lambda ps: optim.Adafactor(ps, form="transformers", **options), STEPS, shapes=shapes)
    close(ours, trained(lambda ps: optimization.Adafactor(ps, **options), STEPS, shapes=shapes))
    on_torch = parameters(shapes)
    fallback = optim.Adafactor(on_torch, form="transformers", **options)
    for step in range(50):
        set_gradients(on_torch, step)
        fallback._torch_step(fallback.param_groups)
    close(trained(lambda ps: optim.Adafactor(ps, form="transformers", **options), 50, shapes=shapes), on_torch)


class TransformersAdamW(torch.optim.Optimizer):
    """The formula of transformers.optimization.AdamW before version 5, which has it no more."""

    def __init__(self, ps: list[nn.Parameter], lr: float, eps: float, weight_decay: float, correct_bias: bool) -> None:
        super().__init__(ps, {"lr": lr, "eps": eps, "weight_decay": weight_decay, "correct_bias": correct_bias})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        for p in group["params"]:
            state = self.state[p]
            if not state:
                state.update(step=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
            state["step"] += 1
            state["m"].mul_(0.9).add_(p.grad, alpha=1 - 0.9)
            state["v"].mul_(0.999).addcmul_(p.grad, p.grad, value=1 - 0.999)
            size = group["lr"]
            if group["correct_bias"]:
                size *= math.sqrt(1 - 0.999 ** state["step"]) / (1 - 0.9 ** state["step"])
            p.addcdiv_(state["m"], state["v"].sqrt().add_(group["eps"]), value=-size)
            p.add_(p, alpha=-group["lr"] * group["weight_decay"])


@pytest.mark.parametrize("correct_bias", [True, False])
def test_500_steps_of_adamw_equal_those_of_transformers(correct_bias: bool) -> None:
    options = {"lr": 0.003, "eps": 1e-6, "weight_decay": 0.1, "correct_bias": correct_bias}
    ours = trained(lambda ps: optim.AdamW(ps, decay="transformers", **options), STEPS)
    close(ours, trained(lambda ps: TransformersAdamW(ps, **options), STEPS))
    on_torch = parameters()
    fallback = optim.AdamW(on_torch, decay="transformers", **options)
    for step in range(50):
        set_gradients(on_torch, step)
        fallback._torch_step(fallback.param_groups)
    close(trained(lambda ps: optim.AdamW(ps, decay="transformers", **options), 50), on_torch)


def lamb(ps: list[nn.Parameter], steps: int, **options: Any) -> list[nn.Parameter]:
    """Algorithm 2 of the paper, written in doubles."""
    beta1, beta2 = options.get("betas", (0.9, 0.999))
    decay, low_high = options.get("weight_decay", 0.0), options.get("ratio", (0.0, math.inf))
    moments: list[tuple[Tensor, Tensor]] = [(torch.zeros_like(p), torch.zeros_like(p)) for p in ps]
    with torch.no_grad():
        for t in range(1, steps + 1):
            set_gradients(ps, t - 1)
            for p, (m, v) in zip(ps, moments, strict=True):
                g = -p.grad if options.get("maximize") else p.grad
                m.mul_(beta1).add_(g, alpha=1 - beta1)
                v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
                if options.get("correct_bias", True):
                    d = m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + 1e-6) + decay * p
                else:
                    d = m / (v.sqrt() + 1e-6) + decay * p
                size, length = float(p.double().norm()), float(d.double().norm())
                ratio = min(max(size / length, low_high[0]), low_high[1]) if size and length else 1.0
                p.sub_(options["lr"] * ratio * d)
    return ps


LAMBS: list[dict[str, Any]] = [
    {"lr": 0.01},
    {"lr": 0.01, "weight_decay": 0.1, "ratio": (0.5, 2.0), "betas": (0.8, 0.95)},
    {"lr": 0.001, "correct_bias": False, "maximize": True},
]


@pytest.mark.parametrize("options", LAMBS, ids="-".join)
def test_500_steps_of_lamb_equal_the_papers(options: dict[str, Any]) -> None:
    ours = trained(lambda ps: optim.LAMB(ps, **options), STEPS)
    close(ours, lamb(parameters(), STEPS, **options))
    on_torch = parameters()
    fallback = optim.LAMB(on_torch, **options)
    for step in range(50):
        set_gradients(on_torch, step)
        fallback._torch_step(fallback.param_groups)
    close(trained(lambda ps: optim.LAMB(ps, **options), 50), on_torch)


@pytest.mark.parametrize("kind", ["SGD", "AdamW", "LAMB", "Adafactor"])
def test_the_number_of_threads_changes_no_bit(kind: str) -> None:
    make = functools.partial(getattr(optim, kind), lr=0.01)
    threads, results = torch.get_num_threads(), []
    for count in (1, 3):
        torch.set_num_threads(count)
        try:
            results.append(trained(make, 3, shapes=((700, 300), (5,), (300, 40))))
        finally:
            torch.set_num_threads(threads)
    same_bits(*results)
