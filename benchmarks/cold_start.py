"""Seconds to the first training step: ORTModule without and with its disk cache, eager and torch.compile.

    python benchmarks/cold_start.py --models bert,gpt2 --threads 2 --json out.json
    python benchmarks/cold_start.py --models llama-32-layers,bamba,qwen3_next --runners compile,tracing,ortmodule

Each runner has a process of its own, in turn: a start, once per round. `first` is from wrapping the module to the end
of the first forward and backward; importing torch and transformers and building the model are outside of it, importing
ortmodule is told beside it. Python's collector has its turn before the clock starts: in which step it next looks at all
of 400,000 objects, a tenth of a first step, is else a matter of luck. `step` is a later step: what any first step takes
at least; `other` the first step with one text more, of one and a half times the length. The runner "tracing" is
torch.compile with a backend that makes nothing of what it has traced.

Not here: step times (step_time.py), the models (cold_models.py).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from cold_models import MODELS, build

from common import facts, settings, table, write_json

RUNNERS = ("eager", "compile", "compile warm", "ortmodule", "ortmodule warm")
TRACING = "tracing"


def worker(args: argparse.Namespace) -> dict[str, Any]:
    """One start, in this process."""
    import torch

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model, batches = build(args.models[0], args.batch, args.length, args.small)
    row: dict[str, Any] = {}
    start = time.perf_counter()
    if args.worker.startswith("ortmodule"):
        from ortmodule import ORTModule

        row["import_s"] = time.perf_counter() - start
    gc.collect()
    start, cpu = time.perf_counter(), time.process_time()
    if args.worker.startswith("ortmodule"):
        run = ORTModule(model)
    elif args.worker == TRACING:
        run = torch.compile(model, backend="eager")
    else:
        run = torch.compile(model) if args.worker.startswith("compile") else model

    def step(batch: dict[str, torch.Tensor]) -> Any:
        loss = run(**batch).loss
        loss.backward()
        return loss

    loss = step(batches[0])
    row["first_s"], row["first_cpu_s"] = time.perf_counter() - start, time.process_time() - cpu
    row["loss"] = loss.item()
    steps = []
    for _ in range(3):
        model.zero_grad()
        start = time.perf_counter()
        step(batches[0])
        steps.append(time.perf_counter() - start)
    row["step_s"] = min(steps)
    model.zero_grad()
    start = time.perf_counter()
    row["other_loss"] = step(batches[1]).item()
    row["other_s"] = time.perf_counter() - start
    if args.worker.startswith("ortmodule"):
        report = run.report()
        row["fallback"], row["export"] = report.fallback, [e.reason for e in report.exports]
        row["seconds"] = report.sessions[0].seconds if report.sessions else {}
    return row


def start_worker(model: str, runner: str, args: argparse.Namespace, folder: str) -> dict[str, Any]:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(args.threads),
        "MKL_NUM_THREADS": str(args.threads),
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TRITON_CACHE_DIR": f"{folder}/triton",
        "ORTMODULE_CACHE_DIR": f"{folder}/ortmodule",
    }
    command = [sys.executable, __file__, "--worker", runner, "--models", model, "--threads", str(args.threads)]
    command += ["--batch", str(args.batch), "--length", str(args.length), *["--small"] * args.small]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=args.worker_seconds)
    except subprocess.TimeoutExpired:
        return {"failed": "it took longer than --worker-seconds"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"failed": " ".join(done.stderr.split())[-300:]}
    row: dict[str, Any] = json.loads(lines[-1])
    if row.get("fallback", "none") != "none":
        row["failed"] = f"fallback: {row['fallback']}"
    return row


def measure(model: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per runner: the median start of all rounds, each with empty caches; "warm" runs on what the one before it
    left."""
    starts: dict[str, list[dict[str, Any]]] = {runner: [] for runner in args.runners}
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory(prefix="cold_start_") as folder:
            for runner in args.runners:
                starts[runner].append(start_worker(model, runner, args, folder))
    rows = []
    for runner, all_ in starts.items():
        good = [row for row in all_ if "failed" not in row] or all_[:1]
        row = {"model": model, "runner": runner, **good[-1], "load": round(os.getloadavg()[0], 2)}
        for key in ("import_s", "first_s", "first_cpu_s", "step_s", "other_s"):
            if all(key in g for g in good):
                row[key] = statistics.median(g[key] for g in good)
        rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models",
        type=lambda s: s.split(","),
        default=["bert", "gpt2"],
        help=f"of {', '.join(MODELS)}, or causal architectures of transformers, tiny",
    )
    names = ", ".join((*RUNNERS, TRACING))
    parser.add_argument("--runners", type=lambda s: s.split(","), default=list(RUNNERS), help=f"of {names}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--small", action="store_true", help="one narrow layer, to try the harness")
    parser.add_argument("--worker-seconds", type=float, default=600)
    parser.add_argument("--json", metavar="OUT")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = set(args.runners) - {*RUNNERS, TRACING}
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    if args.worker:
        print(json.dumps(worker(args)))
        return 0
    rows = [row for model in args.models for row in measure(model, args)]
    header = ("model", "runner", "first s", "CPU s", "step s", "other s", "import s", "load")
    cells = [
        (row["model"], row["runner"], row["failed"] if "failed" in row else f"{row['first_s']:.2f}",
         *(f"{row[k]:.2f}" if k in row else "-" for k in ("first_cpu_s", "step_s", "other_s", "import_s", "load")))
        for row in rows
    ]  # fmt: skip
    print(table(header, cells))
    if args.json:
        write_json(args.json, {"environment": facts(threads=args.threads), "arguments": settings(args), "rows": rows})
    return int(any("failed" in row and row["runner"].startswith("ortmodule") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
