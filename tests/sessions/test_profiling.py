"""What a session's time goes into: tables, timelines and ranges of torch's profiler."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import ortmodule
from ortmodule import InferenceSession, ORTModule, SessionOptions

from .models import add_one, two_results

FEEDS = {"x": np.ones((2, 3), np.float32), "at": np.array(1)}


def profiled(tmp_path: Path) -> InferenceSession:
    options = SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = tmp_path / "run"
    return InferenceSession(two_results(), options)


def test_a_timeline_has_every_node_within_its_run(tmp_path: Path) -> None:
    session = profiled(tmp_path)
    for _ in range(3):
        session.run(None, FEEDS)
    session.run(["row"], FEEDS)
    path = Path(session.end_profiling())
    assert path.parent == tmp_path and path.name.startswith("run_") and path.suffix == ".json"
    events = json.loads(path.read_text())["traceEvents"]
    runs = [e for e in events if e["cat"] == "Session"]
    nodes = [e for e in events if e["cat"] == "Node"]
    assert len(runs) == 4
    assert sorted({e["args"]["op_name"] for e in nodes}) == ["Gather", "MatMul", "Relu"]
    assert len(nodes) == 3 * 3 + 1
    for node in nodes:
        inside = [
            r for r in runs if r["ts"] <= node["ts"] + 1e-2 and node["ts"] + node["dur"] <= r["ts"] + r["dur"] + 1e-2
        ]
        assert len(inside) == 1 and inside[0]["tid"] == node["tid"]


def test_profiling_ends_once_and_costs_nothing_afterwards(tmp_path: Path) -> None:
    session = profiled(tmp_path)
    session.run(None, FEEDS)
    session.end_profiling()
    session.run(None, FEEDS)
    for each in (session, InferenceSession(add_one())):
        with pytest.raises(ortmodule.InvalidArgumentError, match="nothing was profiled"):
            each.end_profiling()
    assert len(list(tmp_path.iterdir())) == 1


def test_two_sessions_do_not_see_each_others_runs(tmp_path: Path) -> None:
    first, second = profiled(tmp_path), profiled(tmp_path)
    first.run(None, FEEDS)
    paths = [first.end_profiling(), second.end_profiling()]
    counts = [len(json.loads(Path(path).read_text())["traceEvents"]) for path in paths]
    assert counts == [4, 0]


def test_a_table_of_a_sessions_nodes() -> None:
    session = InferenceSession(two_results())
    with ortmodule.profile(session) as times:
        session.run(None, FEEDS)
        session.run(["row"], FEEDS)
    assert {(n.op, n.calls) for n in times.nodes} == {("MatMul", 1), ("Relu", 1), ("Gather", 2)}
    with pytest.raises(ortmodule.InvalidArgumentError, match="InferenceSession"), ortmodule.profile(3):  # type: ignore[arg-type]
        pass


def test_every_node_is_a_range_of_torchs_profiler() -> None:
    session = InferenceSession(two_results())
    model = ORTModule(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()))
    x = torch.ones(2, 3)
    model(x).sum().backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        session.run(None, FEEDS)
        model(x).sum().backward()
    names = [event.name for event in seen.events()]
    for op in ("MatMul", "Relu", "Gather", "Linear", "LinearGrad"):
        assert any(name.split()[0].endswith(op) for name in names), (op, names)
