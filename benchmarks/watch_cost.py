"""What it costs to find out that a call is like the last one, by how much of Python the forward depends on.

    python benchmarks/watch_cost.py --modules 2000 --names 10 --json out.json

A model of N modules, each with as many attributes as `--names` says, all of which its forward reads; one operator, one
parameter. `checks` is the time of a steady call's checks, arguments included; `compared` how many watched values one
such call compares: what CPython tells changes of is not (from Python 3.12 on). `after one` is a call's checks after an
attribute of one module was set to the value that it has, `after all` after one of each module. Microseconds, medians of
rounds; `fastest` is the fastest round. Not here: the rest of a step (overhead.py).
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from common import facts, rounds, settings, table, write_json


class Part(nn.Module):
    def __init__(self, names: int) -> None:
        super().__init__()
        for i in range(names):
            setattr(self, f"value{i}", 1.0)


class Model(nn.Module):
    """Reads every attribute of its parts."""

    def __init__(self, modules: int, names: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Part(names) for _ in range(modules))
        self.scale = nn.Parameter(torch.ones(()))
        self.names = [f"value{i}" for i in range(names)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = 0.0
        for part in self.parts:
            for name in self.names:
                total += getattr(part, name)
        return x * self.scale * total


def per_call(run: Callable[[], Any], repeats: int, prepare: Callable[[], Any] | None = None) -> float:
    """Microseconds of one call; `prepare` runs before each, outside the clock."""
    total = 0.0
    for _ in range(repeats):
        if prepare:
            prepare()
        start = time.perf_counter()
        run()
        total += time.perf_counter() - start
    return total / repeats * 1e6


def measure(modules: int, names: int, args: argparse.Namespace) -> dict[str, Any]:
    from ortmodule import _C, Options, ORTModule

    x = torch.randn(4)
    model = ORTModule(Model(modules, names), options=Options(fallback="error"))
    start = time.perf_counter()
    model(x)
    first = time.perf_counter() - start
    for _ in range(3):
        model(x)
    (fast,) = model._manager.fast_calls
    parts = list(model.module.parts)

    def checks() -> bool:
        return bool(fast.matches((x,), {}))

    def touch_all() -> None:
        for part in parts:
            part.value0 = 1.0

    if not checks():
        raise SystemExit("the call is not like the last one")
    before = fast.compared
    checks()
    row: dict[str, Any] = {
        "modules": modules, "names": modules * names, "first_call_seconds": first, "compared": fast.compared - before,
        "watched": _C.watched_objects(),
    }  # fmt: skip
    samples: dict[str, list[float]] = {"checks": [], "after_one": [], "after_all": []}
    for _ in rounds(args.rounds):
        samples["checks"].append(per_call(checks, args.repeats))
        samples["after_one"].append(per_call(checks, args.repeats, lambda: setattr(parts[-1], "value0", 1.0)))
        samples["after_all"].append(per_call(checks, 2, touch_all))
    row |= {key: statistics.median(values) for key, values in samples.items()}
    row["fastest"] = {key: min(values) for key, values in samples.items()}
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", type=lambda s: [int(n) for n in s.split(",")], default=[20, 200, 2000])
    parser.add_argument("--names", type=int, default=10, help="attributes of each module that the forward reads")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--json", metavar="OUT")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(modules, args.names, args) for modules in args.modules]
    cells = [
        (
            f"{row['modules']}, {row['names']}", f"{row['checks']:.1f}", f"{row['fastest']['checks']:.1f}",
            str(row["compared"]), f"{row['after_one']:.1f}", f"{row['after_all']:.1f}",
        )
        for row in rows
    ]  # fmt: skip
    print(f"Python {platform.python_version()}; microseconds of a call's checks")
    print(table(("modules, names", "checks", "fastest", "compared", "after one", "after all"), cells))
    if args.json:
        write_json(args.json, {"environment": facts(threads=1), "arguments": settings(args), "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
