"""Training-step time, time to first step and peak memory: ORTModule beside eager and torch.compile.

    python benchmarks/step_time.py --models bert,gpt2 --runners ortmodule,eager,compile --dtype fp32 --json out.json

Each runner has a process of its own (worker.py); exactly one is active at a time, and rounds alternate between them, so
that a change of the machine's speed meets all alike. README.md beside this says what each number means.
Not here: the models (models.py, used_models.py), the timing of a step (worker.py).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import models
import used_models

from common import commit, facts, python_of, table, write_json

BEFORE = "ortmodule-before"  # of another checkout
RUNNERS = ("ortmodule", "eager", "compile", "ortmodule-loss", BEFORE)
BASELINES = ("eager", BEFORE)
BATCHES = ("dense", "realistic")
PARTS = ("fb", "fb_cpu", "forward", "backward", "optimizer", "step", "host")
# glibc's malloc then keeps every page that it ever got, as a caching allocator does.
PAGES_KEPT = {"MALLOC_MMAP_THRESHOLD_": str(4 << 30), "MALLOC_TRIM_THRESHOLD_": str(16 << 30)}


class WorkerFailure(Exception):
    """A worker answered with a failure, or ended."""


class Worker:
    """A worker process, with a folder for its caches and its messages that goes with it."""

    def __init__(self, model: str, batches: str, runner: str, args: argparse.Namespace) -> None:
        self.limit = time.monotonic() + args.worker_seconds
        self.folder = Path(tempfile.mkdtemp(prefix="step_time_"))
        threads = str(args.threads)
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),
            "TRITON_CACHE_DIR": str(self.folder / "triton"),
        }
        environment = dict(os.environ, OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads, **caches)
        if args.pages_kept:
            environment.update(PAGES_KEPT)
        python = str(python_of(args.before)) if runner == BEFORE else sys.executable
        command = [python, str(Path(__file__).with_name("worker.py")), "--model", model]
        command += ["--runner", "ortmodule" if runner == BEFORE else runner]
        command += ["--dtype", args.dtype, "--device", args.device, "--threads", threads, *(["--small"] * args.small)]
        command += ["--batches", batches, *(["--logits"] * args.logits), *(["--real"] * getattr(args, "real", False))]
        command += ["--as-used"] * getattr(args, "as_used", False)
        start = time.perf_counter()
        with open(self.folder / "messages", "w") as messages:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=messages, text=True, env=environment
            )
        self.row: dict[str, Any] = {"model": model + "*" * (batches == "realistic"), "runner": runner}
        self.row.update(dtype=args.dtype, batches=batches, logits=args.logits)
        if runner == BEFORE:
            self.row["commit"] = commit(args.before)
        self.samples: dict[str, list[float]] = {part: [] for part in PARTS}
        try:
            self.row.update(self._answer())
            self.row["process_to_first_step_s"] = time.perf_counter() - start
        except WorkerFailure as failure:
            self.fail(failure)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def alive(self) -> bool:
        return "failed" not in self.row

    def fail(self, failure: WorkerFailure) -> None:
        self.row["failed"] = str(failure)

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **more}) + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # the worker ended; _answer says how
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self._line()
        if not line:
            self.process.kill()
            last = (self.folder / "messages").read_text(errors="replace").split("\n")[-6:]
            raise WorkerFailure(
                f"the process ended with {self.process.wait()}: {' '.join(' '.join(last).split())[-400:]}"
            )
        answer = json.loads(line)
        if "failed" in answer:
            raise WorkerFailure(answer["failed"])
        return answer

    def _line(self) -> str:
        """The next line, or nothing when the process ends; a worker beyond its time limit is stopped."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, self.limit - time.monotonic()))
        if not ready:
            self.process.kill()
            self.process.wait()
            raise WorkerFailure("it took longer than its time limit (--worker-seconds)")
        return self.process.stdout.readline()


def attempt(worker: Worker, do: str, **more: Any) -> dict[str, Any]:
    """The worker's answer; a worker that fails leaves the comparison with its reason, the others go on."""
    if not worker.alive:
        return {}
    try:
        return worker.ask(do, **more)
    except WorkerFailure as failure:
        worker.fail(failure)
        return {}


def summary(samples: list[float]) -> dict[str, float]:
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples)}


def measure(model: str, batches: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per runner for one model and one kind of batches."""
    workers: list[Worker] = []
    try:
        for runner in args.runners:
            workers.append(Worker(model, batches, runner, args))
            attempt(workers[-1], "warm")
            workers[-1].row.update(attempt(workers[-1], "memory"))
        for turn in range(args.rounds):
            # Every other round goes backwards, so that no runner always follows the same one.
            for worker in workers if turn % 2 == 0 else reversed(workers):
                answer = attempt(worker, "measure", samples=args.samples)
                for part, values in answer.items():
                    worker.samples[part] += values
        for worker in workers:
            for part, values in worker.samples.items():
                if values and worker.alive:
                    worker.row[f"{part}_ms"] = summary(values)
            worker.row["load"] = round(os.getloadavg()[0], 2)
        return [worker.row for worker in workers]
    finally:
        for worker in workers:
            worker.__exit__(None, None, None)


def ratios(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float | None]]]:
    """{model: {runner: {fb, fb_min, fb_cpu, peak_memory, step_memory, beyond_gradients, first_step}}}, over eager's,
    or, without it, over those of the checkout before.
    """
    keys = {
        "fb": lambda r: r["fb_ms"]["median"],
        "fb_min": lambda r: r["fb_ms"]["min"],
        "fb_cpu": lambda r: r["fb_cpu_ms"]["median"],
        "peak_memory": lambda r: r["peak_memory_mib"],
        "step_memory": lambda r: r["step_memory_mib"],
        "beyond_gradients": lambda r: r["beyond_gradients_mib"],
        "first_step": lambda r: r["first_step_s"],
    }
    good = {(r["model"], r["runner"]): r for r in rows if "failed" not in r}
    out: dict[str, dict[str, dict[str, float | None]]] = {}
    for (model, runner), row in good.items():
        base = next((good[model, name] for name in BASELINES if (model, name) in good), None)
        if base is None or runner == base["runner"]:
            continue
        values = {k: (get(row), get(base)) for k, get in keys.items()}
        out.setdefault(model, {})[runner] = {k: a / b if b > 0 else None for k, (a, b) in values.items()}
    return out


HEADER = (
    "model", "runner", "fb ms (min..max)", "x eager", "CPU ms", "x eager", "forward", "backward", "AdamW", "first s",
    "with start s", "peak MiB", "x eager", "step MiB", "x eager", "beyond grads", "x eager", "load",
)  # fmt: skip


def number(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def cells(row: dict[str, Any], compared: dict[str, Any]) -> list[str]:
    ratio = compared.get(row["model"], {}).get(row["runner"], {})

    def times(key: str) -> str:
        return f"{ratio[key]:.3f}" if ratio.get(key) else "-"

    fb = row["fb_ms"]
    return [
        row["model"],
        row["runner"],
        f"{number(fb['median'])} ({number(fb['min'])}..{number(fb['max'])})",
        times("fb"),
        number(row["fb_cpu_ms"]["median"]),
        times("fb_cpu"),
        *(number(row[f"{part}_ms"]["median"]) for part in ("forward", "backward", "optimizer")),
        f"{row['first_step_s']:.2f}",
        f"{row['process_to_first_step_s']:.1f}",
        f"{row['peak_memory_mib']:.1f}",
        times("peak_memory"),
        f"{row['step_memory_mib']:.1f}",
        times("step_memory"),
        f"{row['beyond_gradients_mib']:.1f}",
        times("beyond_gradients"),
        f"{row['load']:.1f}",
    ]


def text(rows: list[dict[str, Any]]) -> str:
    """The table of all rows; runners that failed follow with their reasons."""
    compared = ratios(rows)
    good = [cells(row, compared) for row in rows if "failed" not in row]
    baseline = "eager" if any(row["runner"] == "eager" for row in rows if "failed" not in row) else "before"
    lines = [table([title.replace("eager", baseline) for title in HEADER], good)] if good else []
    lines += [f"{row['model']}: {row['runner']} failed: {row['failed']}" for row in rows if "failed" in row]
    return "\n".join(lines)


def names(known: tuple[str, ...]) -> Any:
    def parse(value: str) -> list[str]:
        chosen = [name for name in value.split(",") if name]
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"unknown name {name!r}; known: {', '.join(known)}")
        return chosen

    return parse


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", help=f"{', '.join(models.MODELS)}; with --as-used {', '.join(used_models.MODELS)}")
    parser.add_argument(
        "--as-used", action="store_true", help="models of transformers, which return loss and scores (used_models.py)"
    )
    parser.add_argument("--runners", type=names(RUNNERS), default=list(RUNNERS[:3]), help=", ".join(RUNNERS))
    parser.add_argument(
        "--batches", type=names(BATCHES), default=["dense"], help="dense, realistic: padded texts (marked model*)"
    )
    parser.add_argument("--logits", action="store_true", help="language models return their scores besides the loss")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="bf16: autocast over fp32 weights")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: every core")
    parser.add_argument("--rounds", type=int, default=5, help="turns of every runner")
    parser.add_argument("--samples", type=int, default=3, help="samples per turn")
    parser.add_argument("--worker-seconds", type=float, default=1800.0, help="time limit of one runner on one model")
    parser.add_argument(
        "--before", type=lambda s: Path(s).resolve(), metavar="CHECKOUT", help=f"another checkout, set up, for {BEFORE}"
    )
    parser.add_argument("--pages-kept", action="store_true", help="malloc never returns memory to the system")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the harness")
    parser.add_argument("--json", metavar="OUT", help="written after every model")
    args = parser.parse_args(argv)
    known: dict[str, Any] = used_models.MODELS if args.as_used else models.MODELS
    try:
        args.models = names(tuple(known))(args.models) if args.models else list(known)
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    if args.as_used and (args.logits or args.batches != ["dense"]):
        parser.error("--as-used takes neither --logits nor --batches: its models have results and texts of their own")
    if BEFORE in args.runners and args.before is None:
        parser.error(f"{BEFORE} needs --before")
    result: dict[str, Any] = {
        "environment": facts(args.device, args.threads),
        "settings": {
            "rounds": args.rounds,
            "samples": args.samples,
            "pages_kept": args.pages_kept,
            "small": args.small,
            "logits": args.logits,
            "as_used": args.as_used,
        },
        "rows": [],
        "ratios": {},
    }
    print(", ".join(f"{k} {v}" for k, v in result["environment"].items() if v is not None), flush=True)
    for model, batches in itertools.product(args.models, args.batches):
        if batches == "realistic" and known[model].realistic_batch is None:
            continue
        rows = measure(model, batches, args)
        for row in rows:
            row["title"] = known[model].title
        result["rows"] += rows
        result["ratios"] = ratios(result["rows"])
        if args.json:
            write_json(args.json, result)
        kind = f"{' (small)' * args.small}{', padded texts' * (batches == 'realistic')}, {args.dtype}"
        print(f"\n{known[model].title}{kind}\n{text(rows)}", flush=True)
    failed = [row for row in result["rows"] if "failed" in row and row["runner"] != "compile"]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
