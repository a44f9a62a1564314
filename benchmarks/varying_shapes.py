"""Many training steps with a random batch size and text length each: what changing sizes cost.

    python benchmarks/varying_shapes.py --models bert,gpt2 --steps 200 --json out.json

Every step's batch is cut from one batch and goes to all runners in turn, so that all do the same work on an equally
busy machine. `total` is all steps, with the captures or compilations that new sizes bring; `steady` leaves a runner's
first step out. `graphs`: how often the runner captured or compiled. Losses are compared with eager's; where a model has
dropout the masks differ. The Llama-like model takes one length only. Not here: fixed sizes (step_time.py).
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from typing import Any

import models
import torch
from torch import nn

from common import facts, settings, table, write_json

RUNNERS = ("ortmodule", "eager", "compile")


def sizes(batch: models.Batch, steps: int, seed: int) -> list[models.Batch]:
    """`steps` corners of a batch: some rows of it and, where all its tensors are [batch, length], some columns."""
    draw = random.Random(seed)
    rows = batch[0].shape[0]
    texts = all(x.shape == batch[0].shape and x.dim() == 2 for x in batch)
    cut = []
    for _ in range(steps):
        b = draw.randint(1, rows)
        n = draw.randint(max(1, batch[0].shape[1] // 8), batch[0].shape[1]) if texts else None
        cut.append(tuple((x[:b, :n] if texts else x[:b]).contiguous() for x in batch))
    return cut


def wrapped(runner: str, module: nn.Module) -> nn.Module:
    if runner == "ortmodule":
        from ortmodule import ORTModule

        return ORTModule(module)
    return torch.compile(module) if runner == "compile" else module  # type: ignore[return-value]


def graphs(runner: str, module: nn.Module) -> int:
    """How many graphs a runner has made so far in this process, for `module` or, in torch.compile's case, at all."""
    if runner == "ortmodule":
        return len(module.report().exports)  # type: ignore[operator]
    if runner == "compile":
        from torch._dynamo.utils import counters

        return counters["stats"]["unique_graphs"]
    return 0


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds per runner and its losses' largest difference from eager's, relative."""
    module, batch = models.build(name, small=args.small)
    batches = sizes(tuple(torch.cat([x] * args.repeat_rows) for x in batch), args.steps, args.seed)
    modules = {runner: wrapped(runner, models.build(name, small=args.small)[0]) for runner in args.runners}
    compiled = graphs("compile", module) if "compile" in modules else 0
    times: dict[str, list[float]] = {runner: [] for runner in modules}
    losses: dict[str, list[float]] = {runner: [] for runner in modules}
    for i, cut in enumerate(batches):
        order = list(modules)[i % len(modules) :] + list(modules)[: i % len(modules)]
        for runner in order:
            torch.manual_seed(i)
            modules[runner].zero_grad()
            start = time.perf_counter()
            loss = modules[runner](*cut)
            loss.backward()
            times[runner].append(1e3 * (time.perf_counter() - start))
            losses[runner].append(float(loss.detach()))
        if sys.stderr.isatty():
            print(f"\r{name}: step {i + 1} of {len(batches)}", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    row: dict[str, Any] = {"model": name, "runners": {}}
    for runner, spent in times.items():
        made = graphs(runner, modules[runner]) - (compiled if runner == "compile" else 0)
        row["runners"][runner] = {"total_ms": sum(spent), "steady_ms": sum(spent[1:]), "graphs": made}
        if "eager" in losses:
            parts = [abs(a - b) / max(abs(b), 1e-12) for a, b in zip(losses[runner], losses["eager"])]
            row["runners"][runner]["loss_difference"] = max(parts)
            row["runners"][runner]["total_ratio"] = sum(spent) / sum(times["eager"])
            row["runners"][runner]["steady_ratio"] = sum(spent[1:]) / max(sum(times["eager"][1:]), 1e-9)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = tuple(models.MODELS)
    parser.add_argument(
        "--models", type=lambda s: s.split(","), default=["bert", "gpt2"], help=f"of {', '.join(known)}"
    )
    parser.add_argument(
        "--runners", type=lambda s: s.split(","), default=list(RUNNERS), help=f"of {', '.join(RUNNERS)}"
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the sizes")
    parser.add_argument("--repeat-rows", type=int, default=2, help="the largest batch: this many of the model's own")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: every core")
    parser.add_argument("--small", action="store_true", help="tiny models, to try the harness")
    parser.add_argument("--json", metavar="OUT", help="written after every model")
    args = parser.parse_args()
    for given, allowed in ((args.models, known), (args.runners, RUNNERS)):
        if wrong := [name for name in given if name not in allowed]:
            parser.error(f"unknown: {', '.join(wrong)}; there are {', '.join(allowed)}")
    if args.steps < 2 or args.repeat_rows < 1:
        parser.error("at least two steps and one batch are needed")
    torch.set_num_threads(args.threads)
    result = {"environment": facts(threads=args.threads), "arguments": settings(args), "rows": []}
    for name in args.models:
        row = measure(name, args)
        result["rows"].append(row)
        if args.json:
            write_json(args.json, result)
        cells = [
            (
                runner, f"{one['total_ms'] / 1e3:.1f}", f"{one.get('total_ratio', 0):.3f}",
                f"{one['steady_ms'] / 1e3:.1f}", f"{one.get('steady_ratio', 0):.3f}", str(one["graphs"]),
                f"{one.get('loss_difference', 0):.1e}",
            )
            for runner, one in row["runners"].items()
        ]  # fmt: skip
        print(f"\n{models.MODELS[name].title}: {args.steps} steps of random sizes")
        header = ("runner", "total s", "x eager", "steady s", "x eager", "graphs", "loss differs by")
        print(table(header, cells), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
