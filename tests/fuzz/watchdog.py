"""Runs mutants in worker processes and watches them: signals, hangs, memory, errors that are not the library's own.

A worker that dies or hangs is replaced by one that goes on with the next file. Time is the worker's own on the
processor, so that a busy machine makes no hangs.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

HANG_SECONDS = 5.0
SILENT_SECONDS = 120.0  # of a worker that waits for something
MEGABYTES = 1024
ROOT = Path(__file__).parents[2]


@dataclasses.dataclass
class Findings:
    """What became of the files.

    Attributes:
        reached: how many files were refused, loaded, ran, had their gradient built, were trained, by kind of mutation.
        problems: number of a file -> what is wrong.
        slowest, largest: seconds and megabytes, with the file's number.
    """

    reached: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    problems: dict[int, str] = dataclasses.field(default_factory=dict)
    slowest: tuple[float, int] = (0.0, -1)
    largest: tuple[int, int] = (0, -1)

    @property
    def files(self) -> int:
        return sum(self.reached.values())

    def add(self, line: dict[str, Any]) -> None:
        number = line["ended"]
        self.reached[line["reached"]] += 1
        self.slowest = max(self.slowest, (line["seconds"], number))
        self.largest = max(self.largest, (line["megabytes"], number))
        if line["problem"]:
            self.problems[number] = line["problem"]
        elif line["seconds"] > HANG_SECONDS:
            self.problems[number] = f"takes {line['seconds']:.1f} s"
        elif line["megabytes"] > MEGABYTES:
            self.problems[number] = f"takes {line['megabytes']} MB"


def processor_seconds(process: int) -> float:
    """What a process has used of the processor so far; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Worker:
    """A process that runs files [first, last).

    Attributes:
        file: the number of the file that it runs now; None between two.
        hung: whether it was ended because that took too long.
    """

    PROGRAM: tuple[str, ...] = ("-m", "tests.fuzz.worker")

    def __init__(self, seeds: Path, state: int, first: int, last: int, files: Sequence[str] = ()) -> None:
        reading, writing = os.pipe()
        command = [sys.executable, *self.PROGRAM, str(seeds), *map(str, (state, first, last, writing))]
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [*command, *files], cwd=ROOT, pass_fds=(writing,), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=self._errors, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        os.close(writing)
        self._reading, self._rest = reading, b""
        self.file: int | None = None
        self.hung = False
        self._used, self._heard = 0.0, time.monotonic()

    def ended_files(self, deadline: float) -> Iterator[dict[str, Any]]:
        """What became of each file, until the worker ends, hangs, or the time is over."""
        while time.monotonic() < deadline and not self._hangs():
            if not select.select([self._reading], [], [], 0.5)[0]:
                continue
            chunk = os.read(self._reading, 1 << 16)
            if not chunk:
                return
            *whole, self._rest = (self._rest + chunk).split(b"\n")
            for line in map(json.loads, whole):
                self.file = line.get("began")
                if self.file is None:
                    yield line
            self._used, self._heard = processor_seconds(self._process.pid), time.monotonic()

    def _hangs(self) -> bool:
        used = processor_seconds(self._process.pid) - self._used
        silent = time.monotonic() - self._heard
        self.hung = self.file is not None and (used > HANG_SECONDS + 1 or silent > SILENT_SECONDS)
        return self.hung

    def end(self) -> str:
        """Ends it; how it ended, and the last of what it wrote to its standard error; empty: as it should."""
        os.close(self._reading)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0 if self.hung else 5)
        stopped = self._process.poll() is None
        self._process.kill()
        code = self._process.wait()
        self._errors.seek(0)
        errors = self._errors.read().decode(errors="replace")[-400:]
        self._errors.close()
        if self.hung:
            return "hangs"
        if code == 0 or stopped:
            return ""
        return f"ends the process: {signal.Signals(-code).name if code < 0 else code} {errors}"


def run(
    seeds: Path,
    state: int,
    last: int,
    *,
    first: int = 0,
    files: Sequence[str] = (),
    seconds: float = float("inf"),
    progress: Callable[[Findings], None] = lambda findings: None,
) -> Findings:
    """Runs files [first, last) of a state one after another, or as many as there is time for.

    Raises:
        RuntimeError: a worker cannot begin, or ends between two files.
    """
    findings, deadline = Findings(), time.monotonic() + seconds
    while first < last and time.monotonic() < deadline:
        worker = Worker(seeds, state, first, last, files)
        try:
            for line in worker.ended_files(deadline):
                findings.add(line)
                first = line["ended"] + 1
                if findings.files % 1000 == 0:
                    progress(findings)
        finally:
            how = worker.end()
        if not how:
            continue
        if worker.file is None:
            raise RuntimeError(f"a worker {how} between two files")
        findings.reached["ended the process"] += 1
        findings.problems[worker.file] = how
        first = worker.file + 1
    return findings
