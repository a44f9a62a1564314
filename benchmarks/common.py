"""What the benchmarks share: facts about the machine, tables, JSON files."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WHERE = "import ortmodule, pathlib; print(pathlib.Path(ortmodule.__file__).resolve().parents[1])"


TURNS = "BENCHMARK_TURNS"  # two file descriptors: a round begins when the first is read, the second hears of its end


def rounds(count: int) -> Iterator[int]:
    """0 to count - 1; under `beside.py --round-by-round` each begins when the other checkout's round is done."""
    ends = [int(end) for end in os.environ.get(TURNS, "").split(",") if end]
    for i in range(count):
        if ends:
            os.write(ends[1], b".")
            os.read(ends[0], 1)
        yield i


def cpu_name() -> str:
    """The processor's name as the kernel gives it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def commit(checkout: Path = ROOT) -> str | None:
    """Commit of a checkout, "-dirty" behind it where tracked files differ; the built package's where git is not."""
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True)
        changed = subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=checkout, capture_output=True).returncode
        return head.stdout.strip() + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        try:
            from ortmodule import _build_info
        except ImportError:
            return None
        return getattr(_build_info, "GIT_COMMIT", None)


def python_of(checkout: Path) -> Path:
    """The Python that has the checkout's ortmodule.

    Raises:
        SystemExit: it has none, or another ortmodule than the checkout's is installed there.
    """
    python = Path(sys.executable) if checkout == ROOT else checkout / ".venv" / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{checkout} has no .venv; run `make -C {checkout} setup` first")
    found = subprocess.run([python, "-c", WHERE], capture_output=True, text=True, cwd=checkout / "benchmarks")
    if Path(found.stdout.strip() or "/") != checkout:
        raise SystemExit(f"{python} has no ortmodule of {checkout}: {found.stdout}{found.stderr}")
    return python


def facts(device: str = "cpu", threads: int | None = None) -> dict[str, Any]:
    """The machine, the software and the moment; `load` is the one-minute load average."""
    import torch

    try:
        version: str | None = importlib.metadata.version("ortmodule")
    except importlib.metadata.PackageNotFoundError:
        version = None
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "ortmodule": version,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device,
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "gpu": torch.cuda.get_device_name() if device == "cuda" and torch.cuda.is_available() else None,
        "load": round(os.getloadavg()[0], 2),
    }


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """What a benchmark was asked for, as its result says it: not where on this machine that was to be written."""
    return {name: value for name, value in vars(args).items() if name != "json"}


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        first = row[0].ljust(widths[0])
        return "  ".join([first, *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]).rstrip()

    return "\n".join(line(row) for row in (header, *rows))


def write_json(path: str | os.PathLike[str], data: dict[str, Any]) -> None:
    """Replaces the file in one step, so that a run that is stopped leaves the last whole state."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(target.name + ".new")
    fresh.write_text(json.dumps(data, indent=1) + "\n")
    os.replace(fresh, target)
