"""What `ortmodule.debug.record` adds to a step, by what is recorded.

    python benchmarks/recording_cost.py --models mlp,tiny,bert --json out.json

The same model four times, in turns: not recorded, every step with figures, every step by fingerprints alone, and every
tenth step. `ms` is forward and backward; the other columns are over it. `fastest` is by the fastest round of each: on
a busy machine medians measure what else runs there. Weights are read once a step, whatever the batch: a batch of a real
size costs less than the small ones here. `bytes` is what a recorded step takes on disk. What a session pays that nobody
records is not here: `beside.py ../before overhead.py` tells it.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import torch
from torch import nn

from common import facts, settings, table, write_json

KINDS: dict[str, dict[str, Any] | None] = {
    "off": None,
    "figures": {},
    "fingerprints": {"figures": False},
    "every tenth": {"every": 10},
}


def step_of(model: nn.Module, batch: models.Batch) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad()
        model(*batch).backward()

    return step


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    from ortmodule import ORTModule
    from ortmodule.debug import Recording, record

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        steps: dict[str, Callable[[], None]] = {}
        recorders = {}
        for kind, how in KINDS.items():
            module, batch = models.build(name, small=args.small)
            ours = ORTModule(module)
            steps[kind] = step_of(ours, batch)
            for _ in range(3):
                steps[kind]()
            if how is not None:
                recorders[kind] = stack.enter_context(record(ours, Path(folder, kind), **how))
        samples: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for turn in range(args.rounds):
            order = list(KINDS) if turn % 2 else list(KINDS)[::-1]
            for kind in order:
                start = time.perf_counter()
                for _ in range(args.repeats):
                    steps[kind]()
                samples[kind].append((time.perf_counter() - start) / args.repeats)
        path = recorders["figures"].path
        written, values = path.stat().st_size, sum(1 for _ in Recording(path).step(0).values())
    row: dict[str, Any] = {"model": name, "values": values, "bytes": written / (args.rounds * args.repeats)}
    for label, reduce in (("median", statistics.median), ("fastest", min)):
        times = {kind: reduce(seconds) for kind, seconds in samples.items()}
        ratios = {kind: times[kind] / times["off"] for kind in recorders}
        row[label] = {"ms": times["off"] * 1e3, "ratios": ratios}
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=lambda s: s.split(","), default=["mlp", "tiny"], help=", ".join(models.MODELS))
    parser.add_argument("--small", action="store_true", help="tiny sizes, for a test of this script")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--repeats", type=int, default=10, help="steps of a round; a multiple of ten")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", metavar="OUT")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = [measure(name, args) for name in args.models]
    kinds = [kind for kind, how in KINDS.items() if how is not None]
    cells = []
    for row in rows:
        for label in ("median", "fastest"):
            ratios = [f"{row[label]['ratios'][kind]:.2f}" for kind in kinds]
            sizes = (str(row["values"]), f"{row['bytes']:.0f}")
            cells.append((f"{row['model']} {label}", f"{row[label]['ms']:.3f}", *ratios, *sizes))
    print(table(("model", "ms", *kinds, "values", "bytes"), cells))
    if args.json:
        write_json(args.json, {"environment": facts(threads=args.threads), "arguments": settings(args), "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
