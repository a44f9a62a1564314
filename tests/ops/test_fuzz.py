"""Broken calls of every operator: the library's own errors, no crash, no hang, no allocation without bounds.

The calls run in a process of their own (fuzzing.py); their numbers are their seeds, so that a failure can be run again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CALLS = (0, 1500)
SECONDS = 300


def test_broken_calls_end_in_the_librarys_errors() -> None:
    command = [sys.executable, "-m", "tests.ops.fuzzing", *map(str, CALLS)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, cwd=Path(__file__).parents[2], check=False
        )
        output, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as error:
        output, code = (error.stdout or b"").decode(), None
    lines = output.splitlines()
    problems = [line for line in lines if line.startswith("problem")]
    last = next((line for line in reversed(lines) if line.isdigit()), "none")
    assert code == 0, f"call {last} {'hangs' if code is None else f'ends the process with {code}'}"
    assert not problems, "\n".join(problems)
