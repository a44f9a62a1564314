"""What a training step costs beyond its kernels: a model of 200 small parameters and 4 inputs.

    python benchmarks/overhead.py --json out.json

`step` is forward and backward; `kernels` is the time inside the engine's kernels during such a step, measured with a
clock around each; `overhead` is the difference: checks of the call, binding, the walk over the plan, autograd, gradient
writes, memory. Two parts make it up. `torch` is what `backward()` takes outside the engine's node: PyTorch's own way
from Python into its autograd engine and back, where it looks at each edge to a parameter; it is measured in the same
steps as the kernels. `own` is the rest: what this project's code takes beyond its kernels. `checks` is the time to find
out that a call is like the last one. `autograd` is what `backward()` takes in eager with one operator and one
parameter: the least that `torch` can be. Gradients are cleared before each step, outside the clock; `clearing` says how
long that takes. Eager and torch.compile run the same step in the same process, in turns. All models are made before
ortmodule is imported: what it imports leaves holes in the heap, and whether 200 parameters lie in 40 pages or in 190
decides a tenth of `own`. `fastest` is the fastest round of each: on a busy machine medians measure what else runs
there. Not here: models of a real size (step_time.py).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from common import facts, rounds, settings, table, write_json


class Net(nn.Module):
    """100 layers of 8 features: 200 parameters."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        x = a + b + c + d
        for layer in self.layers:
            x = layer(x)
        return x.sum()


class Wide(nn.Module):
    """200 parameters and three operators: nearly nothing but overhead."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.rows = nn.ParameterList(nn.Parameter(torch.randn(8)) for _ in range(parameters))

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        return (torch.stack(list(self.rows)) * (a + b + c + d).sum(0)).sum()


MODELS = {"deep": lambda n: Net(n // 2), "wide": Wide}


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


def made(name: str, args: argparse.Namespace) -> dict[str, nn.Module]:
    """The model once for each runner."""
    runners = ("eager", "compile", "ortmodule") if args.compile else ("eager", "ortmodule")
    return {runner: MODELS[name](args.parameters) for runner in runners}


def measure(name: str, modules: dict[str, nn.Module], args: argparse.Namespace) -> dict[str, Any]:
    from ortmodule import _C, ORTModule

    inputs = [torch.randn(4, 8) for _ in range(4)]
    ours = modules["ortmodule"] = ORTModule(modules["ortmodule"])
    if args.compile:
        modules["compile"] = torch.compile(modules["compile"])

    def step_of(module: nn.Module) -> Callable[[], None]:
        return lambda: module(*inputs).backward()

    steps = {runner: step_of(modules[runner]) for runner in ("ortmodule", *modules)}
    failed = {}
    for runner, step in list(steps.items()):
        try:
            for _ in range(5):
                modules[runner].zero_grad()
                step()
        except Exception as error:
            failed[runner] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            del steps[runner]
    if "ortmodule" in failed or ours.report().fallback != "none":
        raise SystemExit(f"the model did not run in the engine: {failed or ours.report().fallback_reason}")
    (fast,) = ours._manager.fast_calls[:1]
    call = (tuple(inputs), {})
    one = torch.ones((), requires_grad=True)
    losses: list[torch.Tensor] = []
    backward_seconds = [0.0]

    def timed_step() -> None:
        loss = ours(*inputs)
        start = time.perf_counter()
        loss.backward()
        backward_seconds[0] += time.perf_counter() - start

    samples: dict[str, list[float]] = {}
    for _ in rounds(args.rounds):
        round_ = {runner: per_call(step, args.repeats, modules[runner].zero_grad) for runner, step in steps.items()}
        round_["clearing"] = per_call(ours.zero_grad, args.repeats, steps["ortmodule"])
        backward_seconds[0] = 0.0
        seconds, kernels, inside = _C.kernel_seconds(lambda: per_call(timed_step, args.repeats, ours.zero_grad))
        round_["autograd"] = per_call(lambda: losses.pop().backward(), args.repeats, lambda: losses.append(one * 1))
        round_["kernels"] = seconds / args.repeats * 1e6
        round_["overhead"] = round_["ortmodule"] - round_["kernels"]
        round_["torch"] = (backward_seconds[0] - inside) / args.repeats * 1e6
        round_["own"] = round_["overhead"] - round_["torch"]
        round_["checks"] = per_call(lambda: fast.matches(*call), args.repeats)
        for key, value in round_.items():
            samples.setdefault(key, []).append(value)
    row: dict[str, Any] = {key: statistics.median(values) for key, values in samples.items()}
    row["fastest"] = {key: min(values) for key, values in samples.items() if key not in ("overhead", "own")}
    row["fastest"]["overhead"] = row["fastest"]["ortmodule"] - row["fastest"]["kernels"]
    row["fastest"]["own"] = row["fastest"]["overhead"] - row["fastest"]["torch"]
    return {"model": name, "calls": kernels // args.repeats, **row, "failed": failed}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=lambda s: s.split(","), default=list(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--parameters", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--json", metavar="OUT")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    models = {name: made(name, args) for name in args.models}
    rows = [measure(name, modules, args) for name, modules in models.items()]
    columns = ("ortmodule", "kernels", "overhead", "torch", "own", "checks", "autograd", "clearing", "eager", "compile")
    cells = []
    for row in rows:
        for label, times in ((f"{row['model']} median", row), (f"{row['model']} fastest", row["fastest"])):
            cells.append((label, str(row["calls"]), *(f"{times[k]:.1f}" if k in times else "-" for k in columns)))
    print(f"{args.parameters} parameters, 4 inputs; microseconds per forward and backward")
    print(table(("model", "kernel calls", *columns), cells))
    for row in rows:
        for runner, reason in row["failed"].items():
            print(f"{row['model']}: {runner} failed: {reason}")
    if args.json:
        write_json(args.json, {"environment": facts(threads=1), "arguments": settings(args), "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
