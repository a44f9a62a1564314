"""Losses, and the similarities that losses are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..emitter import Emitter
from ..formula import Formula
from ..onnx_graph import ORTMODULE, Value
from ..registry import translates
from .shape import axis_of

_REDUCTIONS = ("none", "mean", "sum")


@translates("cross_entropy_loss")
def cross_entropy(
    c: Emitter,
    self: Value,
    target: Value,
    weight: Value | None = None,
    reduction: int = 1,
    ignore_index: Any = -100,
    label_smoothing: float = 0.0,
) -> Any:
    if self.rank < 2 or not isinstance(ignore_index, int) or weight is not None and weight.dtype != self.dtype:
        return NotImplemented
    if target.dtype.is_floating_point:
        return _of_probabilities(c, self, target, weight, reduction, label_smoothing)
    if label_smoothing != 0:
        return _smoothed(c, self, target, weight, reduction, ignore_index, label_smoothing)
    return c.emit(
        "SoftmaxCrossEntropyLoss", self, target, weight, ignore_index=ignore_index, reduction=_REDUCTIONS[reduction]
    )


def _per_class(c: Emitter, weight: Value, rank: int) -> Value:
    """`weight` [classes] as [classes, 1, ..], to lie over [batch, classes, ..]."""
    behind = list(range(1, rank - 1))
    shape = (*weight.shape, *[1] * len(behind))
    return c.helper("Unsqueeze", [weight, c.sizes(behind)], weight.dtype, shape) if behind else weight


def _share(f: Formula, smoothing: float, x: Value) -> Any:
    """What smoothing gives each class of `x` [batch, classes, ..]."""
    classes = x.shape[1]
    return smoothing / classes if isinstance(classes, int) else f("Div", smoothing, f.c.builder.size(classes))


def _of_probabilities(
    c: Emitter, x: Value, target: Value, weight: Value | None, reduction: int, smoothing: float
) -> Any:
    if target.dtype != x.dtype or x.shape[1] == 0:
        return NotImplemented
    f = Formula(c)
    logs = c.helper("LogSoftmax", [x], x.dtype, x.shape, axis=1)
    if smoothing > 0:
        target = f("Add", f("Mul", target, 1 - smoothing), _share(f, smoothing, x))
    terms = f("Mul", logs, target)
    if weight is not None:
        terms = f("Mul", terms, _per_class(c, weight, x.rank))
    if reduction == 2:
        return c.emit("Neg", c.helper("ReduceSum", [terms], x.dtype, (), keepdims=0))
    shape = (x.shape[0], *x.shape[2:])
    rows = c.helper("ReduceSum", [terms, c.sizes([1])], x.dtype, shape, keepdims=0)
    if reduction == 1:
        rows = c.helper("ReduceMean", [rows], x.dtype, (), keepdims=0)
    return c.emit("Neg", rows)


def _smoothed(
    c: Emitter, x: Value, target: Value, weight: Value | None, reduction: int, ignored: int, smoothing: float
) -> Any:
    """(1 - s) of the loss and s of the mean over the classes, of the places that are not ignored."""
    if x.shape[1] == 0:
        return NotImplemented
    f = Formula(c)
    logs = c.helper("LogSoftmax", [x], x.dtype, x.shape, axis=1)
    found: Sequence[Value | None] = [logs, target, weight]
    shape = c.shape
    loss = c.helper(
        "NegativeLogLikelihoodLoss", found, x.dtype, shape, ignore_index=ignored, reduction=_REDUCTIONS[reduction]
    )
    labels = c.cast(target, torch.int64)
    valid = c.helper("Not", [c.helper("Equal", [labels, c.const(ignored, torch.int64)], torch.bool, labels.shape)],
                     torch.bool, labels.shape)  # fmt: skip
    terms = logs if weight is None else f("Mul", logs, _per_class(c, weight, x.rank))
    rows = c.helper("ReduceSum", [terms, c.sizes([1])], x.dtype, labels.shape, keepdims=0)
    spread = f("Where", valid, rows, 0)
    if reduction != 0:
        spread = c.helper("ReduceSum", [spread], x.dtype, (), keepdims=0)
    if reduction == 1:
        counts = c.cast(valid, torch.int64)
        if weight is not None:
            known = c.helper("Where", [valid, labels, c.const(0, torch.int64)], torch.int64, labels.shape)
            weights = c.helper("Gather", [weight, known], weight.dtype, labels.shape, axis=0)
            counts = f("Where", valid, weights, 0)
        spread = f("Div", spread, c.helper("ReduceSum", [counts], counts.dtype, (), keepdims=0))
    return f.result("Sub", f("Mul", loss, 1 - smoothing), f("Mul", spread, _share(f, smoothing, x)))


@translates("nll_loss_nd", "nll_loss", "nll_loss2d")
def nll_loss(
    c: Emitter, self: Value, target: Value, weight: Value | None = None, reduction: int = 1, ignore_index: Any = -100
) -> Any:
    if self.rank < 2 or not isinstance(ignore_index, int):
        return NotImplemented
    return c.emit(
        "NegativeLogLikelihoodLoss", self, target, weight, ignore_index=ignore_index, reduction=_REDUCTIONS[reduction]
    )


def _reduced(f: Formula, losses: Value, reduction: int) -> Value:
    """The node's result from the loss of each element."""
    if reduction == 0:
        return f.c.cast(losses, f.c.dtype, f.c.name)
    return f.result("ReduceMean" if reduction == 1 else "ReduceSum", losses, keepdims=0)


@translates("mse_loss")
def mse_loss(c: Emitter, self: Value, target: Value, reduction: int = 1) -> Any:
    f = Formula(c)
    difference = f("Sub", self, target)
    return _reduced(f, f("Mul", difference, difference), reduction)


@translates("l1_loss")
def l1_loss(c: Emitter, self: Value, target: Value, reduction: int = 1) -> Any:
    f = Formula(c)
    return _reduced(f, f("Abs", f("Sub", self, target)), reduction)


@translates("smooth_l1_loss")
def smooth_l1_loss(c: Emitter, self: Value, target: Value, reduction: int = 1, beta: float = 1.0) -> Any:
    if beta == 0:
        return l1_loss(c, self, target, reduction)
    f = Formula(c, wide=True)
    return _reduced(f, f("Div", _huber(f, self, target, beta), beta), reduction)


@translates("huber_loss")
def huber_loss(c: Emitter, self: Value, target: Value, reduction: int = 1, delta: float = 1.0) -> Any:
    f = Formula(c, wide=True)
    return _reduced(f, _huber(f, self, target, delta), reduction)


def _huber(f: Formula, x: Value, target: Value, delta: float) -> Value:
    """With m = d within +-delta, a constant to the gradient: m (d - m / 2), a parabola that goes on as a line."""
    difference = f("Sub", x, target)
    slope = f("StopGradient", f("Clip", difference, -delta, delta), domain=ORTMODULE, first_order=1)
    return f("Mul", slope, f("Sub", difference, f("Mul", slope, 0.5)))


@translates("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    c: Emitter,
    self: Value,
    target: Value,
    weight: Value | None = None,
    pos_weight: Value | None = None,
    reduction: int = 1,
) -> Any:
    # (1 - t) x - log sigmoid(x), as torch has it to the last infinity, with log sigmoid(x) = min(x, 0) - log(1 +
    # exp(-|x|)) from left to right, which keeps a small loss exact. The gradients of that would cancel themselves out
    # and are written down: sigmoid(x) - t and -x.
    f = Formula(c, wide=True)
    x, t = c.cast(self, f.dtype), c.cast(target, f.dtype)
    below, beyond = f("Min", x, 0), f("Softplus", f("Neg", f("Abs", x)))
    slope, hits, by_target = f("Sigmoid", x), t, f("Neg", x)
    if pos_weight is not None:
        hits = f("Mul", pos_weight, t)
        slope = f("Mul", f("Sub", f("Add", hits, 1), t), slope)
        by_target = f("Sub", f("Sub", f("Min", by_target, 0), beyond), f("Mul", pos_weight, f("Sub", below, beyond)))
        scale = f("Add", f("Mul", f("Sub", pos_weight, 1), t), 1)
        below, beyond = f("Mul", scale, below), f("Mul", scale, beyond)
    value = f("Add", f("Sub", f("Mul", f("Sub", 1, t), x), below), beyond)
    tangent = f("Add", _times(f, x, f("Sub", slope, hits)), _times(f, t, by_target))
    losses = f("WithValue", value, tangent, domain=ORTMODULE)
    return _reduced(f, losses if weight is None else f("Mul", losses, weight), reduction)


def _times(f: Formula, x: Value, slope: Value) -> Value:
    """What has the gradient `slope` at x; its value is of no use."""
    return f("Mul", x, f("StopGradient", slope, domain=ORTMODULE, first_order=1))


@translates("kl_div")
def kl_div(c: Emitter, self: Value, target: Value, reduction: int = 1, *, log_target: bool = False) -> Any:
    f = Formula(c)
    if log_target:
        return _reduced(f, f("Mul", f("Exp", target), f("Sub", target, self)), reduction)
    entropy = f("XLogY", target, target, domain=ORTMODULE)
    return _reduced(f, f("Sub", entropy, f("Mul", target, self)), reduction)


@translates("cosine_similarity")
def cosine_similarity(c: Emitter, x1: Value, x2: Value, dim: int = 1, eps: float = 1e-8) -> Any:
    if not (x1.dtype.is_floating_point and x2.dtype.is_floating_point) or x1.rank != x2.rank or x1.rank == 0:
        return NotImplemented
    f = Formula(c)
    axis = axis_of(dim, x1.rank)
    if x1.shape[axis] != x2.shape[axis]:
        return NotImplemented
    axes = c.sizes([axis])
    directions = []
    for x in (x1, x2):
        x = c.cast(x, c.dtype)
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        length = c.helper("ReduceL2", [x, axes], c.dtype, shape, keepdims=1)
        # The least length replaces the value alone: the gradient is that of the length itself, as in torch.
        directions.append(f("Div", x, f("WithValue", f("Max", length, eps), length, domain=ORTMODULE)))
    return c.emit("ReduceSum", f("Mul", *directions), axes, keepdims=0)
