"""Rows of the optimizers: com.microsoft's against their equations, those that compute as torch does against torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import torch

from ..table import Case, Row, rand, scalar

MICROSOFT, OWN = "com.microsoft", "ai.ortmodule"
Tensor = torch.Tensor
Names = list[str]


def sequences(op: str, scalars: int, kinds: int) -> Callable[[Names, Names, dict[str, Any]], list[onnx.NodeProto]]:
    """Nodes of an operator on sequences of two tensors: scalars, `kinds` sequences and perhaps a signal go in.

    Out come the flag and a sequence for each kind but the gradients, or, without scalars, the sequences themselves.
    """

    def nodes(names: Names, outputs: Names, attributes: dict[str, Any]) -> list[onnx.NodeProto]:
        tensors = names[scalars : scalars + 2 * kinds]
        made = [onnx.helper.make_node("SequenceConstruct", tensors[2 * k : 2 * k + 2], [f"s{k}"]) for k in range(kinds)]
        inputs = [*names[:scalars], *(f"s{k}" for k in range(kinds)), *names[scalars + 2 * kinds :]]
        flags = outputs[:1] if scalars else []
        results = [f"r{k}" for k in range(len(outputs) - len(flags))]
        node = onnx.helper.make_node(op, inputs, [*flags, *results], domain=MICROSOFT, **attributes)
        joined = zip(results, outputs[len(flags) :], strict=True)
        return [*made, node, *(onnx.helper.make_node("ConcatFromSequence", [r], [y], axis=0) for r, y in joined)]

    return nodes


def moments(m: Tensor, v: Tensor, g: Tensor, alpha: float, beta: float) -> tuple[Tensor, Tensor]:
    return alpha * m + (1 - alpha) * g, beta * v + (1 - beta) * g * g


def adamw(
    lr: Tensor, step: Tensor, *rest: Tensor, weight_decay: float = 0.01, adam_mode: int = 0, correct_bias: int = 1,
    alpha: float = 0.9, beta: float = 0.999, epsilon: float = 1e-8,
) -> tuple[Tensor, ...]:  # fmt: skip
    if len(rest) == 9 and not bool(rest[8]):
        return torch.tensor([False]), torch.cat(rest[:2]), torch.cat(rest[4:6]), torch.cat(rest[6:8])
    rate, ws, ms, vs = float(lr), [], [], []
    ac, bc = (1 - b ** int(step) if correct_bias else 1.0 for b in (alpha, beta))
    for w, g, m, v in zip(rest[:2], rest[2:4], rest[4:6], rest[6:8]):
        m, v = moments(m, v, g, alpha, beta)
        if adam_mode:
            w = w - rate * bc**0.5 / ac * m / (v.sqrt() + epsilon)
            w = w - rate * weight_decay * w
        else:
            w = w - rate * weight_decay * w - rate / ac * m / ((v / bc).sqrt() + epsilon)
        for kept, value in zip((ws, ms, vs), (w, m, v)):
            kept.append(value)
    return torch.tensor([True]), torch.cat(ws), torch.cat(ms), torch.cat(vs)


def tensors(dtype: torch.dtype, kinds: int) -> list[Tensor]:
    """Two tensors of each kind; the last kind is a second moment, not negative."""
    xs = [rand(n, 3, dtype=dtype) for _ in range(kinds) for n in (2, 1)]
    return xs if kinds < 4 else [*xs[:-2], *(x.abs() for x in xs[-2:])]


RATE = torch.tensor(0.1)


def adamw_cases(dtype: torch.dtype) -> list[Case]:
    forms: list[dict[str, Any]] = [{}, {"adam_mode": 1}, {"correct_bias": 0, "weight_decay": 0.1, "alpha": 0.8}]
    cases = [Case((RATE, scalar(3), *tensors(dtype, 4)), form, outputs=4) for form in forms]
    signals = [torch.tensor([value]) for value in (True, False)]
    return cases + [Case((RATE, scalar(1), *tensors(dtype, 4), signal), outputs=4) for signal in signals]


def sgd_sequences(lr: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
    if len(rest) == 5 and not bool(rest[4]):
        return torch.tensor([False]), torch.cat(rest[:2])
    return torch.tensor([True]), torch.cat([w - float(lr) * g for w, g in zip(rest[:2], rest[2:4])])


def adam(
    rate: Tensor, t: Tensor, w: Tensor, g: Tensor, m: Tensor, v: Tensor, half: Tensor | None = None,
    loss_scale: Tensor | None = None, norm: Tensor | None = None, signal: Tensor | None = None, *, alpha: float = 0.9,
    beta: float = 0.999, epsilon: float = 1e-8, weight_decay_mode: int = 0, do_bias_correction: int = 1,
    max_norm_clip: float = 1.0, **others: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    if signal is not None and not bool(signal):
        return t, m, v, w, g
    decay, scale = others.get("lambda", 0.0), 1.0 if loss_scale is None else float(loss_scale)
    if norm is not None and float(norm) > scale * max_norm_clip:
        scale = float(norm) / max_norm_clip
    m, v = moments(m, v, g / scale, alpha, beta)
    ac, bc = (1 - b ** int(t) if do_bias_correction else 1.0 for b in (alpha, beta))
    if weight_decay_mode:
        new = w - float(rate) * bc**0.5 / ac * m / (v.sqrt() + epsilon)
        new = new - float(rate) * decay * new
    else:
        new = w - float(rate) * (m / ac / ((v / bc).sqrt() + epsilon) + decay * w)
    return t + 1, m, v, new, new - w


def adam_cases(dtype: torch.dtype) -> list[Case]:
    def of(*more: Tensor | None, **attributes: Any) -> Case:
        w, g, m, v = (rand(2, 3, dtype=dtype) for _ in range(4))
        return Case((RATE, scalar(3), w, g, m, v.abs(), *more), attributes, outputs=5)

    scales = (None, torch.tensor(4.0, dtype=dtype))
    return [
        of(), of(**{"lambda": 0.1}), of(weight_decay_mode=1, **{"lambda": 0.1}), of(do_bias_correction=0, alpha=0.8),
        of(*scales), of(*scales, torch.tensor(9.0)), of(None, None, None, torch.tensor(False)),
    ]  # fmt: skip


def lamb(
    signal: Tensor | None, loss_scale: Tensor | None, norm: Tensor | None, rate: Tensor, t: Tensor, *groups: Tensor,
    ratio_max: float = float("inf"), ratio_min: float = -float("inf"), do_bias_correction: int = 1,
    **lists: list[float],
) -> tuple[Tensor, ...]:  # fmt: skip
    out = [t + 1]
    for k, (w, g, m, v) in enumerate(zip(*(groups[i::5] for i in range(4)))):
        at = {n: lists[n][k] if n in lists else d for n, d in (("alpha", 0.9), ("beta", 0.999), ("lambda", 0.0))}
        m, v = moments(m, v, g if loss_scale is None else g / float(loss_scale), at["alpha"], at["beta"])
        ac, bc = (1 - at[b] ** int(t) if do_bias_correction else 1.0 for b in ("alpha", "beta"))
        direction = m / ac / ((v / bc).sqrt() + 1e-6) + at["lambda"] * w
        change = -float(rate) * (w.norm() / direction.norm()).clamp(ratio_min, ratio_max) * direction
        out += [w + change, change, m, v]
    return tuple(out)


def lamb_cases(dtype: torch.dtype) -> list[Case]:
    group = [rand(2, 3, dtype=dtype), rand(2, 3, dtype=dtype), rand(2, 3, dtype=dtype), rand(2, 3, dtype=dtype).abs()]
    first = [None, None, None, RATE, scalar(2)]
    scaled = [None, torch.tensor(2.0, dtype=dtype), *first[2:]]
    bounds = {"ratio_min": 0.5, "ratio_max": 2.0, "lambda": [0.1], "alpha": [0.8]}
    return [Case((*first, *group), outputs=5), Case((*scaled, *group), bounds, outputs=5)]


def by_torch(
    make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer], w: Tensor, g: Tensor, **state: Tensor | None
) -> tuple[Tensor, ...]:
    """The parameter and the states after a step of one of torch's optimizers."""
    parameter = torch.nn.Parameter(w.detach().clone())
    parameter.grad = g.detach().clone()
    optimizer = make([parameter])
    known = {name: value.detach().clone() for name, value in state.items() if value is not None}
    optimizer.state[parameter] = dict(known)
    optimizer.step()
    return (parameter.detach(), *(optimizer.state[parameter].get(name, value) for name, value in known.items()))


def torch_sgd(
    rate: Tensor, w: Tensor, g: Tensor, step: Tensor | None = None, buffer: Tensor | None = None, **settings: Any
) -> tuple[Tensor, ...]:
    given = {name: bool(settings.pop(name, 0)) for name in ("nesterov", "maximize", "fused")}
    if step is None:
        return by_torch(lambda p: torch.optim.SGD(p, lr=float(rate), **settings, **given), w, g)
    first = None if step == 0 else buffer
    out = by_torch(lambda p: torch.optim.SGD(p, lr=float(rate), **settings, **given), w, g, momentum_buffer=first)
    begun = (-g if given["maximize"] else g) + settings.get("weight_decay", 0) * w
    return out[0], step + 1, begun if first is None else out[1]


def torch_sgd_cases(dtype: torch.dtype) -> list[Case]:
    def of(count: float | None = None, **settings: Any) -> Case:
        w, g, buffer = (rand(2, 3, dtype=dtype) for _ in range(3))
        states = () if count is None else (torch.tensor(count), buffer)
        return Case((RATE, w, g, *states), settings, outputs=1 if count is None else 3)

    return [
        of(), of(weight_decay=0.1, maximize=1), of(0.0, momentum=0.9, dampening=0.5, weight_decay=0.1),
        of(2.0, momentum=0.9, dampening=0.5), of(2.0, momentum=0.8, nesterov=1, maximize=1),
    ]  # fmt: skip


def torch_adam(
    rate: Tensor, w: Tensor, g: Tensor, step: Tensor, first: Tensor, second: Tensor, largest: Tensor | None = None,
    *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, decoupled: int = 0, weight_decay: float = 0.0,
    **flags: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    settings = {"betas": (beta1, beta2), "eps": epsilon, "weight_decay": weight_decay}
    given = {name: bool(value) for name, value in flags.items()}
    states = {"step": step, "exp_avg": first, "exp_avg_sq": second, "max_exp_avg_sq": largest}
    return by_torch(lambda p: kind(p, lr=float(rate), **settings, **given), w, g, **states)


def torch_adam_cases(dtype: torch.dtype) -> list[Case]:
    def of(count: float = 2.0, **settings: Any) -> Case:
        w, g, first, second, largest = (rand(2, 3, dtype=dtype) for _ in range(5))
        states = [first, second.abs(), *([largest.abs()] if "amsgrad" in settings else [])]
        return Case((RATE, w, g, torch.tensor(count), *states), settings, outputs=2 + len(states))

    return [
        of(), of(0.0, weight_decay=0.1), of(weight_decay=0.1, decoupled=1, maximize=1), of(amsgrad=1, beta1=0.8),
        of(beta2=0.9, epsilon=1e-3),
    ]  # fmt: skip


def row(name: str, reference: Callable[..., Any], cases: Callable[[torch.dtype], list[Case]], **more: Any) -> Row:
    # The sizes of weights, gradients and states belong together.
    return Row(name, reference, cases, MICROSOFT, differentiable=False, tolerance=5e-2, refuses=True, **more)


ROWS = [
    row("AdamWOptimizer", adamw, adamw_cases, nodes=sequences("AdamWOptimizer", 2, 4)),
    row(
        "SGDOptimizerV2",
        sgd_sequences,
        lambda dtype: [
            Case((RATE, *tensors(dtype, 2)), outputs=2),
            *(Case((RATE, *tensors(dtype, 2), torch.tensor([on])), outputs=2) for on in (True, False)),
        ],
        nodes=sequences("SGDOptimizerV2", 1, 2),
    ),
    row(
        "SGDOptimizer",
        lambda lr, w, g: (w - float(lr) * g, -float(lr) * g),
        lambda dtype: [Case((RATE, rand(2, 3, dtype=dtype), rand(2, 3, dtype=dtype)), outputs=2)],
    ),
    row("AdamOptimizer", adam, adam_cases),
    row("LambOptimizer", lamb, lamb_cases),
    Row("SGD", torch_sgd, torch_sgd_cases, OWN, differentiable=False, tolerance=5e-2, refuses=True),
    Row("Adam", torch_adam, torch_adam_cases, OWN, differentiable=False, tolerance=5e-2, refuses=True),
    Row(
        "PassThrough",
        lambda *xs: tuple(x * 1 for x in xs),
        lambda dtype: [Case((rand(2, 3, dtype=dtype), rand(4, dtype=dtype)), outputs=2)],
        MICROSOFT,
    ),
    row(
        "InplaceClipGradNorm",
        lambda a, b, max_norm=1.0: torch.cat([a, b]) * (max_norm / (torch.cat([a, b]).norm() + 1e-6)).clamp(max=1.0),
        lambda dtype: [Case(tuple(tensors(dtype, 1)), form) for form in ({}, {"max_norm": 50.0})],
        nodes=sequences("InplaceClipGradNorm", 0, 1),
    ),
]
