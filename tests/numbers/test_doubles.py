"""Numbers that a program gives in double reach kernels that compute in double, with all their digits: ONNX has float32
attributes and, for some operators, float32 inputs.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ortmodule import ORTModule

THIRD = 1 / 3
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "leaky_relu": lambda x: F.leaky_relu(x, THIRD),
    "elu": lambda x: F.elu(x, THIRD),
    "celu": lambda x: F.celu(x, THIRD),
    "selu": F.selu,
    "hardtanh": lambda x: F.hardtanh(x, -THIRD, 2 * THIRD),
    "softplus": lambda x: F.softplus(x, 4 * THIRD, 2.1),
    "softshrink": lambda x: F.softshrink(x, THIRD),
    "threshold": lambda x: F.threshold(x, THIRD, 2 * THIRD),
    "layer_norm": lambda x: F.layer_norm(x * 1e-3, (8,), eps=THIRD * 1e-5),
    "rms_norm": lambda x: F.rms_norm(x * 1e-3, (8,), eps=THIRD * 1e-5),
    "batch_norm": lambda x: F.batch_norm(x * 1e-3, None, None, training=True, eps=THIRD * 1e-5),
    "group_norm": lambda x: F.group_norm(x * 1e-3, 2, eps=THIRD * 1e-5),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], scale=THIRD),
    "addmm": lambda x: torch.addmm(x @ x.T, x, x.T, alpha=THIRD, beta=2 * THIRD),
    "clamp": lambda x: x.clamp(-THIRD, 2 * THIRD),
    "power": lambda x: x.abs() ** THIRD,
    "full": lambda x: x + torch.full((8,), THIRD, dtype=torch.float64),
    "full_like": lambda x: x * torch.full_like(x, THIRD),
    "filled": lambda x: x * torch.zeros_like(x).fill_(THIRD),
    "padded": lambda x: F.pad(x, (1, 1), value=THIRD).sin(),
    "masked": lambda x: x.masked_fill(x > 0, THIRD).sin(),
    "label smoothing": lambda x: F.cross_entropy(x, torch.arange(5), label_smoothing=THIRD),
    "huber_loss": lambda x: F.huber_loss(x, x.detach() * 2, delta=THIRD),
    "interpolate": lambda x: F.interpolate(x[None, None], scale_factor=4 * THIRD, mode="bilinear"),
}


class Scaled(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.scale, self.function = nn.Parameter(torch.ones(8, dtype=torch.float64)), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x * self.scale)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_digits_of_a_number_count(name: str) -> None:
    x = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = []
    for wrapped in (False, True):
        module = Scaled(FUNCTIONS[name])
        call = ORTModule(module) if wrapped else module
        torch.manual_seed(3)
        y = call(x)
        (y * torch.arange(1, y.numel() + 1).view(y.shape)).sum().backward()
        found.append((y.detach(), module.scale.grad))
    if name == "celu":  # torch computes its gradient with 1 / float(alpha)
        found = [(y, None) for y, _ in found]
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)
