"""Steps of ortmodule.optim beside torch.optim's, and clipping beside torch's, over what the memory's rate allows.

    python benchmarks/optimizers.py --threads 2 --json out.json

Parameters of GPT-2's shapes (124 million elements, float32), gradients that are the same at each step. All of a row
take turns, so that all meet the same machine; `ms` are medians, `x` is the other's median over ours (above 1: ours is
faster). `MB` is what a step has to move at least: each tensor that is read, and each that is written, once. `limit` is
the time that this machine's memory takes for it, by the rate of a plain pass (one tensor of that many elements, read
and written by torch's in-place addition, in the same turns); `% of limit` is the limit over ours. torch has no LAMB:
`foreach` is its formula in torch's _foreach operations (optim/lamb.py). `flat` is ours over one tensor of all elements:
what flattening would gain. Clipping is measured with gradients above the bound (they are written) and below it (they
are only read). `processor_ms` of the JSON is of all threads together.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from common import facts, settings, table, write_json

Runner = Callable[[], Any]
# Bytes of an element that a step has to move: what is read and what is written.
BYTES = {"SGD": 20, "Adam": 28, "AdamW": 28, "LAMB": 28, "Adafactor": 16, "clip above": 12, "clip below": 4}
RATE_BYTES = 8  # of an element of the plain pass


def gpt2_shapes(width: int, layers: int, vocabulary: int, positions: int) -> list[tuple[int, ...]]:
    block = [(width,), (width,), (width, 3 * width), (3 * width,), (width, width), (width,), (width,), (width,)]
    block += [(width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    return [(vocabulary, width), (positions, width), *block * layers, (width,), (width,)]


def parameters(shapes: list[tuple[int, ...]]) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    out = []
    for shape in shapes:
        p = nn.Parameter(torch.empty(shape).uniform_(-0.1, 0.1, generator=generator))
        p.grad = torch.empty(shape).uniform_(-1e-3, 1e-3, generator=generator)
        out.append(p)
    return out


def flat(shapes: list[tuple[int, ...]]) -> list[nn.Parameter]:
    return parameters([(sum(torch.Size(shape).numel() for shape in shapes),)])


def foreach_lamb(ps: list[nn.Parameter]) -> Runner:
    from ortmodule.optim import LAMB

    optimizer = LAMB(ps, lr=1e-4, weight_decay=0.01)
    return lambda: optimizer._torch_step(optimizer.param_groups)


def steps_of(kind: str, shapes: list[tuple[int, ...]]) -> dict[str, Runner]:
    """By runner's name; ours first."""
    from ortmodule import optim

    options: dict[str, Any] = {"lr": 1e-4, **({"momentum": 0.9} if kind == "SGD" else {})}
    ours = getattr(optim, kind)
    runners: dict[str, Runner] = {"ours": ours(parameters(shapes), **options).step}
    if kind == "LAMB":
        runners["foreach"] = foreach_lamb(parameters(shapes))
    elif kind == "Adafactor":
        runners["default"] = torch.optim.Adafactor(parameters(shapes), **options).step
    else:
        theirs = getattr(torch.optim, kind)
        runners["fused"] = theirs(parameters(shapes), fused=True, **options).step
        runners["default"] = theirs(parameters(shapes), **options).step
    if kind == "AdamW":
        runners["flat"] = ours(flat(shapes), **options).step
        runners["8 bit"] = ours(parameters(shapes), state_bits=8, **options).step
    return runners


def clips_of(kind: str, shapes: list[tuple[int, ...]]) -> dict[str, Runner]:
    from ortmodule import optim

    # Just above the bound each time: gradients are made smaller so slowly that they stay normal numbers.
    def clip(function: Callable[..., Tensor]) -> Runner:
        ps = parameters(shapes)
        norm = float(function(ps, 1e9))
        bound = [norm * 2 if kind == "clip below" else norm]

        def run() -> None:
            if kind == "clip above":
                bound[0] *= 0.999
            function(ps, bound[0])

        return run

    return {"ours": clip(optim.clip_grad_norm_), "default": clip(nn.utils.clip_grad_norm_)}


def plain_pass(elements: int) -> Runner:
    one = torch.ones(elements)
    return lambda: one.add_(1e-9)


def measure(kind: str, shapes: list[tuple[int, ...]], rounds: int, others: list[str] | None) -> dict[str, Any]:
    elements = sum(torch.Size(shape).numel() for shape in shapes)
    runners = (clips_of if kind.startswith("clip") else steps_of)(kind, shapes)
    runners = {name: run for name, run in runners.items() if name == "ours" or others is None or name in others}
    runners["memory"] = plain_pass(elements)
    samples: dict[str, list[float]] = {name: [] for name in runners}
    processor: dict[str, list[float]] = {name: [] for name in runners}
    for turn in range(rounds + 1):
        names = list(runners) if turn % 2 else list(runners)[::-1]
        for name in names:
            start, start_cpu = time.perf_counter(), time.process_time()
            runners[name]()
            seconds, seconds_cpu = time.perf_counter() - start, time.process_time() - start_cpu
            if turn:  # the first makes states
                samples[name].append(seconds)
                processor[name].append(seconds_cpu)
    medians = {name: statistics.median(seconds) for name, seconds in samples.items()}
    rate = RATE_BYTES * elements / medians.pop("memory")
    bytes_moved = BYTES[kind] * elements
    return {
        "kind": kind,
        "elements": elements,
        "tensors": len(shapes),
        "ms": {name: seconds * 1e3 for name, seconds in medians.items()},
        "processor_ms": {name: statistics.median(processor[name]) * 1e3 for name in medians},
        "fastest_ms": {name: min(samples[name]) * 1e3 for name in medians},
        "ratios": {name: seconds / medians["ours"] for name, seconds in medians.items() if name != "ours"},
        "bytes": bytes_moved,
        "memory_gb_s": rate / 1e9,
        "limit_ms": bytes_moved / rate * 1e3,
        "of_limit": bytes_moved / rate / medians["ours"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", type=lambda s: s.split(","), default=list(BYTES), help=", ".join(BYTES))
    parser.add_argument("--runners", type=lambda s: s.split(","), help="beside ours; all where it is not given")
    parser.add_argument("--small", action="store_true", help="tiny sizes, for a test of this script")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", metavar="OUT")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    shapes = gpt2_shapes(16, 2, 50, 8) if args.small else gpt2_shapes(768, 12, 50257, 1024)
    rows = []
    for kind in args.kinds:
        rows.append(measure(kind, shapes, args.rounds, args.runners))
        if args.json:
            machine = facts(threads=args.threads)
            write_json(args.json, {"environment": machine, "arguments": settings(args), "rows": rows})
    cells = []
    for row in rows:
        others = ", ".join(f"{name} {ratio:.2f}" for name, ratio in row["ratios"].items())
        figures = (row["ms"]["ours"], row["limit_ms"], row["of_limit"] * 100, row["bytes"] / 1e6, row["memory_gb_s"])
        cells.append((row["kind"], *(f"{figure:.1f}" for figure in figures), others))
    print(table(("step", "ours ms", "limit ms", "% of limit", "MB", "GB/s", "x"), cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
