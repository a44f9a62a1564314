"""A model split over the host, a device and another provider trains as eager does, and needs each wait that it has.

Not here: how the parts are run (split.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from .__main__ import LIBRARY, ROOT

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="build/libguarded_device.so is built by `make test`")


def run(*arguments: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.device", "split", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)


def results(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_split_model_trains_with_eagers_numbers_and_the_copies_of_its_plan() -> None:
    done = run()
    assert done.returncode == 0, done.stderr[-2000:]
    found = results(done)
    assert len(found) == 6
    assert not {(one["model"], one["home"]): one["failures"] for one in found if one["failures"]}
    assert all(sum(one["copies"]) > 0 for one in found)
    assert any(one["third"] > 0 for one in found), "the provider's own kernel ran"


def seen_without(model: str, home: str) -> dict[str, bool]:
    """By wait of the model's plans: whether a step without it was another."""
    seen: dict[str, bool] = {}
    first, returncode = 0, 1
    while returncode:  # a process that ends, or is held, in a wait's midst has missed it
        done = run("waits", model, home, str(first), timeout=1200)  # of one wait: split.SECONDS_A_WAIT
        told = results(done)
        assert told or done.returncode == 0, done.stderr[-2000:]
        seen |= {f"{model} on {home}: {one['wait']}": one.get("seen", True) for one in told}
        first, returncode = (told[-1]["index"] + 1 if told else first), done.returncode
    return seen


def test_each_wait_is_missed() -> None:
    """Of views it is not: what they show was made before, and may have been awaited for another view."""
    seen: dict[str, bool] = {}
    for model in ("block", "perceptron", "branches"):
        for home in ("guarded:0", "cpu"):
            seen |= seen_without(model, home)
    assert len(seen) >= 100
    unseen = [wait for wait, was_seen in seen.items() if not was_seen]
    assert len(unseen) <= 0.05 * len(seen), f"of {len(seen)} waits nothing missed {unseen}"
