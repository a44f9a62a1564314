"""Every hand-written or fused kernel of the CPU beside eager, torch.compile and what the machine allows.

    python benchmarks/kernel_table.py --kernels layer_norm,attention --runners eager,ortmodule --json out.json

One row per entry of kernels.py: forward and backward of that module alone, all runners in one process and in turns,
medians. `limit` is the longer of two times: the operations of its products at the best rate that a large product
reached here, and the bytes that it must move (each input, parameter, output and gradient, once per direction)
at the rate of copying a large tensor. Both rates are measured first; tensors that fit a cache can be faster.
For all runners malloc keeps its pages: else a row would measure the page faults of gradients that leave the step.
The JSON also has `nodes`, the operators that ORTModule ran. A step of this size pays for autograd as well and, in
ORTModule, for the checks of a call (overhead.py).
Not here: whole models (step_time.py, roofline.py).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import roofline
import step_time
import torch
from kernels import KERNELS, Kernel, Tensors
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from common import facts, table, write_json

RUNNERS = ("eager", "compile", "ortmodule")
SAMPLE_SECONDS = 0.03  # a step is repeated for about as long


def best_rate(dtype: torch.dtype, size: int) -> float:
    """FLOP/s of a square product by the library that is fastest at it."""
    product = (size, size, size, False, True, 1)
    return max(roofline.flops(product) / roofline.seconds(call) for call in roofline.libraries(product, dtype).values())


def bandwidth(megabytes: int) -> float:
    """Bytes per second that copying moves, read and written."""
    source = torch.randn(megabytes * 2**18)
    target = torch.empty_like(source)
    return 2 * source.nbytes / roofline.seconds(lambda: target.copy_(source))


def wrapped(runner: str, module: nn.Module) -> nn.Module:
    if runner == "ortmodule":
        from ortmodule import ORTModule

        return ORTModule(module)
    return torch.compile(module) if runner == "compile" else module  # type: ignore[return-value]


class Row:
    """One kernel: a module with its inputs, and how to step it."""

    def __init__(self, kernel: Kernel, args: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.kernel, self.bf16 = kernel, args.dtype == "bf16"
        self.module = kernel.module(args.small)
        self.inputs: Tensors = kernel.inputs(args.small)
        self.leaves = [x.requires_grad_() for x in self.inputs if x.is_floating_point()] + [*self.module.parameters()]
        with FlopCounterMode(display=False) as counted:
            y = self.forward(self.module)
            self.dy = torch.randn_like(y)
            y.backward(self.dy)
        self.flops = kernel.flops(self.inputs) if kernel.flops else counted.get_total_flops()
        self.y_bytes = y.nbytes

    def forward(self, module: nn.Module) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            return module(*self.inputs)

    def step(self, module: nn.Module) -> None:
        for leaf in self.leaves:
            leaf.grad = None
        self.forward(module).backward(self.dy)

    def bytes(self) -> int:
        """Forward reads its inputs and writes y; backward reads them and dy, and writes their gradients."""
        if self.kernel.touched:
            return self.kernel.touched(self.inputs)
        given = {id(x): x.nbytes for x in (*self.inputs, *self.module.parameters())}
        return 2 * sum(given.values()) + 2 * self.y_bytes + sum(x.nbytes for x in self.leaves)

    def nodes(self, module: nn.Module) -> list[str]:
        import ortmodule

        with ortmodule.profile(module) as profile:
            self.step(module)
        return list(dict.fromkeys(node.op for node in profile.nodes))


def milliseconds(step: Callable[[], None], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - start) / repeats * 1e3


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    row = Row(KERNELS[name], args)
    steps: dict[str, Callable[[], None]] = {}
    failed: dict[str, str] = {}
    nodes: list[str] = []
    for runner in args.runners:
        module = wrapped(runner, row.module)

        def step(module: nn.Module = module) -> None:
            row.step(module)

        try:
            for _ in range(3):
                step()
            if runner == "ortmodule":
                report = module.report()  # type: ignore[operator]
                if report.fallback != "none":
                    raise RuntimeError(f"not in the engine: {report.fallback_reason}")
                nodes = row.nodes(module)
            steps[runner] = step
        except Exception as error:
            failed[runner] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    repeats = {r: max(1, int(SAMPLE_SECONDS * 1e3 / milliseconds(step, 2))) for r, step in steps.items()}
    samples: dict[str, list[float]] = {runner: [] for runner in steps}
    for _ in range(args.rounds):
        for runner, step in steps.items():
            samples[runner].append(milliseconds(step, repeats[runner]))
    ms = {runner: statistics.median(values) for runner, values in samples.items()}
    return {"kernel": name, "what": row.kernel.what, "ms": ms, "bytes": row.bytes(), "flops": row.flops, "nodes": nodes,
            "failed": failed}  # fmt: skip


def limits(row: dict[str, Any], rates: dict[str, float]) -> None:
    products, memory = row["flops"] / rates["flops"] * 1e3, row["bytes"] / rates["bytes"] * 1e3
    row["limit_ms"], row["limited_by"] = max((products, "products"), (memory, "memory"))


def cells(row: dict[str, Any]) -> list[str]:
    ms = row["ms"]
    ours = ms.get("ortmodule")

    def over(other: float | None) -> str:
        return f"{ours / other:.2f}" if ours and other else "-"

    times = [f"{ms[runner]:.3f}" if runner in ms else "-" for runner in RUNNERS]
    ratios = [over(ms.get("eager")), over(ms.get("compile"))]
    return [row["kernel"], *times, *ratios, f"{row['limit_ms']:.3f}", over(row["limit_ms"]), row["limited_by"]]


HEADER = ("kernel", *RUNNERS, "x eager", "x compile", "limit", "x limit", "limited by")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kernels", type=step_time.names(tuple(KERNELS)), default=list(KERNELS), metavar="NAMES",
                        help=", ".join(KERNELS))  # fmt: skip
    parser.add_argument("--runners", type=step_time.names(RUNNERS), default=list(RUNNERS))
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="bf16: autocast over fp32 weights")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: every core")
    parser.add_argument("--rounds", type=int, default=9, help="turns of every runner")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the harness")
    parser.add_argument("--json", metavar="OUT", help="written after every kernel")
    args = parser.parse_args(argv)
    if not all(os.environ.get(name) == value for name, value in step_time.PAGES_KEPT.items()):
        os.environ.update(step_time.PAGES_KEPT)  # malloc reads them when a process starts
        os.execv(sys.executable, [sys.executable, __file__, *(sys.argv[1:] if argv is None else argv)])
    torch.set_num_threads(args.threads)
    dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
    rates = {"flops": best_rate(dtype, 256 if args.small else 2048), "bytes": bandwidth(4 if args.small else 256)}
    rows: list[dict[str, Any]] = []
    for name in args.kernels:
        row = measure(name, args)
        limits(row, rates)
        rows.append(row)
        for runner, reason in row["failed"].items():
            print(f"{name}: {runner}: {reason}", flush=True)
        if args.json:
            data = {"environment": facts("cpu", args.threads), "dtype": args.dtype, "rates": rates, "rows": rows}
            write_json(args.json, data)
    print(
        f"products {rates['flops'] / 1e9:.0f} GFLOP/s, memory {rates['bytes'] / 1e9:.1f} GB/s; forward + backward, ms"
    )
    print(table(HEADER, [cells(row) for row in rows]))
    return 1 if any("ortmodule" in row["failed"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
