"""Loads the library that is named and trains a layer with its pass: `python use.py build/libquick_gelu.so`."""

from __future__ import annotations

import sys

import torch

import ortmodule
from ortmodule import ORTModule, debug


class QuickGelu(torch.nn.Module):
    """A layer with the activation that the pass knows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer(x)
        return h * torch.sigmoid(1.702 * h)


def main() -> None:
    """Prints the largest difference from PyTorch, and whether the pass has changed the graph."""
    ortmodule.load_extension(sys.argv[1])
    module = QuickGelu()
    model, x = ORTModule(module), torch.randn(4, 8)
    y = model(x)
    y.sum().backward()
    print("difference", float((y - module(x)).detach().abs().max()))
    print("fused", "QuickGelu" in str(debug.plan(model, x)))


if __name__ == "__main__":
    main()
