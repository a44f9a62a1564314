"""Training steps of the six real models on a GPU: eager, torch.compile and ORTModule, in bf16 autocast.

    python benchmarks/gpu_steps.py --models gpt2-small,bert-large --runners eager,ortmodule --json out.json

The runners of one wave of models start together, each in a process of its own (worker.py), because what they compile
takes the host long and the device not at all; they are then measured one after another, in turns, while the others wait
without activations or state of an optimizer. What a step's kernels took by torch.profiler comes last.
Not here: the models (gpu_models.py), predictions (gpu_model.py), correctness (gpu_units.py).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import statistics
import sys
import time
from typing import Any

from gpu_models import MODELS
from step_time import Worker, attempt, names, summary

from common import facts, settings, table, write_json

RUNNERS = ("eager", "ortmodule", "compile")
# In waves of three they fit a GPU of 139 GiB together.
ORDER = ("gpt2-small", "llama-1b", "resnet50", "gpt2-medium", "bert-large", "vit-large")
KEPT_KERNELS = 60  # of the profile of a step


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    known = tuple(sorted(MODELS, key=ORDER.index))
    parser.add_argument("--models", type=names(known), default=list(known), help=", ".join(known))
    parser.add_argument("--runners", type=names(RUNNERS), default=list(RUNNERS), help=", ".join(RUNNERS))
    parser.add_argument("--wave", type=int, default=3, help="models whose runners start together")
    parser.add_argument("--rounds", type=int, default=2, help="turns of every runner")
    parser.add_argument("--samples", type=int, default=3, help="samples per turn")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="bf16", help="bf16: autocast over fp32 weights")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--worker-seconds", type=float, default=200.0, help="time limit of a worker, from its start")
    parser.add_argument("--seconds", type=float, default=480.0, help="no wave begins and no turn after these")
    parser.add_argument("--no-kernels", dest="kernels", action="store_false", help="no profile of a step's kernels")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the harness")
    parser.add_argument("--json", metavar="OUT", help="written after every wave")
    parser.set_defaults(real=True, logits=False, pages_kept=False, before=None)
    return parser.parse_args(argv)


def start(model: str, runner: str, args: argparse.Namespace) -> Worker:
    """A worker after its first step, warm and with its memory measured; or the reason why not, in its row."""
    worker = Worker(model, "dense", runner, args)
    attempt(worker, "warm")
    worker.row.update(attempt(worker, "memory"))
    return worker


def measure(models: list[str], args: argparse.Namespace, end: float) -> list[dict[str, Any]]:
    """A row for each model and runner of a wave."""
    chosen = [(model, runner) for model in models for runner in args.runners]
    with concurrent.futures.ThreadPoolExecutor(len(chosen)) as pool:
        workers = list(pool.map(lambda pair: start(*pair, args), chosen))
    try:
        for turn in range(args.rounds):
            for worker in workers if turn % 2 == 0 else reversed(workers):
                if turn and time.monotonic() > end:
                    break
                for part, values in attempt(worker, "steps", samples=args.samples).items():
                    worker.samples[part] += values
        for worker in workers:
            for part, values in worker.samples.items():
                if values:
                    worker.row[f"{part}_ms"] = summary(values)
            if args.kernels and time.monotonic() < end:
                profile = attempt(worker, "kernels")
                found = profile.get("kernels", [])
                worker.row["waited_ms"] = profile.get("waited_us", 0.0) / 1e3
                worker.row["idle_ms"] = profile.get("idle_us", 0.0) / 1e3
                worker.row["gaps"] = profile.get("gaps", [])
                worker.row["kernel_ms"] = sum(row[2] for row in found) / 1e3
                worker.row["launches"] = sum(row[1] for row in found)
                worker.row["kernels"] = found[:KEPT_KERNELS]
        return [worker.row for worker in workers]
    finally:
        for worker in workers:
            worker.__exit__(None, None, None)


def ratios(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """{model: {runner: {fb, step, first_step, step_memory}}} over eager's; {"geometric mean": ...} of all models."""
    keys = {
        "fb": lambda r: r["fb_ms"]["median"],
        "step": lambda r: r["step_ms"]["median"],
        "first_step": lambda r: r["first_step_s"],
        "step_memory": lambda r: r["step_memory_mib"],
    }
    good = {(r["model"], r["runner"]): r for r in rows if "failed" not in r and "step_ms" in r}
    out: dict[str, dict[str, dict[str, float]]] = {}
    for (model, runner), row in good.items():
        base = good.get((model, "eager"))
        if base is not None and runner != "eager":
            out.setdefault(model, {})[runner] = {k: get(row) / get(base) for k, get in keys.items()}
    for runner in RUNNERS:
        of = [models[runner] for models in out.values() if runner in models]
        if of:
            mean = {k: statistics.geometric_mean(one[k] for one in of) for k in keys}
            out.setdefault("geometric mean", {})[runner] = mean
    return out


def text(rows: list[dict[str, Any]], compared: dict[str, dict[str, dict[str, float]]]) -> str:
    header = ("model", "runner", "fb ms", "x", "step ms", "x", "host ms", "waits ms", "idle ms", "kernels ms",
              "launches", "step MiB", "x", "first s", "loss")  # fmt: skip
    lines = []
    for row in rows:
        if "failed" in row or "step_ms" not in row:
            continue
        ratio = compared.get(row["model"], {}).get(row["runner"], {})
        times = {k: f"{ratio[k]:.3f}" if k in ratio else "-" for k in ("fb", "step", "step_memory")}
        lines.append(
            (row["model"], row["runner"], f"{row['fb_ms']['median']:.2f}", times["fb"],
             f"{row['step_ms']['median']:.2f}", times["step"], f"{row['host_ms']['median']:.2f}",
             f"{row.get('waited_ms', 0):.2f}", f"{row.get('idle_ms', 0):.2f}", f"{row.get('kernel_ms', 0):.2f}",
             f"{row.get('launches', 0):.0f}",
             f"{row['step_memory_mib']:.0f}", times["step_memory"], f"{row['first_step_s']:.1f}", f"{row['loss']:.4f}")
        )  # fmt: skip
    failed = [f"{row['model']}: {row['runner']} failed: {row['failed']}" for row in rows if "failed" in row]
    return "\n".join([table(header, lines), *failed])


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    end = time.monotonic() + args.seconds
    result: dict[str, Any] = {"environment": facts(args.device, args.threads), "rows": []}
    result["settings"] = settings(args)
    result["skipped"] = []
    for first in range(0, len(args.models), args.wave):
        models = args.models[first : first + args.wave]
        if time.monotonic() > end:
            result["skipped"] += models
            continue
        result["rows"] += measure(models, args, end)
        result["ratios"] = ratios(result["rows"])
        if args.json:
            write_json(args.json, result)
        print(text([r for r in result["rows"] if r["model"] in models], result["ratios"]), flush=True)
    for runner, mean in result.get("ratios", {}).get("geometric mean", {}).items():
        print(f"{runner} / eager: " + ", ".join(f"{key} {value:.3f}" for key, value in mean.items()))
    if result["skipped"]:
        print(f"no time for {', '.join(result['skipped'])}")
    return 1 if any("failed" in row and row["runner"] != "compile" for row in result["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
