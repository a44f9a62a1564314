"""A command under the shim does what it does without, more slowly."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import queue, sys, threading
asked, done = queue.Queue(), queue.Queue()
def work():
    while (n := asked.get()) is not None:
        done.put(2 * n)
threads = [threading.Thread(target=work) for _ in range(2)]
for t in threads: t.start()
for n in range(300): asked.put(n)
total = sum(done.get() for _ in range(300))
for _ in threads: asked.put(None)
for t in threads: t.join()
print(total)
sys.exit(3)
"""


def test_a_shaken_program_does_the_same_more_slowly() -> None:
    shaken = [sys.executable, "-m", "tests.shaken", "--one-in", "2", sys.executable, "-c", PROGRAM]
    times = []
    for command in (shaken[-3:], shaken):
        start = time.monotonic()
        found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        times.append(time.monotonic() - start)
        assert (found.stdout, found.returncode) == ("89700\n", 3), found.stderr
    assert times[1] > times[0] + 0.2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([], "expected a command"), (["--one-in", "0", "true"], "from 1 on"), (["nosuch"], "no program nosuch")],
)
def test_what_cannot_be_run_is_said(arguments: list[str], said: str) -> None:
    command = [sys.executable, "-m", "tests.shaken", *arguments]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert found.returncode == 2
    assert said in found.stderr
