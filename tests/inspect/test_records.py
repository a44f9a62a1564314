"""Records: a folder is filled while a program runs, and says what the sessions say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from ortmodule import DebugOptions, InferenceSession, InvalidArgumentError, ORTModule, SessionOptions, debug, inspect
from tests.sessions.models import add_one, two_results

from .test_history import layers


def records_of(folder: Path) -> list[dict]:
    inspect.flush()
    return inspect.read(folder)


def test_a_record_has_plan_memory_and_times_of_the_runs(tmp_path) -> None:
    model = ORTModule(layers(), DebugOptions(inspect_path=str(tmp_path)))
    x = torch.randn(3, 8)
    for _ in range(3):
        model(x).sum().backward()
    (record,) = records_of(tmp_path)
    plan = debug.plan(model, x)
    assert [h["name"] for h in record["halves"]] == ["forward", "backward"]
    assert record["memory"] == plan.memory
    assert record["live"] == [s.live_bytes for s in plan.memory_over_time().steps]
    assert {row[3] for row in record["times"]} == {3}
    values = {out["name"] for half in record["halves"] for step in half["steps"] for out in step["outputs"]}
    assert {row[7] for row in record["times"]} <= values
    model(x).sum().backward()
    (record,) = records_of(tmp_path)
    assert {row[3] for row in record["times"]} == {4}  # times add up


def test_places_of_the_runs_do_not_overlap(tmp_path) -> None:
    model = ORTModule(
        torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))), DebugOptions(inspect_path=str(tmp_path))
    )
    for _ in range(3):
        model(torch.randn(512, 256)).square().mean().backward()
    placed = records_of(tmp_path)[0]["placed"]
    assert placed["steps"] == len(placed["values"]) > placed["forward_steps"] > 0
    blocks = [b for b in placed["blocks"] if b["arena"] != "torch"]
    assert blocks and all(0 <= b["first"] < b["end"] <= placed["steps"] for b in blocks)
    sizes = {"passing": placed["passing_bytes"], "lasting": placed["lasting_bytes"]}
    assert all(b["offset"] + b["bytes"] <= sizes[b["arena"]] for b in blocks)


def test_each_session_has_a_record_and_files_are_whole(tmp_path) -> None:
    options = SessionOptions()
    options.inspect_path = tmp_path / "deep" / "records"
    session = InferenceSession(two_results(), options)
    session.run(None, {"x": np.ones((4, 3), np.float32), "at": np.int64(1)})
    InferenceSession(add_one(), options)
    partly = InferenceSession(two_results(), options)
    partly.run(["total"], {"x": np.ones((6, 3), np.float32), "at": np.int64(1)})
    records = records_of(tmp_path / "deep" / "records")
    assert [r["title"] for r in records] == ["main", "main", "main"]
    assert [r["sizes"] for r in records] == [{"batch": 4}, {}, {"batch": 6}]
    assert [len(r["times"]) for r in records] == [3, 0, 2]
    assert all(name.endswith(".inspect.json") for name in os.listdir(tmp_path / "deep" / "records"))


PROGRAM = """
import numpy as np, ortmodule, sys
def main():
    session = ortmodule.InferenceSession(sys.argv[1])
    for _ in range(3):
        session.run(None, {"x": np.ones(4, np.float32)})
main()  # the session is gone when the program ends
print("done")
raise SystemExit(3)
"""


def test_the_variable_is_for_a_program_as_it_is(tmp_path) -> None:
    onnx.save(add_one(), tmp_path / "model.onnx")
    environment = {**os.environ, "ORTMODULE_INSPECT_PATH": str(tmp_path / "records"), "RANK": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "model.onnx")], env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 3 and ran.stdout == "done\n" and ran.stderr == ""
    (file,) = (tmp_path / "records").iterdir()
    assert "_rank1" in file.name
    (record,) = inspect.read(tmp_path / "records")
    assert record["title"] == "model.onnx" and {row[3] for row in record["times"]} == {3}


def test_of_many_sessions_the_last_are_held_and_all_are_written(tmp_path, monkeypatch) -> None:
    from ortmodule.inspect import folder

    monkeypatch.setattr(folder, "_MOST_HELD", 2)
    options = SessionOptions()
    options.inspect_path = tmp_path
    for _ in range(4):
        InferenceSession(add_one(), options).run(None, {"x": np.ones(2, np.float32)})
    assert len(inspect.read(tmp_path)) == 4
    held = [one.session is not None for one in folder._followed if one.path.parent == tmp_path]
    assert held == [False, False, True, True]
    assert [bool(record["times"]) for record in inspect.read(tmp_path)] == [True, True, False, False]
    assert all(record["times"] for record in records_of(tmp_path))


def test_folders_that_are_none_are_said(tmp_path) -> None:
    with pytest.raises(InvalidArgumentError, match="no folder"):
        inspect.read(tmp_path / "none")
    with pytest.raises(InvalidArgumentError, match="has no records"):
        inspect.read(tmp_path)
    (tmp_path / "a.inspect.json").write_text("{")
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        inspect.read(tmp_path)
    (tmp_path / "a.inspect.json").write_text(json.dumps({"format": 0}))
    with pytest.raises(InvalidArgumentError, match="no record of this version"):
        inspect.read(tmp_path)
    (tmp_path / "file").write_text("")
    options = SessionOptions()
    options.inspect_path = tmp_path / "file" / "records"
    with pytest.raises(InvalidArgumentError, match="cannot be written"):
        InferenceSession(add_one(), options)
    with pytest.raises(InvalidArgumentError, match="path of a folder"):
        DebugOptions(inspect_path=3)  # type: ignore[arg-type]
