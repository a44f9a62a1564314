"""Small models that want a machine are refused at once, before memory is taken (bombs.py makes them).

They run in a process of their own, so that one that is not refused takes no test with it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ortmodule import InferenceSession, InvalidArgumentError, LimitError, SessionOptions

from .bombs import BOMBS, LIMITED, constant_of_shape, functions_in_a_chain, long_name

SECONDS, MEGABYTES = 1.0, 120  # beyond what the libraries take


def test_bombs_are_refused_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.safety.bombs"], cwd=Path(__file__).parents[2], capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"ended with {done.returncode} after\n{done.stdout}\n{done.stderr[-800:]}"
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(BOMBS) + len(LIMITED) >= 12
    kinds = ("LimitError:", "InvalidGraphError:", "ORTModuleError:")
    wrong = [
        one for one in results
        if not one["error"].startswith(kinds) or one["seconds"] > SECONDS or one["megabytes"] > MEGABYTES
    ]  # fmt: skip
    slowest, largest = max(one["seconds"] for one in results), max(one["megabytes"] for one in results)
    print(f"bombs: {len(results) - len(wrong)} of {len(results)} refused, in {slowest:.2f} s and {largest} MB at most")
    assert wrong == []


def test_limits_are_options() -> None:
    options = SessionOptions()
    assert (options.max_tensor_bytes, options.max_nodes, options.max_nesting) == (64 << 30, 500_000, 32)
    assert (options.max_run_bytes, options.max_seconds) == (0, 0.0)
    options.max_nodes = 0
    with pytest.raises(LimitError, match="1 nodes, over the limit of 0"):
        InferenceSession(constant_of_shape(), options)
    for name, value in (
        ("max_nodes", -1),
        ("max_seconds", -1.0),
        ("max_seconds", float("nan")),
        ("max_run_bytes", 1.5),
    ):
        with pytest.raises(InvalidArgumentError, match=name):
            setattr(options, name, value)


def test_a_session_goes_on_after_a_run_that_was_refused() -> None:
    import onnx.parser

    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[n] x, int64[1] s) => (float[m] y) { y = Tile(x, s) }'
    )
    options = SessionOptions()
    options.max_run_bytes = 1 << 20
    session = InferenceSession(model, options)
    x = np.ones(1 << 10, np.float32)
    for _ in range(50):  # what was counted is given back
        with pytest.raises(LimitError, match=r"\[Tile\] the run wants"):
            session.run(None, {"x": x, "s": np.array([1 << 12])})
        (y,) = session.run(None, {"x": x, "s": np.array([128])})
        assert y.size == 1 << 17


def test_a_limit_says_which_option_it_is() -> None:
    with pytest.raises(LimitError, match="SessionOptions.max_nesting"):
        InferenceSession(functions_in_a_chain())
    with pytest.raises(LimitError, match="name of 100000 bytes"):
        InferenceSession(long_name())
