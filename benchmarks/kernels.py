"""One small module per hand-written or fused kernel of the CPU: what kernel_table.py measures.

A module's inputs are what a training step would hand it: floating-point ones want a gradient. Sizes are those of the
benchmark models' layers; `small` ones are for trying the harness. Not here: the measuring (kernel_table.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from models import RootMeanSquareNorm, rotate
from torch import nn

Tensors = tuple[torch.Tensor, ...]


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


class Projection(nn.Module):
    """Scores of a vocabulary and their cross entropy; labels below 0 are ignored."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(x), labels, ignore_index=-100)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], width: int) -> None:
        super().__init__()
        self.layer = kind(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


@dataclasses.dataclass(frozen=True)
class Kernel:
    """`what` it does; its `module(small)` and `inputs(small)`. Where eager's operators do not say: `touched`, the
    least bytes that must move, and `flops`, the operations of the products, forward and backward."""

    what: str
    module: Callable[[bool], nn.Module]
    inputs: Callable[[bool], Tensors]
    touched: Callable[[Tensors], int] | None = None
    flops: Callable[[Tensors], int] | None = None


def rows(*widths: int, length: int = 4096) -> Callable[[bool], Tensors]:
    """One tensor of `length` rows per width."""
    return lambda small: tuple(torch.randn(8 if small else length, width) for width in widths)


def heads(length: int, count: int, key_heads: int | None = None) -> Callable[[bool], Tensors]:
    """Query, key and value of 8 examples, of size 64 per head."""

    def made(small: bool) -> Tensors:
        n = 16 if small else length
        return tuple(torch.randn(8, h, n, 64) for h in (count, key_heads or count, key_heads or count))

    return made


def with_mask(made: Callable[[bool], Tensors]) -> Callable[[bool], Tensors]:
    """And a mask that hides a third of the keys of each example."""

    def masked(small: bool) -> Tensors:
        q, k, v = made(small)
        visible = torch.ones(q.shape[0], 1, 1, k.shape[2], dtype=torch.bool)
        visible[..., k.shape[2] * 2 // 3 :] = False
        return q, k, v, visible

    return masked


def labelled(width: int, classes: int, ignored: float = 0.0) -> Callable[[bool], Tensors]:
    def made(small: bool) -> Tensors:
        n = 8 if small else 512
        labels = torch.randint(classes, (n,))
        labels[: int(n * ignored)] = -100
        return torch.randn(n, width), labels

    return made


def planes(channels: int, size: int) -> Callable[[bool], Tensors]:
    return lambda small: (torch.randn(2 if small else 32, channels, size, size),)


def attention(**options: object) -> Callable[[bool], nn.Module]:
    return lambda small: Call(lambda q, k, v, *mask: F.scaled_dot_product_attention(q, k, v, *mask, **options))


def attention_flops(share: float = 1.0) -> Callable[[Tensors], int]:
    """Two products forward and four backward, over the `share` of the scores that is seen."""
    return lambda t: int(6 * 2 * t[0].numel() * t[1].shape[2] * share)


def recurrent_flops(gates: int) -> Callable[[Tensors], int]:
    """Two products per step and gate, each with two more in backward."""
    return lambda t: 3 * 2 * 2 * gates * t[0].numel() * t[0].shape[-1]


def rotary(x: torch.Tensor) -> torch.Tensor:
    angles = torch.outer(torch.arange(x.shape[2]), 10000 ** (-torch.arange(0, 64, 2) / 64)).repeat(1, 2)
    return rotate(x, angles.cos(), angles.sin())


def residual(x: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
    return x + F.dropout(branch, 0.1, training=True)


KERNELS = {
    "linear": Kernel("matrix product, bias", lambda s: nn.Linear(768, 768), rows(768, length=1024)),
    "linear_gelu": Kernel("matrix product, bias, GELU", lambda s: nn.Sequential(nn.Linear(768, 3072), nn.GELU()),
                          rows(768, length=1024)),
    "attention": Kernel("attention", attention(), heads(256, 12), flops=attention_flops()),
    "attention_causal": Kernel("causal attention", attention(is_causal=True), heads(256, 12),
                               flops=attention_flops(0.5)),
    "attention_mask": Kernel("attention with a padding mask", attention(), with_mask(heads(256, 12)),
                             flops=attention_flops(2 / 3)),
    "attention_dropout": Kernel("attention with dropout", attention(dropout_p=0.1), heads(256, 12),
                                flops=attention_flops()),
    "attention_grouped": Kernel("attention of 12 query and 4 key heads", attention(enable_gqa=True), heads(256, 12, 4),
                                flops=attention_flops()),
    "rotary": Kernel("rotary embedding", lambda s: Call(rotary), lambda s: heads(512, 12)(s)[:1]),
    "layer_norm": Kernel("layer normalisation", lambda s: nn.LayerNorm(768), rows(768)),
    "rms_norm": Kernel("root-mean-square normalisation", lambda s: RootMeanSquareNorm(768), rows(768)),
    "batch_norm": Kernel("batch normalisation", lambda s: nn.BatchNorm2d(64), planes(64, 32)),
    "batch_norm_deep": Kernel("batch normalisation of 2x2 planes", lambda s: nn.BatchNorm2d(512), planes(512, 2)),
    "softmax": Kernel("softmax", lambda s: nn.Softmax(-1), rows(1024)),
    "gelu": Kernel("GELU", lambda s: nn.GELU(), rows(3072)),
    "gelu_tanh": Kernel("GELU by tanh", lambda s: nn.GELU("tanh"), rows(3072)),
    "swiglu": Kernel("fused: SiLU, product", lambda s: Call(lambda a, b: F.silu(a) * b), rows(2048, 2048)),
    "residual_dropout": Kernel("fused: dropout, sum", lambda s: Call(residual), rows(768, 768)),
    "elementwise": Kernel("fused: chain of six operators",
                          lambda s: Call(lambda a, b: torch.tanh(a * b + a).mul(0.5).exp() - b), rows(1024, 1024)),
    "dropout": Kernel("dropout", lambda s: nn.Dropout(0.1), rows(3072)),
    "bias_gradient": Kernel("sum over rows", lambda s: Call(lambda x: x.sum(0)), rows(3072)),
    "embedding": Kernel("embedding", lambda s: nn.Embedding(30522, 768), lambda s: (torch.randint(30522, (8, 512)),),
                        lambda t: 4 * (3 * 4096 + 30522) * 768),
    "cross_entropy": Kernel("cross entropy", lambda s: Call(F.cross_entropy), labelled(8192, 8192)),
    "projection_loss": Kernel("vocabulary projection, cross entropy", lambda s: Projection(768, 1024 if s else 32000),
                              lambda s: labelled(768, 1024 if s else 32000)(s)),
    "projection_masked": Kernel("the same, 85 % of the labels ignored", lambda s: Projection(768, 1024 if s else 32000),
                                lambda s: labelled(768, 1024 if s else 32000, 0.85)(s),
                                flops=lambda t: 3 * 2 * 77 * 768 * 32000),
    "max_pool": Kernel("maximum of 3x3 windows", lambda s: nn.MaxPool2d(3, 2, 1), planes(64, 32)),
    "convolution": Kernel("3x3 convolution of 4x4 planes", lambda s: nn.Conv2d(256, 256, 3, padding=1), planes(256, 4)),
    "lstm": Kernel("LSTM", lambda s: Recurrent(nn.LSTM, 256), lambda s: (torch.randn(64, 2 if s else 32, 256),),
                   flops=recurrent_flops(4)),
    "gru": Kernel("GRU", lambda s: Recurrent(nn.GRU, 256), lambda s: (torch.randn(64, 2 if s else 32, 256),),
                  flops=recurrent_flops(3)),
}  # fmt: skip
