"""Writes what train_digits.cpp trains from: `python save_artifacts.py artifacts digits.bin`.

The first is a folder with a small network, its loss and its optimizer; the second scikit-learn's digits: 1,797 images
of 8x8 pixels from 0 to 16 and their labels, 65 bytes each.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from ortmodule import export_training_artifacts


def network() -> nn.Module:
    """Images [batch, 64] -> scores [batch, 10]."""
    first = [nn.Linear(64, 128, bias=False), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.1)]
    return nn.Sequential(*first, nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


def write_digits(path: Path) -> None:
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    path.write_bytes(np.column_stack([images, labels])[order].astype(np.uint8).tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifacts", type=Path, help="the folder to write")
    parser.add_argument("digits", type=Path, help="the file to write")
    args = parser.parse_args()
    write_digits(args.digits)
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    example = (torch.rand(64, 64), torch.randint(10, (64,)))
    export_training_artifacts(model, nn.CrossEntropyLoss(), optimizer, example, args.artifacts)
    print(f"wrote {args.artifacts} and {args.digits}")


if __name__ == "__main__":
    main()
