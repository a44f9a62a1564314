"""The models that the benchmarks train: hand-written, random weights, the loss inside forward.

Why our own: sizes stay fixed whatever a model library changes, nothing is downloaded, and every runner sees exactly the
same module. They are written as users write them (explicit RMSNorm in fp32, tied heads, fused query-key-value), not
for any runner's benefit.
Not here: timing (worker.py), or the models that the tests train (tests/zoo.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F

Batch = tuple[torch.Tensor, ...]
Result = torch.Tensor | dict[str, torch.Tensor]


class Attention(nn.Module):
    """Self-attention over x[batch, sequence, width]; `rotary`: None or (cos, sin), each [sequence, head width]."""

    def __init__(self, width: int, heads: int, *, causal: bool, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.project_in = nn.Linear(width, 3 * width, bias=bias)
        self.project_out = nn.Linear(width, width, bias=bias)

    def forward(
        self, x: torch.Tensor, rotary: Batch | None = None, visible: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`visible`: bool[batch, 1, 1, sequence], the keys that may be attended to."""
        batch, length, width = x.shape
        heads = self.project_in(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, dropout_p=p, is_causal=self.causal)
        return self.project_out(y.transpose(1, 2).reshape(batch, length, width))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of x[..., sequence, head width], in x's type."""
    left, right = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-right, left), dim=-1) * sin).to(x.dtype)


class Feedforward(nn.Module):
    def __init__(self, width: int, approximate: str = "none") -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.approximate = approximate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


class EncoderLayer(nn.Module):
    """BERT's layer: the norm follows the residual sum."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, causal=False, dropout=dropout)
        self.feedforward = Feedforward(width)
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, visible: torch.Tensor | None = None) -> torch.Tensor:
        x = self.norm1(x + self.drop(self.attention(x, visible=visible)))
        return self.norm2(x + self.drop(self.feedforward(x)))


class LanguageModel(nn.Module):
    """Ends in scores over a vocabulary and their loss; `with_logits`: both are returned."""

    with_logits = False

    def result(self, scores: torch.Tensor, labels: torch.Tensor) -> Result:
        loss = F.cross_entropy(scores.flatten(0, 1).float(), labels.flatten())
        return {"loss": loss, "logits": scores} if self.with_logits else loss


class Bert(LanguageModel):
    """Masked language model with a head tied to the word embedding; labels of -100 do not count.

    `mask`[batch, sequence]: 1 for a token, 0 for padding, as tokenizers give it.
    """

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int, length: int, dropout: float) -> None:
        super().__init__()
        self.words, self.segments = nn.Embedding(vocabulary, width), nn.Embedding(2, width)
        self.positions = nn.Embedding(length, width)
        self.norm, self.drop = nn.LayerNorm(width, eps=1e-12), nn.Dropout(dropout)
        self.layers = nn.ModuleList(EncoderLayer(width, heads, dropout) for _ in range(layers))
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, eps=1e-12))
        self.head = nn.Linear(width, vocabulary)
        self.head.weight = self.words.weight

    def forward(
        self, ids: torch.Tensor, segments: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor | None = None
    ) -> Result:
        visible = None if mask is None else mask.bool()[:, None, None, :]
        places = torch.arange(ids.size(1), device=ids.device)
        x = self.drop(self.norm(self.words(ids) + self.segments(segments) + self.positions(places)))
        for layer in self.layers:
            x = layer(x, visible)
        return self.result(self.head(self.transform(x)), labels)


class PreNormLayer(nn.Module):
    """GPT-2's and ViT's layer: the norm precedes each branch."""

    def __init__(self, width: int, heads: int, *, causal: bool, approximate: str) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, causal=causal)
        self.norm2, self.feedforward = nn.LayerNorm(width), Feedforward(width, approximate)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feedforward(self.norm2(x))


class Gpt2(LanguageModel):
    """Decoder with a tied head and no dropout."""

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(PreNormLayer(width, heads, causal=True, approximate="tanh") for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> Result:
        x = self.tokens(ids) + self.positions(torch.arange(ids.size(1), device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return self.result(self.head(self.norm(x)), labels)


class RootMeanSquareNorm(nn.Module):
    """As the published Llama code has it: statistics in fp32, whatever the input's type."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)


class LlamaLayer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = RootMeanSquareNorm(width), RootMeanSquareNorm(width)
        self.attention = Attention(width, heads, causal=True, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor, rotary: Batch) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), rotary)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(LanguageModel):
    """Decoder with rotary positions, gated feed-forward and a head of its own."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int, inner: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads, inner) for _ in range(layers))
        self.norm, self.head = RootMeanSquareNorm(width), nn.Linear(width, vocabulary, bias=False)
        size = width // heads
        frequencies = 10000.0 ** (-torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> Result:
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x, (self.cos, self.sin))
        return self.result(self.head(self.norm(x)), labels)


class Vit(nn.Module):
    """Vision transformer: square patches, a class token, learned positions."""

    def __init__(self, image: int, patch: int, width: int, heads: int, layers: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (image // patch) ** 2 + 1, width))
        self.layers = nn.ModuleList(PreNormLayer(width, heads, causal=False, approximate="none") for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.size(0), -1, -1), x), dim=1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)[:, 0]), labels)


def convolution(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Sequential:
    """A convolution that keeps the size (divided by the stride), without bias, and its BatchNorm."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = convolution(inputs, outputs, 3, stride), convolution(outputs, outputs, 3, 1)
        self.shortcut = convolution(inputs, outputs, 1, stride) if stride != 1 or inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


class ResNet18(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem = convolution(3, width, 7, 2)
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        blocks: list[nn.Module] = []
        for i, (inputs, outputs) in enumerate(zip(sizes, sizes[1:])):
            blocks += [ResidualBlock(inputs, outputs, 2 if i else 1), ResidualBlock(outputs, outputs, 1)]
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(8 * width, classes)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.stem(images)), 3, 2, 1)
        return F.cross_entropy(self.head(self.blocks(x).mean((2, 3))), labels)


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        layers = [nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.layers(x), labels)


# -- batches -----------------------------------------------------------------------------------------------------------


def text(batch: int, length: int, vocabulary: int) -> Batch:
    return torch.randint(vocabulary, (batch, length)), torch.randint(vocabulary, (batch, length))


def masked_text(batch: int, length: int, vocabulary: int) -> Batch:
    """Ids, segments, and labels of which 15 % count."""
    ids, labels = text(batch, length, vocabulary)
    counted = torch.rand(batch, length) < 0.15
    return ids, torch.randint(2, (batch, length)), torch.where(counted, labels, -100)


def lengths(batch: int, length: int) -> torch.Tensor:
    """Lengths of a batch that was padded to its longest text, of which 40 % is padding: full, then evenly down."""
    shares = torch.linspace(1.0, 0.2, batch) if batch > 2 else torch.tensor([1.0, 0.2])[:batch]
    return (shares * length).round().long()


def padding_mask(batch: int, length: int) -> torch.Tensor:
    return (torch.arange(length) < lengths(batch, length)[:, None]).long()


def padded_masked_text(batch: int, length: int, vocabulary: int) -> Batch:
    """masked_text with 40 % padding: 15 % of the tokens have labels; the mask comes last."""
    ids, segments, labels = masked_text(batch, length, vocabulary)
    mask = padding_mask(batch, length)
    return ids * mask, segments, torch.where(mask.bool(), labels, -100), mask


def padded_text(batch: int, length: int, vocabulary: int) -> Batch:
    """text with 40 % padding at the right, whose labels do not count."""
    ids, labels = text(batch, length, vocabulary)
    mask = padding_mask(batch, length)
    return ids * mask, torch.where(mask.bool(), labels, -100)


def pictures(batch: int, size: int, classes: int) -> Batch:
    return torch.randn(batch, 3, size, size), torch.randint(classes, (batch,))


def vectors(batch: int, width: int) -> Batch:
    return torch.randn(batch, width), torch.randint(width, (batch,))


@dataclasses.dataclass(frozen=True)
class Entry:
    """How a model and its batch are made, and the same model small enough for a smoke test."""

    title: str
    module: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    small_module: Callable[[], nn.Module]
    small_batch: Callable[[], Batch]
    realistic_batch: Callable[[], Batch] | None = None
    small_realistic_batch: Callable[[], Batch] | None = None


def _entry(title: str, module: type[nn.Module], size: tuple, batch: Callable, shape: tuple, small: tuple) -> Entry:
    small_size, small_shape = small
    realistic = {masked_text: padded_masked_text, text: padded_text}.get(batch)
    return Entry(
        title,
        lambda: module(*size),
        lambda: batch(*shape),
        lambda: module(*small_size),
        lambda: batch(*small_shape),
        realistic and (lambda: realistic(*shape)),
        realistic and (lambda: realistic(*small_shape)),
    )


MODELS: dict[str, Entry] = {
    "mlp": _entry("MLP 64-64-64, batch 32", Mlp, (64,), vectors, (32, 64), ((64,), (32, 64))),
    "tiny": _entry(
        "transformer 64x2, 8x32, V=1000", Gpt2, (1000, 64, 4, 2, 32), text, (8, 32, 1000),
        ((100, 32, 2, 1, 16), (2, 16, 100)),
    ),
    "bert": _entry(
        "BERT 768x4, 4x128, dropout 0.1", Bert, (30522, 768, 12, 4, 128, 0.1), masked_text, (4, 128, 30522),
        ((200, 32, 2, 2, 16, 0.1), (2, 16, 200)),
    ),
    "gpt2": _entry(
        "GPT-2 768x4, 2x256, V=50257", Gpt2, (50257, 768, 12, 4, 256), text, (2, 256, 50257),
        ((200, 32, 2, 2, 16), (2, 16, 200)),
    ),
    "llama": _entry(
        "Llama-like 768x4, 2x256, V=32000", Llama, (32000, 768, 12, 4, 2048, 256), text, (2, 256, 32000),
        ((200, 32, 2, 2, 64, 16), (2, 16, 200)),
    ),
    "vit": _entry(
        "ViT 384x6, 8x3x224x224", Vit, (224, 16, 384, 6, 6, 1000), pictures, (8, 224, 1000),
        ((32, 8, 32, 2, 2, 10), (2, 32, 10)),
    ),
    "resnet18": _entry(
        "ResNet-18, 32x3x64x64", ResNet18, (64, 1000), pictures, (32, 64, 1000), ((8, 10), (4, 32, 10)),
    ),
}  # fmt: skip


def build(name: str, *, small: bool = False, realistic: bool = False, logits: bool = False) -> tuple[nn.Module, Batch]:
    """The model `name` in training mode and one batch for it, on the CPU in fp32; the same weights and data each time.

    `realistic`: texts of different lengths, padded; `logits`: the model returns {"loss", "logits"}, as those of model
    libraries do, instead of its loss.

    Raises:
        KeyError: no such model, or it has no such form.
    """
    entry = MODELS[name]
    if realistic and entry.realistic_batch is None:
        raise KeyError(f"{name} has no realistic batches")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = (entry.small_module if small else entry.module)()
        if logits:
            if not isinstance(module, LanguageModel):
                raise KeyError(f"{name} returns its loss alone")
            module.with_logits = True
        torch.manual_seed(1)
        if realistic:
            return module.train(), (entry.small_realistic_batch if small else entry.realistic_batch)()
        return module.train(), (entry.small_batch if small else entry.batch)()
