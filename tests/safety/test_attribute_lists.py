"""Lists of attributes and inputs that do not fit their tensors are errors of the library's, for every operator."""

from __future__ import annotations

import collections
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

MEMORY = 6 << 30
SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")  # a shadow of all addresses is reserved at once


@pytest.mark.slow
def test_lists_that_do_not_fit() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.safety.attribute_lists", "0", "8"], cwd=Path(__file__).parents[2],
        capture_output=True, text=True, timeout=600, check=False,
        preexec_fn=None if SANITIZED else lambda: resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY)),
    )  # fmt: skip
    lines = done.stdout.splitlines()
    names = [line.removeprefix("case ") for line in lines[::2]]
    assert done.returncode == 0, f"{names[-1:]} ends the process with {done.returncode}: {done.stderr[-400:]}"
    ends = collections.Counter(line.partition(" ")[0] for line in lines[1::2])
    problems = [f"{name}: {line}" for name, line in zip(names, lines[1::2], strict=True) if line not in ENDS]
    operators = {name.split()[0] for name in names}
    print(f"lists that do not fit: {len(names)} cases of {len(operators)} operators: {dict(ends)}")
    assert len(names) >= 300 and ends["refused"] + ends["no"] >= 300
    assert problems == []


ENDS = ("ran", "refused", "no model")
