"""Results and gradients where images lie in memory as channels last do, or as transposed views of one picture do.

The expected values are eager's for the same numbers laid out plainly: with the strides of a transposed view of one
picture PyTorch's own gradients of batch and instance normalisation are wrong.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ortmodule import ORTModule

CHANNELS, SIDE = 8, 6


class OnImages(nn.Module):
    """An operator on images that are windows of (batch, 1, 1, side, side, channels), put together again."""

    def __init__(self, run: Callable[..., torch.Tensor], plain: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(CHANNELS)), nn.Parameter(torch.randn(CHANNELS))
        self.run, self.plain = run, plain

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        images = windows.permute(0, 5, 1, 3, 2, 4).reshape(-1, CHANNELS, SIDE, SIDE)
        if self.plain:
            images = images.clone(memory_format=torch.contiguous_format)
        return self.run(images, self.weight, self.bias)


def square(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (weight[None] * bias[:, None])[..., None, None]


OPERATORS: dict[str, Callable[..., torch.Tensor]] = {
    "batch_norm": lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
    "batch_norm, known statistics": lambda x, w, b: F.batch_norm(x, b.detach() * 0, b.detach() * 0 + 1, w, b),
    "batch_norm, then a convolution": lambda x, w, b: F.conv2d(F.batch_norm(x, None, None, w, b, True), square(w, b)),
    "instance_norm": lambda x, w, b: F.instance_norm(x, None, None, w, b),
    "group_norm": lambda x, w, b: F.group_norm(x, 2, w, b),
    "layer_norm": lambda x, w, b: F.layer_norm(x, x.shape[1:]) * w[:, None, None],
    "conv": lambda x, w, b: F.conv2d(x, square(w, b), b),
    "conv, one channel each": lambda x, w, b: F.conv2d(x, w[:, None, None, None], b, groups=CHANNELS),
    "conv_transpose": lambda x, w, b: F.conv_transpose2d(x, square(w, b)),
    "max_pool": lambda x, w, b: F.max_pool2d(x * w[:, None, None], 2),
    "avg_pool": lambda x, w, b: F.avg_pool2d(x * w[:, None, None], 2),
    "adaptive_avg_pool": lambda x, w, b: F.adaptive_avg_pool2d(x, 4) * w[:, None, None],
    "adaptive_max_pool": lambda x, w, b: F.adaptive_max_pool2d(x, 4) * w[:, None, None],
    "interpolate": lambda x, w, b: F.interpolate(x, scale_factor=2, mode="bilinear") * w[:, None, None],
    "pixel_shuffle": lambda x, w, b: F.pixel_shuffle(x * w[:, None, None], 2),
    "reflection": lambda x, w, b: F.pad(x, (1, 1, 1, 1), mode="reflect") * w[:, None, None],
    "prelu": lambda x, w, b: F.prelu(x, w),
    "local_response_norm": lambda x, w, b: F.local_response_norm(x, 3) * w[:, None, None],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float", "double"])
@pytest.mark.parametrize("dy_format", [torch.contiguous_format, torch.channels_last], ids=["plain", "last"])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", OPERATORS)
def test_gradients(name: str, batch: int, dy_format: torch.memory_format, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ours, eager = OnImages(OPERATORS[name], False).to(dtype), OnImages(OPERATORS[name], True).to(dtype)
    eager.load_state_dict(ours.state_dict())
    model = ORTModule(ours)
    windows = torch.randn(batch, 1, 1, SIDE, SIDE, CHANNELS, dtype=dtype)
    mine, theirs = windows.clone().requires_grad_(), windows.clone().requires_grad_()
    y, expected = model(mine), eager(theirs)
    assert model.report().fallback == "none"
    dy = torch.randn(expected.shape, dtype=dtype)
    y.backward(dy.contiguous(memory_format=dy_format))
    expected.backward(dy)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(y, expected, **tolerance)
    torch.testing.assert_close(mine.grad, theirs.grad, **tolerance)
    for (key, p), q in zip(ours.named_parameters(), eager.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), key
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, **tolerance)


class EverySecond(nn.Module):
    """Batch normalisation of rows whose numbers per channel lie apart in memory."""

    def __init__(self, training: bool, plain: bool) -> None:
        super().__init__()
        self.numbers = nn.Parameter(torch.rand(CHANNELS, 2) + 0.5)
        self.register_buffer("statistics", torch.rand(CHANNELS, 2) + 0.5)
        self.batch, self.plain = training, plain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, mean = self.numbers[:, 0], self.statistics[:, 0]
        if self.plain:
            scale, mean = scale.contiguous(), mean.contiguous()
        return F.batch_norm(x, None if self.batch else mean, None if self.batch else mean, scale, scale, self.batch)


@pytest.mark.parametrize("training", [True, False])
def test_numbers_per_channel_that_lie_apart(training: bool) -> None:
    ours, eager = (EverySecond(training, plain).double() for plain in (False, True))
    eager.load_state_dict(ours.state_dict())
    x, dy = torch.randn(5, CHANNELS, dtype=torch.double), torch.randn(5, CHANNELS, dtype=torch.double)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    ORTModule(ours)(mine).backward(dy)
    eager(theirs).backward(dy)
    torch.testing.assert_close(mine.grad, theirs.grad)
    torch.testing.assert_close(ours.numbers.grad, eager.numbers.grad)
