"""The training step on paper: what eager's operators and the engine's plan would cost on a GPU. Nothing runs on one.

    python benchmarks/gpu_model.py --gpus h200,a100,l4,rtx4090 --json benchmarks/results/out.json
    python benchmarks/gpu_model.py --models bert-large --gpus h200 --nodes      by operator, the longest first

Forward and backward in bf16 autocast at real sizes, planned without memory: for eager its ATen operators over fake
tensors, for the engine the plan that it compiled with a GPU's prices, in five ways:
    aten      without kernels of ours: ATen for each node, nothing fused
    today     as a CUDA session runs: generated kernels, flash attention, our kernels where there are some
    own       one kernel of ours for each node that is no product, convolution or attention
    kept      the same where forward keeps everything for backward (memory_budget="all")
    merged    the same with neighbouring kernels joined where they run over as many elements: a bound
Beside them "products" is eager's products, convolutions and attention alone: no fusion makes a step shorter than that.
A last line adds AdamW's step: torch.optim's default and its fused kernel for eager, ortmodule.optim's kernel for the
engine; behind it, launches and bytes of this package's other optimizers and of clipping.
All inputs are printed and assumed, none was measured on a GPU; docs/cuda.md says what follows and what does not.
Not here: the GPUs and the time of a kernel (gpu_paper/machines.py), what is counted (gpu_paper/eager.py, planned.py).
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from typing import Any

import step_time
import torch
from gpu_models import MODELS, without_memory
from gpu_paper.eager import eager_kernels
from gpu_paper.machines import (
    ATEN_HOST,
    EAGER_HOST,
    FLOOR_US,
    GPUS,
    OWN_HOST,
    Efficiencies,
    Kernel,
    by_name,
    predict,
)  # fmt: skip
from gpu_paper.optimizer import OWN, default_kernels, fused_kernels, own_kernels
from gpu_paper.planned import PAPER, merged_kernels, own_operators, plan_of, planned_kernels

from common import facts, table, write_json
from ortmodule import Options

CAUSAL = ("gpt2-small", "gpt2-medium", "llama-1b")


def ways_of(name: str) -> dict[str, list[Kernel]]:
    """The kernels of one model's step by the way that it runs."""
    real = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        batch = real.batch()
    causal = name in CAUSAL
    plans = {}
    for way, options in {
        "aten": Options(fusion=False, providers=PAPER),
        "today": Options(providers=PAPER),
        "kept": Options(memory_budget="all", providers=PAPER),
    }.items():
        plans[way] = plan_of(without_memory(real.module), batch, options, batch[-1])
    eager = eager_kernels(real.module, batch)
    return {
        "eager": eager,
        "aten": planned_kernels(plans["aten"], frozenset(), causal=causal),
        "today": planned_kernels(plans["today"], own_operators(), causal=causal),
        "own": planned_kernels(plans["today"], None, causal=causal),
        "kept": planned_kernels(plans["kept"], None, causal=causal),
        "merged": merged_kernels(plans["kept"], causal=causal),
        "products": [k for k in eager if k.flops],
    }


def rows_of(model: str, ways: dict[str, list[Kernel]], gpu: str, shares: Efficiencies) -> list[dict[str, Any]]:
    rows = []
    for way, kernels in ways.items():
        found = predict(kernels, GPUS[gpu], EAGER_HOST if way == "eager" else ATEN_HOST, shares)
        row = {"model": model, "gpu": gpu, "way": way, **dataclasses.asdict(found)}
        row |= {"idle": found.idle, "launch_bound": found.launch_bound, "waits": sum(k.waits for k in kernels)}
        rows.append(row)
    for row in rows:
        row["faster"] = rows[0]["step"] / row["step"]
    return rows


def with_adamw(model: str, rows: list[dict[str, Any]], gpu: str, shares: Efficiencies) -> dict[str, Any]:
    """The step of eager and of a session ("today") with AdamW, one after the other, in ms; how many times faster."""
    make = MODELS[model].module
    found = {}
    ways = {"default": (default_kernels(make), EAGER_HOST), "fused": (fused_kernels(make), EAGER_HOST)}
    for name, (kernels, host) in (ways | {n: (own_kernels(make, n), OWN_HOST) for n in OWN}).items():
        took = predict(kernels, GPUS[gpu], host, shares)
        found[name] = {"step": took.step, "launches": took.launches, "gigabytes": took.gigabytes}
    steps = {row["way"]: row["step"] for row in rows}
    ours = steps["today"] + found["AdamW"]["step"]
    faster = {name: (steps["eager"] + found[name]["step"]) / ours for name in ways}
    return {"model": model, "gpu": gpu, **found, "faster_than_default": faster["default"],
            "faster_than_fused": faster["fused"]}  # fmt: skip


HEADER = (
    "model",
    "way",
    "launches",
    "GB",
    "TFLOP",
    "device ms",
    "host ms",
    "idle ms",
    "step ms",
    "x eager",
    "bound by",
)


def line_of(row: dict[str, Any]) -> tuple[str, ...]:
    numbers = (f"{row['gigabytes']:.1f}", f"{row['teraflops']:.2f}", f"{row['device']:.2f}", f"{row['host']:.2f}")
    ends = (f"{row['idle']:.2f}", f"{row['step']:.2f}", f"{row['faster']:.2f}")
    bound = "launches" if row["launch_bound"] else "the device"
    return (row["model"], row["way"], str(row["launches"]), *numbers, *ends, bound)


def inputs_text(gpus: list[str], shares: Efficiencies) -> str:
    lines = ["Inputs, none measured on a GPU:"]
    for gpu in gpus:
        g = GPUS[gpu]
        peaks = ", ".join(f"{kind} {getattr(g, kind) / 1e12:g} Tflop/s" for kind in ("bf16", "tf32", "fp32"))
        lines.append(f"  {g.title}: {g.bandwidth / 1e12:g} TB/s, {peaks} ({g.source})")
    reached = ", ".join(f"{k} {v:g}" for k, v in dataclasses.asdict(shares).items())
    lines.append(f"  shares of these that a kernel reaches, assumed: {reached}")
    for who, costs in (("eager", EAGER_HOST), ("engine through ATen", ATEN_HOST), ("engine's own launches", OWN_HOST)):
        what = ", ".join(f"{k} {v:g} us" for k, v in dataclasses.asdict(costs).items())
        lines.append(f"  host, {who}, assumed: {what}")
    lines.append(f"  a kernel takes at least {FLOOR_US:g} us, assumed; caches are not modelled")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=step_time.names(tuple(MODELS)), default=list(MODELS))
    parser.add_argument("--gpus", type=step_time.names(tuple(GPUS)), default=["h200"])
    for field in dataclasses.fields(Efficiencies):
        parser.add_argument(
            f"--{field.name}", type=float, default=field.default, help="share of the datasheet's number"
        )
    parser.add_argument("--nodes", action="store_true", help="tables by operator")
    parser.add_argument("--json", metavar="OUT", help="written after every model")
    args = parser.parse_args(argv)
    shares = Efficiencies(**{f.name: getattr(args, f.name) for f in dataclasses.fields(Efficiencies)})
    print(inputs_text(args.gpus, shares), flush=True)
    inputs = {
        "gpus": {gpu: dataclasses.asdict(GPUS[gpu]) for gpu in args.gpus},
        "efficiencies": dataclasses.asdict(shares),
        "hosts": {"eager": EAGER_HOST, "aten": ATEN_HOST, "own": OWN_HOST},
        "floor_us": FLOOR_US,
    }
    inputs["hosts"] = {k: dataclasses.asdict(v) for k, v in inputs["hosts"].items()}
    result: dict[str, Any] = {"environment": facts(), "measured": False, "inputs": inputs}
    result |= {"rows": [], "adamw": [], "operators": {}}
    for model in args.models:
        begin = time.perf_counter()
        ways = ways_of(model)
        print(f"\n{MODELS[model].title} (counted in {time.perf_counter() - begin:.0f} s)", flush=True)
        for gpu in args.gpus:
            rows = rows_of(model, ways, gpu, shares)
            result["rows"] += rows
            print(f"{GPUS[gpu].title}\n{table(HEADER, [line_of(row) for row in rows])}", flush=True)
            adamw = with_adamw(model, rows, gpu, shares)
            result["adamw"].append(adamw)
            names = ("default", "fused", "AdamW")
            took = ", ".join(f"{n} {adamw[n]['step']:.2f} ms in {adamw[n]['launches']}" for n in names)
            ratios = f"{adamw['faster_than_default']:.2f} and {adamw['faster_than_fused']:.2f} times eager's"
            print(f"with AdamW ({took}): {ratios}", flush=True)
            sizes = ", ".join(f"{n} {adamw[n]['launches']} launches, {adamw[n]['gigabytes']:.2f} GB" for n in OWN)
            print(f"ortmodule.optim: {sizes}", flush=True)
        first = GPUS[args.gpus[0]]
        result["operators"][model] = {way: by_name(kernels, first, shares) for way, kernels in ways.items()}
        if args.nodes:
            print_nodes(result["operators"][model])
        if args.json:
            write_json(args.json, result)
    return 0


def print_nodes(operators: dict[str, list[dict[str, Any]]]) -> None:
    for way, rows in operators.items():
        lines = [
            (r["op"], r["half"], str(r["launches"]), f"{r['gigabytes']:.2f}", f"{r['teraflops']:.2f}", f"{r['ms']:.2f}")
            for r in rows[:16]
        ]
        print(f"{way}\n{table(('operator', 'half', 'launches', 'GB', 'TFLOP', 'ms'), lines)}")


if __name__ == "__main__":
    sys.exit(main())
