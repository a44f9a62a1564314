"""Rows of the losses of ONNX Runtime's training graphs with their gradient operators, and of View and
BroadcastGradientArgs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ..table import Case, Row, ints, rand
from .gradients import gradients, row

Tensor = torch.Tensor
MICROSOFT = "com.microsoft"
REDUCTIONS = ("mean", "sum", "none")


def reduced(losses: Tensor, total: Tensor | float, reduction: str) -> Tensor:
    return {"none": losses, "sum": losses.sum(), "mean": losses.sum() / total}[reduction]


def wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.bfloat16 else x


# -- classes on the last axis ------------------------------------------------------------------------------------------


def distribution(logits: Tensor, label: Tensor, reduction: str = "mean") -> tuple[Tensor, Tensor]:
    log_prob = wide(logits).log_softmax(-1)
    losses = -(log_prob * label).sum(-1)
    return reduced(losses, losses.numel(), reduction).to(logits.dtype), log_prob.to(logits.dtype)


def sparse(
    logits: Tensor, label: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> tuple[Tensor, Tensor]:
    log_prob = wide(logits).log_softmax(-1)
    weight = torch.ones(label.shape, dtype=log_prob.dtype) if weight is None else weight.to(log_prob.dtype)
    losses = -log_prob.gather(-1, label.long()[..., None])[..., 0] * weight
    return reduced(losses, weight.sum(), reduction).to(logits.dtype), log_prob.to(logits.dtype)


def distribution_cases(dtype: torch.dtype) -> list[Case]:
    logits, label = rand(3, 4, 5, dtype=dtype), rand(3, 4, 5, dtype=dtype).softmax(-1)
    hot = F.one_hot(ints(1, 0, 4, 4), 5).to(dtype)
    return [
        *(Case((logits, label), {"reduction": r}, outputs=2) for r in REDUCTIONS),
        Case((rand(4, 5, dtype=dtype), hot)),
        Case((rand(5, dtype=dtype), hot[0])),
    ]


def sparse_cases(dtype: torch.dtype) -> list[Case]:
    logits, label = rand(3, 4, 5, dtype=dtype), torch.randint(0, 5, (3, 4))
    weight = rand(3, 4, dtype=dtype, low=0.5, high=1.5)
    return [
        *(Case((logits, label, weight), {"reduction": r}, outputs=2) for r in REDUCTIONS),
        *(Case((logits, label.int()), {"reduction": r}) for r in REDUCTIONS),
    ]


# -- classes on the second axis ----------------------------------------------------------------------------------------


def likelihood(
    x: Tensor, target: Tensor, weight: Tensor | None = None, ignored: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    ignore_index = -100 if ignored is None else int(ignored)
    return F.nll_loss(x.contiguous(), target.long(), weight, ignore_index=ignore_index, reduction=reduction)


def likelihood_cases(dtype: torch.dtype) -> list[Case]:
    x, target, weight = rand(6, 4, dtype=dtype), ints(0, 3, 1, 2, 1, 0), rand(4, dtype=dtype, low=0.5)
    planes = torch.randint(0, 4, (2, 3, 2))
    return [
        *(Case((x, target), {"reduction": r}) for r in REDUCTIONS),
        *(Case((x, target, weight, torch.tensor(1)), {"reduction": r}) for r in REDUCTIONS),
        Case((rand(2, 4, 3, 2, dtype=dtype), planes.int(), None, torch.tensor(2))),
    ]


# -- gradients from log-probabilities ----------------------------------------------------------------------------------


def from_log_prob(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The gradient of `loss` by the logits; log-probabilities are logits of themselves."""

    def reference(dy: Tensor, log_prob: Tensor, *rest: Tensor, **attributes: Any) -> Tensor:
        (dx,) = gradients(lambda v: loss(v, *rest, **attributes), wide(log_prob), dy=wide(dy))
        return dx.to(log_prob.dtype)

    return reference


def fixed(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Labels and weights are constants to the gradient."""
    return lambda v, *rest, **attributes: loss(v, *rest, **attributes)[0]


def second_axis(
    v: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean", ignore_index: int = -100
) -> Tensor:
    weight = weight if weight is None else wide(weight)
    return F.cross_entropy(v, target.long(), weight, ignore_index=ignore_index, reduction=reduction)


def internal_grad(
    dy: Tensor,
    log_prob: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignored: Tensor | None = None,
    bias: Tensor | None = None,
    reduction: str = "mean",
    output_type: torch.dtype | None = None,
) -> Tensor:
    how = {"reduction": reduction, "ignore_index": -100 if ignored is None else int(ignored)}
    (dx,) = gradients(lambda v: second_axis(v, target, weight, **how), wide(log_prob), dy=wide(dy))
    return (dx if bias is None else dx + bias).to(output_type or log_prob.dtype)


def with_log_prob(cases: Callable[[torch.dtype], list[Case]], axis: int) -> Callable[[torch.dtype], list[Case]]:
    """dY and log-probabilities in front of what the loss takes beside its first input."""

    def made(dtype: torch.dtype) -> list[Case]:
        out = []
        for case in cases(dtype):
            x, label, *rest = case.inputs
            assert x is not None and label is not None
            shape = () if case.attributes.get("reduction", "mean") != "none" else (*x.shape[:axis], *x.shape[axis:][1:])
            if axis == -1 and shape:
                shape = x.shape[:-1]
            log_prob = wide(x).log_softmax(axis).to(dtype)
            out.append(Case((rand(*shape, dtype=dtype), log_prob, label, *rest), case.attributes))
        return out

    return made


def loss_grad_cases(dtype: torch.dtype) -> list[Case]:
    """ignore_index is an attribute here."""
    out = []
    for case in with_log_prob(likelihood_cases, 1)(dtype):
        *inputs, ignored = (*case.inputs, None, None)[:5]
        attributes = {**case.attributes, **({} if ignored is None else {"ignore_index": int(ignored)})}
        out.append(Case(tuple(inputs[: 4 if inputs[3] is not None else 3]), attributes))
    return out


def internal_grad_cases(dtype: torch.dtype) -> list[Case]:
    out = with_log_prob(likelihood_cases, 1)(dtype)
    dy, log_prob, target = out[0].inputs[:3]
    assert log_prob is not None
    bias = rand(*log_prob.shape, dtype=dtype)
    return [*out, Case((dy, log_prob, target, None, None, bias)), Case(out[0].inputs, {"output_type": torch.float32})]


# -- shapes ------------------------------------------------------------------------------------------------------------


def broadcast_axes(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    rank = max(len(a), len(b))
    shapes = [[1] * (rank - len(s)) + s.tolist() for s in (a, b)]
    sides = []
    for side, given in enumerate((a, b)):
        mine, other = shapes[side], shapes[1 - side]
        axes = [k for k in range(rank) if k < rank - len(given) or (mine[k] == 1 != other[k])]
        sides.append(ints(*reversed(axes)))
    return sides[0], sides[1]


def broadcast_cases(_: torch.dtype) -> list[Case]:
    pairs = [((2, 3), (3,)), ((2, 1, 4), (3, 1)), ((), (2, 3)), ((2, 3), (2, 3)), ((1, 1), (1,)), ((0, 1), (1, 5))]
    values = [(ints(*a), ints(*b)) for a, b in pairs]
    return [Case(v, outputs=2) for v in values] + [Case(values[1], {}, (0, 1), outputs=2)]


def view(x: Tensor, *shapes: Tensor) -> tuple[Tensor, ...]:
    parts = x.flatten().split([int(s.prod()) for s in shapes])
    return tuple(part.reshape(s.tolist()) for part, s in zip(parts, shapes, strict=True))


def view_cases(dtype: torch.dtype) -> list[Case]:
    x = rand(4, 6, dtype=dtype)
    return [
        Case((x, ints(2, 3), ints(3, 1, 4), ints(6)), {}, (1, 2, 3), outputs=3),
        Case((x, ints(0, 3), ints(24)), {}, (1, 2), outputs=2),
        Case((x, ints(2, 3), ints(18)), outputs=2),
    ]


LOSS: dict[str, Any] = {"tolerance": 5e-2, "refuses": True}
SIZED = ("size",)  # log-probabilities belong to all their classes
ROWS = [
    Row("SoftmaxCrossEntropy", distribution, distribution_cases, MICROSOFT, **LOSS),
    Row("SparseSoftmaxCrossEntropy", sparse, sparse_cases, grads=(0,), **LOSS),
    Row("NegativeLogLikelihoodLossInternal", likelihood, likelihood_cases, MICROSOFT, grads=(0,), **LOSS),
    Row("NegativeLogLikelihoodLossInternal2", likelihood, likelihood_cases, MICROSOFT, grads=(0,), **LOSS),
    row(
        "SoftmaxCrossEntropyGrad",
        from_log_prob(fixed(distribution)),
        with_log_prob(distribution_cases, -1),
        no_forms=SIZED,
    ),
    Row(
        "SparseSoftmaxCrossEntropyGrad",
        from_log_prob(fixed(sparse)),
        with_log_prob(sparse_cases, -1),
        differentiable=False,
        no_forms=SIZED,
        **LOSS,
    ),
    row("SoftmaxCrossEntropyLossGrad", from_log_prob(second_axis), loss_grad_cases, no_forms=SIZED),
    row("SoftmaxCrossEntropyLossInternalGrad", internal_grad, internal_grad_cases, no_forms=SIZED),
    Row("BroadcastGradientArgs", broadcast_axes, broadcast_cases, MICROSOFT, differentiable=False, no_forms=("size",)),
    Row("View", view, view_cases, MICROSOFT, refuses=True),
]
