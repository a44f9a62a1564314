"""Trains a small model twice, flips one bit of one weight in the second training, and finds it by recordings alone.

    python examples/find_corruption.py --steps 60 --at 50 --weight 2.weight --bit 12

Both trainings are recorded (`ortmodule.debug.record`). What is printed is `ortmodule.debug.diff`'s: the step, and the
weight before any node that reads it. `python -m ortmodule.debug diff OUT/a OUT/b` says the same.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import ortmodule
from ortmodule import ORTModule


def model() -> nn.Module:
    """A classifier of 16 numbers, the same at each call."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))


def flip(weight: torch.Tensor, bit: int) -> None:
    """Flips one bit of the element in the middle, as a fault in memory would: torch is not told."""
    element = weight.numel() // 2
    before = weight.flatten()[element].item()
    weight.data.view(-1).view(torch.int32)[element] ^= 1 << bit
    print(f"flipped bit {bit} of element {element}: {before!r} became {weight.flatten()[element].item()!r}")


def train(directory: Path, steps: int, corrupt_at: int | None, weight: str, bit: int) -> float:
    """Trains and records; the last loss."""
    net = model()
    engine = ORTModule(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    batches = torch.Generator().manual_seed(1)
    loss = torch.zeros(())
    with ortmodule.debug.record(engine, directory):
        for step in range(steps):
            x = torch.randn(32, 16, generator=batches)
            labels = x[:, :4].argmax(dim=1)
            if step == corrupt_at:
                flip(net.get_parameter(weight), bit)
            loss = nn.functional.cross_entropy(engine(x), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return loss.item()


def main() -> int:
    """The status: 0 where the corrupted weight was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="of each training")
    parser.add_argument("--at", type=int, default=50, help="the step before which the bit is flipped")
    parser.add_argument("--weight", default="2.weight", help="which weight")
    parser.add_argument("--bit", type=int, default=12, choices=range(31), metavar="0..30", help="of 31, which bit")
    parser.add_argument("--out", type=Path, help="an empty folder for the recordings (default: one that is removed)")
    args = parser.parse_args()
    known = [name for name, _ in model().named_parameters()]
    if args.weight not in known:
        parser.error(f"--weight {args.weight}: the weights are {', '.join(known)}")
    if not 0 <= args.at < args.steps:
        parser.error(f"--at {args.at} is none of {args.steps} steps")
    with tempfile.TemporaryDirectory() as folder:
        out = args.out or Path(folder)
        losses = [
            train(out / name, args.steps, at, args.weight, args.bit) for name, at in (("a", None), ("b", args.at))
        ]
        print(f"last losses: {losses[0]:.6f} and {losses[1]:.6f}\n")
        found = ortmodule.debug.diff(out / "a", out / "b")
        print(found)
    first = found.first
    return 0 if first and (first.step, first.kind, first.name) == (args.at, "weight", args.weight) else 1


if __name__ == "__main__":
    sys.exit(main())
