"""Writes the forward graph of a small classifier with its loss, for train.cpp: `python save_graph.py model.onnx`."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn

from ortmodule import DebugOptions, ORTModule


class Classifier(nn.Module):
    """Images [batch, 64] and labels [batch] -> the mean cross entropy over ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 10))

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(images), labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="the file to write")
    path: Path = parser.parse_args().path
    with tempfile.TemporaryDirectory() as folder:
        debug = DebugOptions(save_onnx=True, onnx_prefix="graph", save_path=folder)
        model = ORTModule(Classifier(), debug)
        for batch in (32, 48):  # the second size makes the batch's axis free
            model(torch.randn(batch, 64), torch.randint(10, (batch,)))
        path.write_bytes(Path(folder, "graph_torch_exported_training.onnx").read_bytes())
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
