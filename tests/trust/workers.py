"""Processes that run programs: one that crashes or hangs costs one program, and is started again."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .comparing import CRASH, RIGHT, TOGETHER, Outcome
from .programs import program
from .running import run

__all__ = ["answer", "results", "serve"]

SECONDS = 90.0  # for one program
PROGRAMS = 150  # before a process is replaced


def _described(seed: int, number: int, depth: int) -> dict[str, Any]:
    made = program(seed, number, depth)
    kinds = {"places": made.places, "readings": made.readings, "changes": made.changes, "whens": made.whens}
    return {"number": number, **kinds, "watchable": made.watchable, "raises": "", "outcomes": {}}


def answer(seed: int, number: int, wrappers: list[str], depth: int = 0) -> dict[str, Any]:
    """Runs one program: what it is made of, and each wrapper's outcome."""
    outcomes = run(program(seed, number, depth), wrappers)
    raises = outcomes.pop("eager").text
    found = {name: vars(outcome) for name, outcome in outcomes.items()}
    return {**_described(seed, number, depth), "raises": raises, "outcomes": found}


def serve() -> None:
    """Answers each line of standard input, a request in JSON, with a line in JSON."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    out = os.fdopen(os.dup(1), "w")  # what a program or a library prints goes elsewhere
    os.dup2(2, 1)
    for line in sys.stdin:
        out.write(json.dumps(answer(**json.loads(line))) + "\n")
        out.flush()


class _Worker:
    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.asked = 0
        self.errors = tempfile.TemporaryFile("w+")

    def ask(self, request: dict[str, Any]) -> dict[str, Any] | str:
        """The answer, or why there is none."""
        if self.process is None or self.process.poll() is not None or self.asked >= PROGRAMS:
            self.close()
            environment = {k: v for k, v in os.environ.items() if not k.startswith("ORTMODULE_")}
            environment.update(PYTHONHASHSEED="0", OMP_NUM_THREADS="1")
            command = [sys.executable, "-W", "ignore", "-m", "tests.trust", "--serve"]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
                cwd=Path(__file__).parents[2], env=environment,
            )  # fmt: skip
            self.asked = 0
        self.asked += 1
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], SECONDS * len(request["wrappers"]) + 60)
        line = self.process.stdout.readline() if ready else ""
        if line:
            return json.loads(line)
        if not ready:
            self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        self.process.kill()
        self.errors.seek(0)
        last = (self.errors.read().strip().splitlines() or [""])[-1][:200]
        return f"the process ended with {self.process.wait()}: {last}" if ready else "no answer in time"

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def repeat(self, request: dict[str, Any], found: dict[str, Any]) -> None:
        """Runs what was not right once more in a process of its own, and says where that changed it."""
        wrong = [name for name, outcome in found["outcomes"].items() if outcome["verdict"] != RIGHT]
        if not wrong or self.asked == 1:
            return
        self.close()
        again = self.ask({**request, "wrappers": wrong})
        for name in wrong if isinstance(again, dict) else ():
            if again["outcomes"][name]["verdict"] == RIGHT:  # type: ignore[index]
                found["outcomes"][name]["verdict"] = TOGETHER

    def result(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer; after a crash each wrapper is tried alone, so that one's crash is not the other's."""
        found = self.ask(request)
        if isinstance(found, dict):
            self.repeat(request, found)
            return found
        joined: dict[str, Any] = {}
        for name in request["wrappers"]:
            one = self.ask({**request, "wrappers": [name]})
            if isinstance(one, str):
                crash = {name: vars(Outcome(CRASH, text=one))}
                one = {**_described(request["seed"], request["number"], request["depth"]), "outcomes": crash}
            joined = {**one, "outcomes": {**joined.get("outcomes", {}), **one["outcomes"]}}
        return joined


def results(
    seed: int,
    numbers: Iterable[int],
    wrappers: list[str],
    jobs: int = 1,
    depth: int = 0,
    done: Callable[[list[dict[str, Any]]], Any] = lambda found: None,
) -> list[dict[str, Any]]:
    """What `answer` gives for each program, by `jobs` processes.

    Args:
        depth: of how many equal modules each program's model is a stack.
        done: called after each program with what there is so far, by the thread that has it.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in numbers:
        waiting.put(number)
    found: list[dict[str, Any]] = []

    def work() -> None:
        worker = _Worker()
        try:
            while True:
                try:
                    number = waiting.get_nowait()
                except queue.Empty:
                    return
                found.append(worker.result({"seed": seed, "number": number, "wrappers": wrappers, "depth": depth}))
                done(found)
        finally:
            worker.close()

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(found, key=lambda f: f["number"])
