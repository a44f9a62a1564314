"""What the ranges of nodes in torch.profiler cost a step: while nobody looks on, and while a profiler does.

    python benchmarks/profiler_cost.py --models tiny,bert --json out.json

`off` is how many nodes a step runs times what a range takes that nobody hears (timed in C++, the loop included), over
the step's time: there is no build without ranges to compare with. `on` is the time of steps inside
`torch.profiler.profile()` over that of steps outside, in turns: what torch notes of its own operators is in it, what it
does when profiling starts and ends is not. `eager on` is the same of the module in eager PyTorch, in the same turns.
Times are those of the process on the processor, so that others on a busy machine count less; `fastest` is by the
fastest round of each. An event takes torch half a microsecond and more, so that steps of nodes that take as long
(`mlp`) pay much more for it, in eager as here; six events of such a step are torch's own around the engine.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import models
import torch

from common import facts, rounds, settings, table, write_json


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    from ortmodule import _C, ORTModule

    module, batch = models.build(name, small=args.small)
    steps = {"engine": step_of(ORTModule(copy.deepcopy(module)), batch), "eager": step_of(module, batch)}
    samples: dict[tuple[str, bool], list[float]] = {(kind, on): [] for kind in steps for on in (False, True)}
    for _ in rounds(args.rounds):
        for kind, step in steps.items():
            samples[kind, False].append(seconds_of(step, args.repeats))
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
                samples[kind, True].append(seconds_of(step, args.repeats))
    _, nodes, _ = _C.kernel_seconds(steps["engine"])
    range_seconds = _C.idle_range_seconds()
    row: dict[str, Any] = {"model": name, "nodes": nodes, "range_ns": range_seconds * 1e9}
    for label, reduce in (("median", statistics.median), ("fastest", min)):
        off, on = reduce(samples["engine", False]), reduce(samples["engine", True])
        eager = reduce(samples["eager", True]) / reduce(samples["eager", False]) - 1
        row[label] = {"ms": off * 1e3, "off": nodes * range_seconds / off, "on": on / off - 1, "eager on": eager}
    return row


def step_of(model: torch.nn.Module, batch: tuple[Any, ...]) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad()
        model(*batch).backward()

    for _ in range(5):
        step()
    return step


def seconds_of(step: Callable[[], None], repeats: int) -> float:
    """Of one step on the processor; the first of a round, at which a profiler sets itself up, is not counted."""
    step()
    start = time.process_time()
    for _ in range(repeats):
        step()
    return (time.process_time() - start) / repeats


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", type=lambda s: s.split(","), default=["tiny", "bert"], help=", ".join(models.MODELS)
    )
    parser.add_argument("--small", action="store_true", help="tiny sizes, for a test of this script")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=5, help="steps of a round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", metavar="OUT")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = [measure(name, args) for name in args.models]
    cells = []
    for row in rows:
        for label in ("median", "fastest"):
            one = row[label]
            shares = (f"{100 * one['off']:.4f} %", *(f"{100 * one[key]:.1f} %" for key in ("on", "eager on")))
            costs = (f"{one['ms']:.3f}", str(row["nodes"]), f"{row['range_ns']:.2f}")
            cells.append((f"{row['model']} {label}", *costs, *shares))
    print(table(("model", "ms", "nodes", "ns of a range", "off", "on", "eager on"), cells))
    if args.json:
        write_json(args.json, {"environment": facts(threads=args.threads), "arguments": settings(args), "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
