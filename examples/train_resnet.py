"""Trains a ResNet-18 on scikit-learn's handwritten digits with ortmodule.

The 1,797 images of 8 x 8 pixels ship inside scikit-learn; every fifth is held out. BatchNorm's running statistics are
buffers that the forward pass changes, which is what this example is about.
"""

from __future__ import annotations

import argparse

import sklearn.datasets
import torch
from torch import nn

from common import arguments, data, training

CLASSES = 10


class Block(nn.Module):
    """Two 3 x 3 convolutions around a shortcut (He et al., Deep Residual Learning, 2016, figure 2)."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """Four stages of two blocks; for images this small the stem is one 3 x 3 convolution and no pooling."""

    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        stages, inputs = [], width
        for stage in range(4):
            outputs = width << stage
            stages += [Block(inputs, outputs, 1 if stage == 0 else 2), Block(outputs, outputs, 1)]
            inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(inputs, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images float32[n, 1, height, width] -> logits float32[n, 10]."""
        return self.head(self.dropout(self.pool(self.stages(self.stem(images))).flatten(1)))


@torch.no_grad()
def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, args: argparse.Namespace) -> float:
    correct = 0
    for some, wanted in zip(images.split(64), labels.split(64)):
        correct += int((model(some.to(args.device)).argmax(-1).cpu() == wanted).sum())
    return correct / len(labels)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    top = arguments.parser("resnet", __doc__.split("\n")[0], steps=150, batch_size=32, lr=1e-3, dropout=0.0)
    model = top.add_argument_group("model")
    model.add_argument("--width", type=arguments.at_least(1), default=64, help="channels of the first stage")
    return arguments.parse(top, argv)


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    resumed = training.load_resumed(args)
    digits = sklearn.datasets.load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    labels = torch.tensor(digits.target, dtype=torch.int64)
    held_out = torch.arange(len(labels)) % 5 == 4
    train_images, train_labels = images[~held_out], labels[~held_out]

    def batch(indices: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"images": train_images[indices], "labels": train_labels[indices]}

    def loss(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(inputs["images"]), inputs["labels"])

    task = training.Task(
        model=lambda: ResNet18(args.width, args.dropout),
        examples=len(train_labels),
        batch=batch,
        loss=loss,
        unit="images",
        units_per_example=1,
        data=data.fingerprint(digits.images.tobytes()),
        accuracy=lambda model: accuracy(model, images[held_out], labels[held_out], args),
    )
    training.train(task, args, resumed, fixed=("width",))


if __name__ == "__main__":
    arguments.run(main)
