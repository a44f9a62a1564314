"""Our own kernels for pictures against PyTorch: maxima of windows to the bit, small planes convolved by products,
bfloat16 convolved in floats, batch normalisation of planes.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ortmodule import ORTModule

from .engine import run_engine
from .table import Case, Row

POOL = Row("MaxPool", F.max_pool2d, lambda dtype: [])

# Sizes of x, kernel, strides, pads, dilations.
WINDOWS = [
    ((2, 3, 32, 32), (3, 3), (2, 2), (1, 1), (1, 1)),
    ((1, 2, 17, 9), (2, 2), (2, 2), (0, 0), (1, 1)),
    ((2, 1, 7, 40), (3, 5), (1, 1), (1, 2), (1, 1)),
    ((1, 3, 12, 11), (3, 2), (3, 2), (1, 1), (2, 3)),
    ((1, 2, 5, 6), (5, 6), (1, 1), (0, 0), (1, 1)),
    ((1, 1, 2, 2), (2, 2), (1, 1), (1, 1), (2, 2)),
    ((1, 1, 1, 1), (3, 3), (2, 2), (1, 1), (1, 1)),
]


def pool(x: torch.Tensor, kernel: tuple, strides: tuple, pads: tuple, dilations: tuple) -> list[torch.Tensor]:
    attributes = {
        "kernel_shape": list(kernel), "strides": list(strides), "pads": [*pads, *pads], "dilations": list(dilations)
    }  # fmt: skip
    return run_engine(POOL, Case((x,), attributes, outputs=2), [x])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("content", ["distinct", "ties", "special"])
@pytest.mark.parametrize(("sizes", "kernel", "strides", "pads", "dilations"), WINDOWS)
def test_maxima_and_their_places_are_torchs_to_the_bit(sizes, kernel, strides, pads, dilations, content, dtype):
    torch.manual_seed(0)
    x = torch.randn(sizes, dtype=dtype)
    if content == "ties":
        x = x.round()
    elif content == "special":
        for value in (float("nan"), float("inf"), -float("inf")):
            x = torch.where(torch.rand(sizes) < 0.3, value, x)
    want, places = F.max_pool2d(x, kernel, strides, pads, dilations, return_indices=True)
    got = pool(x, kernel, strides, pads, dilations)
    torch.testing.assert_close(got[0], want, rtol=0, atol=0, equal_nan=True)
    planes = sizes[2] * sizes[3]
    assert torch.equal(got[1] % planes, places)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("sizes", "kernel", "stride", "padding", "dilation"),
    [
        ((9, 64, 2, 2), (3, 3), 1, 1, 1),
        ((6, 128, 4, 4), (3, 3), 2, 1, 1),
        ((33, 96, 4, 4), (1, 1), 2, 0, 1),
        ((5, 64, 6, 5), (3, 2), 2, (2, 0), 2),
        ((5, 160, 1, 7), (1, 3), 1, (0, 1), 1),
    ],
)
def test_convolutions_of_small_planes_are_torchs(sizes, kernel, stride, padding, dilation, bias):
    torch.manual_seed(0)
    module = nn.Conv2d(sizes[1], 128, kernel, stride, padding, dilation, bias=bias)
    model = ORTModule(module)
    x = torch.randn(sizes, requires_grad=True)
    for _ in range(2):
        want, got = module(x), model(x)
        dy = torch.randn_like(want)
        torch.testing.assert_close(got, want)
        leaves = [x, *module.parameters()]
        pairs = zip(torch.autograd.grad(got, leaves, dy), torch.autograd.grad(want, leaves, dy), strict=True)
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [nn.Conv2d, nn.ConvTranspose2d])
@pytest.mark.parametrize("groups", [1, 32])  # the second has too few products to be widened anywhere
def test_bfloat16_convolutions_are_as_exact_as_torchs(make, groups):
    torch.manual_seed(0)
    module = make(64, 64, 3, stride=2, padding=1, groups=groups).bfloat16()
    eager, exact = copy.deepcopy(module), copy.deepcopy(module).double()
    model = ORTModule(module)
    x = torch.randn(2, 64, 15, 14, dtype=torch.bfloat16)
    dy = torch.randn_like(eager(x))
    results = []
    for m in (model, eager, exact):
        given = x.to(m.weight.dtype).requires_grad_()
        y = m(given)
        results.append([y, *torch.autograd.grad(y, [given, m.weight, m.bias], dy.to(y.dtype))])
    for ours, theirs, truth in zip(*results, strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        error, allowed = (ours - truth).abs().max(), (theirs - truth).abs().max()
        assert error <= 1.5 * allowed, f"{error} from the double result, eager {allowed}"


@pytest.mark.parametrize("offset", [0.0, 300.0])
@pytest.mark.parametrize(
    "sizes",
    [(5, 7), (700, 65), (64, 1030, 1), (17, 512, 2, 2), (9, 61, 8, 8), (9, 3, 33, 40), (23, 66, 2, 3, 4)],
)
def test_batch_normalisation_of_planes_is_as_exact_as_torchs(sizes, offset):
    torch.manual_seed(0)
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(sizes)]
    module = kind(sizes[1])
    nn.init.normal_(module.weight)
    nn.init.normal_(module.bias)
    eager, exact = copy.deepcopy(module), copy.deepcopy(module).double()
    model = ORTModule(module)
    for _ in range(2):
        x = torch.randn(sizes) * 3 + offset
        dy = torch.randn(sizes)
        results = []
        for m in (model, eager, exact):
            given = x.to(m.weight.dtype).requires_grad_()
            y = m(given)
            gradients = torch.autograd.grad(y, [given, m.weight, m.bias], dy.to(y.dtype))
            results.append([y, *gradients, m.running_mean, m.running_var])
        for ours, theirs, truth in zip(*results, strict=True):
            assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
            error, allowed = (ours - truth).abs().max(), (theirs - truth).abs().max()
            assert error <= 2 * allowed + 1e-6, f"{error} from the double result, eager {allowed}"
