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


def results(*arguments: str) -> list[dict[str, Any]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.device", "split", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_split_model_trains_with_eagers_numbers_and_the_copies_of_its_plan() -> None:
    found = results()
    assert len(found) == 6
    assert not {(one["model"], one["home"]): one["failures"] for one in found if one["failures"]}
    assert all(sum(one["copies"]) > 0 for one in found)
    assert any(one["third"] > 0 for one in found), "the provider's own kernel ran"


def test_each_wait_is_missed() -> None:
    found = results("waits")
    seen, all_waits = sum(one["found"] for one in found), sum(one["found"] + len(one["unseen"]) for one in found)
    unseen = {(one["model"], one["home"]): one["unseen"] for one in found if one["unseen"]}
    assert all_waits > 30
    assert seen >= 0.95 * all_waits, unseen
