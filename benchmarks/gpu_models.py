"""The six models of the GPU comparison at their real sizes, and a batch of each: what gpu_model.py predicts and
gpu_steps.py measures.

The modules are those of models.py; ResNet-50 is here. Sizes are those of the published models: GPT-2 small and medium
(without dropout), a Llama-like one of 1.26 billion parameters (TinyLlama's sizes with as many key heads as query
heads), BERT-large with dropout 0.1 and 15 % of the labels set, ViT-L/16, ResNet-50.
Not here: what is counted (gpu_model.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F
from models import Batch, Bert, Gpt2, Llama, Vit, convolution, masked_text, pictures, text


class Bottleneck(nn.Module):
    """ResNet-50's block: 1x1, 3x3 (with the stride), 1x1 to four times the width."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = convolution(inputs, width, 1, 1), convolution(width, width, 3, stride)
        self.third = convolution(width, 4 * width, 1, 1)
        same = stride == 1 and inputs == 4 * width
        self.shortcut = nn.Identity() if same else convolution(inputs, 4 * width, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.third(F.relu(self.second(F.relu(self.first(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet50(nn.Module):
    def __init__(self, width: int = 64, classes: int = 1000, depths: tuple[int, ...] = (3, 4, 6, 3)) -> None:
        super().__init__()
        self.stem = convolution(3, width, 7, 2)
        blocks: list[nn.Module] = []
        inputs = width
        for stage, depth in enumerate(depths):
            for i in range(depth):
                blocks.append(Bottleneck(inputs, width << stage, 2 if i == 0 and stage else 1))
                inputs = 4 * (width << stage)
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(inputs, classes)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.stem(images)), 3, 2, 1)
        return F.cross_entropy(self.head(self.blocks(x).mean((2, 3))), labels)


@dataclasses.dataclass(frozen=True)
class RealModel:
    """`counted`: the share of the labels that count, as the batch has them; `small_*`: to try a harness."""

    title: str
    module: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    small_module: Callable[[], nn.Module]
    small_batch: Callable[[], Batch]
    counted: float = 1.0


MODELS: dict[str, RealModel] = {
    "gpt2-small": RealModel(
        "GPT-2 small, 768x12, 8x1024, V=50257",
        lambda: Gpt2(50257, 768, 12, 12, 1024),
        lambda: text(8, 1024, 50257),
        lambda: Gpt2(200, 32, 2, 2, 16),
        lambda: text(2, 16, 200),
    ),
    "gpt2-medium": RealModel(
        "GPT-2 medium, 1024x24, 8x1024, V=50257",
        lambda: Gpt2(50257, 1024, 16, 24, 1024),
        lambda: text(8, 1024, 50257),
        lambda: Gpt2(200, 32, 2, 2, 16),
        lambda: text(2, 16, 200),
    ),
    "llama-1b": RealModel(
        "Llama-like 2048x22, 4x2048, V=32000",
        lambda: Llama(32000, 2048, 32, 22, 5632, 2048),
        lambda: text(4, 2048, 32000),
        lambda: Llama(200, 32, 2, 2, 64, 16),
        lambda: text(2, 16, 200),
    ),
    "bert-large": RealModel(
        "BERT-large, 1024x24, 16x512, dropout 0.1",
        lambda: Bert(30522, 1024, 16, 24, 512, 0.1),
        lambda: masked_text(16, 512, 30522),
        lambda: Bert(200, 32, 2, 2, 16, 0.1),
        lambda: masked_text(2, 16, 200),
        0.15,
    ),
    "vit-large": RealModel(
        "ViT-L/16, 64x3x224x224",
        lambda: Vit(224, 16, 1024, 16, 24, 1000),
        lambda: pictures(64, 224, 1000),
        lambda: Vit(32, 8, 32, 2, 2, 10),
        lambda: pictures(2, 32, 10),
    ),
    "resnet50": RealModel(
        "ResNet-50, 128x3x224x224",
        ResNet50,
        lambda: pictures(128, 224, 1000),
        lambda: ResNet50(8, 10, (1, 1, 1, 1)),
        lambda: pictures(4, 32, 10),
    ),
}


def without_memory(make: Callable[[], nn.Module]) -> nn.Module:
    """The module in training mode with weights that are never written, so that no page of them is ever taken."""
    with torch.device("meta"):
        module = make()
    return module.to_empty(device="cpu").train()
