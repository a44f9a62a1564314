"""Group K: operators as users write them, their results and gradients through the whole wrapper."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support import Lambda

from .table import Row, call, parity, rand, rows_of, run


class Layered(nn.Module):
    """A linear layer of 12 features in front of a layer, in the shape that the layer wants."""

    def __init__(self, shape: tuple[int, ...], *layers: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.layers, self.shape = nn.Linear(12, 12), nn.Sequential(*layers), shape

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(self.linear(x).reshape(-1, *self.shape))


class Masked(nn.Module):
    """nn.Transformer's layers with a causal mask, whose values they look at where nobody says that it is causal."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), 2)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8, 0.0, batch_first=True), 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        memory = self.encoder(x, mask=mask)
        return self.decoder(x, memory, tgt_mask=mask, memory_mask=mask)


torch.manual_seed(0)
LAYERS = {
    "Conv1d": Layered((3, 4), nn.Conv1d(3, 5, 3, padding=1)),
    "Conv2d with stride, groups and dilation": Layered((2, 2, 3), nn.Conv2d(2, 4, 2, stride=1, groups=2)),
    "Conv3d": Layered((1, 2, 2, 3), nn.Conv3d(1, 2, 2)),
    "ConvTranspose1d": Layered((3, 4), nn.ConvTranspose1d(3, 2, 3, stride=2, output_padding=1)),
    "ConvTranspose2d": Layered((2, 2, 3), nn.ConvTranspose2d(2, 3, 2, stride=2)),
    "MaxPool1d": Layered((3, 4), nn.MaxPool1d(2)),
    "MaxPool2d": Layered((2, 2, 3), nn.MaxPool2d(2, stride=1)),
    "AvgPool2d": Layered((2, 2, 3), nn.AvgPool2d(2, stride=1)),
    "AdaptiveAvgPool2d": Layered((2, 2, 3), nn.AdaptiveAvgPool2d(1)),
    "BatchNorm": Layered((3, 4), nn.BatchNorm1d(3)),
    "LayerNorm": Layered((3, 4), nn.LayerNorm((3, 4))),
    "RMSNorm": Layered((3, 4), nn.RMSNorm(4)),
    "GroupNorm": Layered((4, 3), nn.GroupNorm(2, 4)),
    "InstanceNorm": Layered((3, 4), nn.InstanceNorm1d(3, affine=True)),
    "LSTM": Layered((3, 4), nn.LSTM(4, 5, batch_first=True, bidirectional=True)),
    "GRU": Layered((3, 4), nn.GRU(4, 5, batch_first=True)),
    "TransformerEncoderLayer": Layered((3, 4), nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)),
    "Transformer layers with masks": Layered((3, 4), Masked()),
    "Upsample": Layered((2, 2, 3), nn.Upsample(scale_factor=2, mode="bilinear")),
    "PixelShuffle": Layered((4, 1, 3), nn.PixelShuffle(2)),
    "PReLU": Layered((3, 4), nn.PReLU()),
    "weight norm": Layered((12,), nn.utils.parametrizations.weight_norm(nn.Linear(12, 3))),
}
for name, module in LAYERS.items():
    parity("K", name, module, call(rand(2, 12)), call(rand(3, 12)), rtol=1e-3)

labels = torch.tensor([1, 3, -100])
mask = torch.rand(3, 4) > 0.4
index = torch.tensor([[0, 2], [3, 1], [1, 1]])


def attention(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    q = m.linear(x).view(1, 2, 3, 2)
    return F.scaled_dot_product_attention(q, q * 2, q + 1, is_causal=True)


def embedded(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    return F.embedding(index, m.linear.weight, padding_idx=1).sum(1) + x


OPERATORS: dict[str, Any] = {
    "cross_entropy with ignore_index": lambda m, x: F.cross_entropy(m.linear(x), labels),
    "cross_entropy with label smoothing": lambda m, x: F.cross_entropy(m.linear(x), labels, label_smoothing=0.1),
    "cross_entropy with weights": lambda m, x: F.cross_entropy(
        m.linear(x), labels, weight=m.table + 1, reduction="sum"
    ),
    "binary cross_entropy": lambda m, x: F.binary_cross_entropy_with_logits(m.linear(x), mask.float()),
    "mse, l1 and smooth l1": lambda m, x: (
        F.mse_loss(m.linear(x), x) + F.l1_loss(m.linear(x), x) + F.smooth_l1_loss(m.linear(x), x)
    ),
    "nll_loss of log_softmax": lambda m, x: F.nll_loss(F.log_softmax(m.linear(x), -1), labels.clamp(0)),
    "kl_div": lambda m, x: F.kl_div(F.log_softmax(m.linear(x), -1), F.softmax(x, -1), reduction="batchmean"),
    "embedding with a padding row": embedded,
    "attention": attention,
    "gelu, silu, elu and mish": lambda m, x: F.gelu(m.linear(x)) + F.silu(m.linear(x)) + F.elu(x) + F.mish(m.linear(x)),
    "sigmoid, tanh, relu and leaky_relu": lambda m, x: (
        m.linear(x).sigmoid() * m.linear(x).tanh() + F.relu(m.linear(x)) - F.leaky_relu(m.linear(x), 0.2)
    ),
    "softmax over each axis": lambda m, x: m.linear(x).softmax(0) + m.linear(x).softmax(-1),
    "einsum": lambda m, x: torch.einsum("bi,ji,bk->bjk", x, m.linear.weight, m.linear(x)),
    "matmul of three and of one dimension": lambda m, x: m.linear(x)[None] @ m.linear.weight @ m.table,
    "transpose, permute and T": lambda m, x: (
        m.linear(x).view(3, 2, 2).permute(2, 0, 1).transpose(0, 1) * m.table[1] + (m.linear(x).T.reshape(3, 2, 2))
    ),
    "squeeze, unsqueeze and flatten": lambda m, x: m.linear(x).unsqueeze(1).squeeze(1).unsqueeze(-1).flatten(),
    "chunk and split": lambda m, x: torch.cat([*m.linear(x).chunk(2, -1), *m.linear(x).split([1, 3], -1)[:1]], -1),
    "stack and unbind": lambda m, x: torch.stack(m.linear(x).unbind(-1), 0),
    "index by numbers, slices, None and ellipsis": lambda m, x: m.linear(x)[1:, None, ..., ::2] + m.linear(x)[0, 3],
    "index by tensors and by masks": lambda m, x: m.linear(x)[mask].sum() + m.linear(x)[torch.tensor([2, 0])],
    "gather and scatter": lambda m, x: (
        m.linear(x).gather(1, index).sum(1, keepdim=True) + (torch.zeros(3, 4).scatter(1, index, m.linear(x)[:, :2]))
    ),
    "index_add and index_select": lambda m, x: torch.zeros(4, 4).index_add(0, torch.tensor([0, 1, 1]), m.linear(x)),
    "where and masked_fill": lambda m, x: torch.where(mask, m.linear(x), x).masked_fill(~mask, 2.0),
    "tril and triu": lambda m, x: m.linear(x).tril() + m.linear.weight[:3].triu(1),
    "min, max, argmax and topk": lambda m, x: (
        m.linear(x).max(-1).values + m.linear(x).min(-1)[0] + m.linear(x).topk(2).values.sum(-1),
        m.linear(x).argmax(-1),
    ),
    "maximum, minimum and clamp": lambda m, x: (
        torch.maximum(m.linear(x), x) + torch.minimum(m.linear(x), x).clamp(-1, 1)
    ),
    "sum, mean, var, std and norm": lambda m, x: (
        m.linear(x).sum(1) + m.linear(x).mean(1) + m.linear(x).var(1) + m.linear(x).std(1) + m.linear(x).norm(dim=1)
    ),
    "prod, cumsum and logsumexp": lambda m, x: (
        m.linear(x).prod(1) + m.linear(x).cumsum(1).sum(1) + (m.linear(x).logsumexp(1))
    ),
    "pow, sqrt, exp, log and reciprocal": lambda m, x: (
        m.linear(x).pow(2) + m.linear(x).abs().add(1).sqrt().log() + m.linear(x).exp().reciprocal() + 2 ** m.linear(x)
    ),
    "sin, cos, atan and erf": lambda m, x: (
        m.linear(x).sin() * m.linear(x).cos() + m.linear(x).atan() + m.linear(x).erf()
    ),
    "casts there and back": lambda m, x: m.linear(x).double().to(torch.float32) * m.linear(x).to(torch.int64).float(),
    "pad and roll": lambda m, x: F.pad(m.linear(x), (1, 2), value=0.5)[:, 1:5].roll(1, 0),
    "repeat, expand and repeat_interleave": lambda m, x: (
        m.linear(x).repeat(2, 1) + m.linear(x)[:1].expand(6, 4) + (m.linear(x).repeat_interleave(2, 0))
    ),
    "interpolate to a size": lambda m, x: F.interpolate(m.linear(x)[None, None], size=(5, 7), mode="bicubic"),
    "arange, ones_like and full": lambda m, x: (
        m.linear(x) * torch.arange(4) + torch.ones_like(x) + torch.full((4,), 0.5)
    ),
    "sort and flip": lambda m, x: m.linear(x).sort(-1).values.flip(0),
    "one_hot and bucketize": lambda m, x: F.one_hot(labels.clamp(0), 4) * m.linear(x),
    "bmm and baddbmm": lambda m, x: torch.bmm(m.linear(x)[:, None], m.linear(x)[..., None]).flatten(),
    "cdist and cosine_similarity": lambda m, x: torch.cdist(m.linear(x), x) + F.cosine_similarity(m.linear(x), x),
    "fft": lambda m, x: torch.fft.rfft(m.linear(x)).abs(),
    "a solve and a determinant": lambda m, x: torch.linalg.solve(m.linear.weight + 3 * torch.eye(4), x.T).T,
    "bincount-free histogram by comparison": lambda m, x: (
        (m.linear(x)[..., None] > m.table).float().mean() + m.linear(x)
    ),
    "logical operators": lambda m, x: ((x > 0) & ~mask | (x < -1)).float() * m.linear(x),
    "in-place operators": lambda m, x: m.linear(x).mul_(2).add_(x).relu_(),
    "writes into slices": lambda m, x: m.linear(x).clone().index_put_((torch.tensor([1]),), x[:1]),
}
for name, forward in OPERATORS.items():
    parity("K", name, forward, call(rand(3, 4)), rtol=1e-3)

# Of these torch has no shape rule: a second size must run on the second graph, and so must a third.
scales, zeros = torch.full((4,), 0.05), torch.zeros(4, dtype=torch.int32)
WITHOUT_SHAPES: dict[str, Any] = {
    "fake_quantize": lambda m, x: F.linear(
        torch.fake_quantize_per_tensor_affine(m.linear(x), 0.1, 0, -128, 127),
        torch.fake_quantize_per_channel_affine(m.linear.weight, scales, zeros, 0, -128, 127),
    ),
    "a sample of Dirichlet's distribution": lambda m, x: torch.distributions.Dirichlet(m.linear(x).exp()).rsample(),
    "a sample of a beta distribution": lambda m, x: torch.distributions.Beta(m.linear(x).exp(), m.table + 1).rsample(),
}
for name, forward in WITHOUT_SHAPES.items():
    parity("K", name, forward, *(call(rand(n, 4)) for n in (3, 5, 6)), exports_at_most=2, rtol=1e-3)

parity(
    "K", "einsum with an ellipsis and a diagonal",
    lambda m, x: (torch.einsum("...ii->...", m.linear(x)), torch.einsum("...i->i", m.linear(x))), call(rand(2, 4, 4)),
)  # fmt: skip
parity("K", "fill: zeros for a gradient, not none", lambda m, x: torch.fill(m.linear(x), 2.0), call(rand(3, 4)))
parity("K", "copy_ over all of a value", lambda m, x: m.linear(x).copy_(x.sum()), call(rand(3, 4)))
parity(
    "K", "all of a value set", lambda m, x: (h := m.linear(x), h.__setitem__(slice(None), x.sum()))[0], call(rand(3, 4))
)
parity("K", "fill_ and zero_", lambda m, x: (m.linear(x).fill_(2.0), m.linear(x).zero_()), call(rand(3, 4)))


@pytest.mark.parametrize("row", rows_of("K"))
def test_operator(row: Row, request: pytest.FixtureRequest) -> None:
    run(row, request)
