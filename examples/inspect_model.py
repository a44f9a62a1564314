"""Makes a page of what the engine makes of two models: a transformer that it trains, and an ONNX model that it runs.

The page (`inspect.html` in the output folder) needs no network: open it in a browser, press / to search.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

import ortmodule
from ortmodule import DebugOptions, ORTModule, inspect


class Classifier(nn.Module):
    """Token embeddings, transformer layers, and the loss of a classification of their mean."""

    def __init__(self, layers: int, width: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """tokens: int64[batch, length], labels: int64[batch] -> float[]"""
        logits = self.head(self.encoder(self.embedding(tokens)).mean(1))
        return nn.functional.cross_entropy(logits, labels)


def train(layers: int, steps: int, records: Path) -> None:
    model = ORTModule(Classifier(layers), DebugOptions(inspect_path=str(records)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        loss = model(torch.randint(1000, (8, 64)), torch.randint(10, (8,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    inspect.flush()  # happens by itself as the program ends; the page is made before that here


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/inspect"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    train(args.layers, args.steps, args.out / "records")
    example = (torch.randint(1000, (8, 64)), torch.randint(10, (8,)))
    portable = ortmodule.export_training_graph(Classifier(args.layers), example)
    (args.out / "model.onnx").write_bytes(portable.SerializeToString())
    records = [*inspect.read(args.out / "records"), inspect.inspect_model(args.out / "model.onnx", runs=3)]
    page = inspect.write_page(records, args.out / "inspect.html", "A small transformer")
    print(f"{page}: {page.stat().st_size / 2**20:.2f} MiB, {len(records)} sessions")


if __name__ == "__main__":
    main()
