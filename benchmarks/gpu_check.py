"""Everything a GPU can tell about a commit, within minutes and in one command; writes one JSON file.

    python benchmarks/gpu_check.py --json out.json                      on a machine with CUDA
    python benchmarks/gpu_check.py --device cpu --small                 the same way through, without a GPU

Parts, each in processes of their own with a time limit, so that neither a crash nor a hang costs the other parts.
First, side by side, what is right:
    operators   every operator sample of the tests, forward and gradient, in three types, against eager on the device
    models      every model family of the tests, losses and gradients against eager on the device
    features    what a step needs beside kernels: copies, random numbers, checkpoints, a module that changes devices
    kernels     the cases of our own CUDA kernels in three types, three times with equal bits
    sanitizer   a share of the kernels' cases under compute-sanitizer, where that is installed
Then, alone on the device, how fast:
    steps       step time, memory and kernels of six real models: eager, ORTModule and torch.compile (gpu_steps.py)
The engine is first built in place when it cannot be imported. Exit code: 0 all well, 1 something failed (the file says
what), 2 there is no GPU.
Not here: the checks themselves (gpu_units.py, gpu_steps.py).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import ROOT, facts, write_json

HERE = Path(__file__).resolve().parent
# Seconds of the whole, when the time is 8 minutes: at most this much for a part; steps take what is left.
BUDGET = {"operators": 80.0, "models": 80.0, "features": 60.0, "kernels": 80.0, "sanitizer": 120.0}
# Of a part's units, how many processes work on them, as shares of --jobs.
JOBS = {"operators": 0.4, "models": 0.3, "kernels": 0.3}
UNCLEAN = 86  # exit code
SANITIZED = 12  # of the kernels' cases, each so many


class Clock:
    """The time that is left of the whole."""

    def __init__(self, seconds: float) -> None:
        self.start, self.end = time.monotonic(), time.monotonic() + seconds

    def left(self) -> float:
        return max(0.0, self.end - time.monotonic())

    def spent(self) -> float:
        return time.monotonic() - self.start


def execute(command: list[str], limit: float, **more: Any) -> tuple[int | None, str]:
    """Exit code (None: stopped at `limit` seconds) and the last output of a command and all that it starts."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, **more)
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # what it started may outlive it
            except ProcessLookupError:
                pass
            process.wait()
        output.seek(0)
        return code, output.read()


def tail(text: str, lines: int = 12) -> str:
    return "\n".join(text.strip().split("\n")[-lines:])


def importable() -> bool:
    # From another folder: the checkout's own package cannot be imported before it is built and installed.
    return subprocess.run([sys.executable, "-c", "import ortmodule"], cwd=HERE, capture_output=True).returncode == 0


def build(clock: Clock) -> str | None:
    """Builds and installs the checkout in place; the reason when that fails."""
    command = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "-e", "."]
    root = os.environ.get("ORTMODULE_PROTOBUF_ROOT")
    print(f"ortmodule cannot be imported: building it in {ROOT}", flush=True)
    print(f"  {f'ORTMODULE_PROTOBUF_ROOT={root} ' if root else ''}{' '.join(command)}", flush=True)
    code, output = execute(command, clock.left(), cwd=ROOT)
    if code == 0 and importable():
        print(f"  built in {clock.spent():.0f} s", flush=True)
        return None
    return f"the build {'took too long' if code is None else f'ended with {code}'}:\n{tail(output, 30)}"


def run_units(part: str, args: argparse.Namespace, limit: float) -> dict[str, Any]:
    """A part of gpu_units.py in some processes, which share the device."""
    start = time.monotonic()
    if part == "sanitizer":
        if shutil.which("compute-sanitizer") is None:
            return {"state": "skipped: compute-sanitizer is not installed", "units": 0, "of": 0, "failed": {}}
        of = [f"0/{SANITIZED}"]
    else:
        jobs = max(1, round(args.jobs * JOBS.get(part, 0.0)))
        of = [f"{k}/{jobs}" for k in range(jobs)]
    with concurrent.futures.ThreadPoolExecutor(len(of)) as pool:
        parts = list(pool.map(lambda share: run_share(part, share, args, limit), of))
    units = [unit for found in parts for unit in found["results"]]
    states = sorted({found["state"] for found in parts} - {"complete"})
    failed = {u["unit"]: u["failures"] for u in units if u["failures"]}
    total = sum(found["of"] or 0 for found in parts)
    state = "; ".join(states) or "complete"
    seconds = time.monotonic() - start
    return {
        "state": state, "units": len(units), "of": total, "failed": failed, "seconds": seconds, "results": units
    }  # fmt: skip


def run_share(part: str, share: str, args: argparse.Namespace, limit: float) -> dict[str, Any]:
    """A share of a part, started again behind a unit that ended its process."""
    end = time.monotonic() + limit
    units: list[dict[str, Any]] = []
    start, total, state = 0, None, "complete"
    while True:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "units.jsonl")
            watched = part == "sanitizer"
            command = ["compute-sanitizer", "--error-exitcode", str(UNCLEAN), "--target-processes", "all"] * watched
            command += [sys.executable, str(HERE / "gpu_units.py"), "kernels" if watched else part]
            command += ["--device", args.device, "--out", str(out)]
            command += ["--start", str(start), "--share", share, *(["--small"] * args.small)]
            code, output = execute(command, max(1.0, end - time.monotonic()))
            lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
        done = [line for line in lines if "index" in line]
        begun = [line for line in lines if "begins" in line]
        total = next((line["total"] for line in lines if "total" in line), total)
        units += done
        if code == 0:
            break
        if code == UNCLEAN:
            state = f"not clean: {tail(output, 40)}"
            break
        if code is None:
            state = f"stopped at its time limit of {limit:.0f} s" + (f", in {begun[-1]['unit']}" if begun else "")
            break
        if not begun:
            state = f"could not start: {tail(output)}"
            break
        if len(done) < len(begun):
            units.append({**begun[-1], "failures": {"process": f"ended with {code}: {tail(output, 5)}"}})
        start = begun[-1]["begins"] + 1
    return {"state": state, "of": total, "results": units}


def run_steps(args: argparse.Namespace, clock: Clock) -> dict[str, Any]:
    """gpu_steps.py in the time that is left: what it wrote, with "state" and "failed" beside it."""
    limit = clock.left()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "steps.json")
        command = [sys.executable, str(HERE / "gpu_steps.py"), "--device", args.device, "--json", str(out)]
        # A wave that begins at two thirds of the time ends within it.
        command += ["--seconds", str(limit * 0.66), "--worker-seconds", str(limit), *(["--small"] * args.small)]
        command += ["--rounds", "1", "--models", "gpt2-small,resnet50", "--runners", "eager,ortmodule"] * args.small
        code, output = execute(command, limit)
        part: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"rows": []}
    print(output, flush=True)
    part["state"] = "complete" if code is not None else f"stopped at its time limit of {limit:.0f} s"
    part["failed"] = {f"{r['model']} {r['runner']}": r["failed"] for r in part["rows"] if "failed" in r}
    if not part["rows"]:
        part["failed"]["steps"] = tail(output, 5)
    return part


def announce(name: str, part: dict[str, Any]) -> None:
    failed = part["failed"]
    print(f"{name}: {part['units']} of {part['of']} units, {len(failed)} failed, {part['state']}", flush=True)
    for unit, reasons in failed.items():
        for kind, reason in reasons.items():
            print(f"  {unit} {kind}: {reason[:240]}", flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="a few units of each part, tiny models")
    parser.add_argument("--parts", default=",".join((*BUDGET, "steps")))
    parser.add_argument(
        "--jobs", type=int, default=min(12, len(os.sched_getaffinity(0))), help="processes of the checks"
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="of the whole, a build included")
    parser.add_argument("--json", metavar="OUT", help="default: benchmarks/results/gpu_check_<date>.json")
    args = parser.parse_args(argv)
    clock = Clock(60 * args.minutes - 5)
    import torch

    if args.device == "cuda" and not torch.cuda.is_available():
        print("gpu_check: this machine has no GPU that PyTorch can use; --device cpu --small tries the harness itself.")
        return 2
    result: dict[str, Any] = {
        "environment": facts(args.device),
        "settings": {"small": args.small, "minutes": args.minutes},
    }
    date = result["environment"]["date"].replace(":", "")[:17]
    path = args.json or HERE / "results" / f"gpu_check_{date}.json"
    print(", ".join(f"{k} {v}" for k, v in result["environment"].items() if v is not None), flush=True)
    problem = None if importable() else build(clock)
    result["build_s"] = clock.spent()
    if problem:
        result["build_error"] = problem
        write_json(path, result)
        print(problem)
        return 1
    scale = args.minutes / 8
    names = args.parts.split(",")
    checks = [name for name in names if name != "steps"]
    good = True
    if checks:
        with concurrent.futures.ThreadPoolExecutor(len(checks)) as pool:
            limits = [min(BUDGET[name] * scale, clock.left()) for name in checks]
            found = list(pool.map(run_units, checks, [args] * len(checks), limits))
        for name, part in zip(checks, found, strict=True):
            result[name] = part
            announce(name, part)
            good = good and not part["failed"] and part["state"].startswith(("complete", "skipped"))
        write_json(path, result)
    if "steps" in names:
        begin = clock.spent()
        result["steps"] = part = run_steps(args, clock)
        part["seconds"] = clock.spent() - begin
        good = good and part["state"] == "complete" and not any("compile" not in key for key in part["failed"])
        write_json(path, result)
    print(f"{'all well' if good else 'not all well'} after {clock.spent():.0f} s; written to {path}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
