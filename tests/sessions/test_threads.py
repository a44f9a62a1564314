"""The threads of nodes side by side: as many as were asked for, seen in timelines, asleep without work; options."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

import ortmodule
from ortmodule import ExecutionMode, InferenceSession, SessionOptions

from .models import F, add_one, model_of, two_results
from .towers import FEEDS, MODEL, RNG, WANTED, branches, given, session_of

# -- threads -----------------------------------------------------------------------------------------------------------


def timeline_of(session: InferenceSession, feeds: dict) -> list[dict]:
    session.run(None, feeds)
    events = json.loads(Path(session.end_profiling()).read_text())["traceEvents"]
    return [event for event in events if event["cat"] == "Node"]


def test_a_timeline_shows_the_thread_of_each_node(tmp_path: Path) -> None:
    model = branches(2, 20, 384)  # long enough for a second thread to get its turn on a busy machine
    session = session_of(model, enable_profiling=True, profile_file_prefix=tmp_path / "run")
    nodes = timeline_of(session, given(384, 384))
    plan = session._session.plan_text()
    assert len(nodes) == int(plan.split()[2])
    assert len({node["tid"] for node in nodes}) == 2
    products = [node for node in nodes if node["args"]["op_name"] == "MatMul"]
    spans = [(node["tid"], node["ts"], node["ts"] + node["dur"]) for node in products]
    assert any(a != b and begin < end_b and begin_b < end for a, begin, end in spans for b, begin_b, end_b in spans)


def test_a_table_counts_every_node_once_per_run() -> None:
    session = session_of(MODEL)
    with ortmodule.profile(session) as times:
        for _ in range(5):
            session.run(None, FEEDS)
    assert {node.calls for node in times.nodes} == {5} and all(node.seconds > 0 for node in times.nodes)


def test_nodes_are_ranges_of_torchs_profiler() -> None:
    session = session_of(MODEL)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        session.run(None, FEEDS)
    assert sum(event.name.startswith("MatMul") for event in seen.events()) == 6


def threads_now() -> int:
    return len(os.listdir("/proc/self/task"))


def test_a_session_has_the_threads_that_it_was_given_and_they_go_with_it() -> None:
    before = threads_now()
    session = session_of(MODEL, inter_op_num_threads=3)
    session.run(None, FEEDS)
    assert threads_now() == before + 3
    del session
    limit = time.perf_counter() + 5  # the kernel takes its time to forget them
    while threads_now() > before and time.perf_counter() < limit:
        time.sleep(0.01)
    assert threads_now() == before


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (add_one(), {"inter_op_num_threads": 0}),
        (branches(1, 6), {"inter_op_num_threads": 4}),
        (MODEL, {"inter_op_num_threads": 1}),
        (MODEL, {"mode": "sequential", "inter_op_num_threads": 4}),
    ],
    ids=["small", "chain", "one", "sequential"],
)
def test_where_nothing_runs_side_by_side_there_are_no_threads(model: onnx.ModelProto, settings: dict) -> None:
    before = threads_now()
    session = session_of(model, **settings)
    assert threads_now() <= before
    assert session.run(None, {"x": np.ones(3, np.float32)} if len(model.graph.node) == 1 else FEEDS)


def test_sessions_may_share_the_processs_threads() -> None:
    ortmodule.set_global_inter_op_threads(2)
    before = threads_now()
    sessions = [session_of(MODEL, use_per_session_threads=False, inter_op_num_threads=0) for _ in range(4)]
    for session in sessions:
        np.testing.assert_allclose(session.run(None, FEEDS)[0], WANTED, rtol=1e-5, atol=1e-5)
    assert threads_now() <= before
    ortmodule.set_global_inter_op_threads(3, allow_spinning=False)  # those that are there keep theirs
    np.testing.assert_allclose(sessions[0].run(None, FEEDS)[0], WANTED, rtol=1e-5, atol=1e-5)


def test_threads_of_operators_are_as_before_afterwards() -> None:
    before = torch.get_num_threads()
    session_of(MODEL, intra_op_num_threads=3).run(None, FEEDS)
    assert torch.get_num_threads() == before
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert seen == [before]


def every_library() -> onnx.ModelProto:
    """Two branches with a product, a convolution, a sum over rows and a large exponential each."""
    nodes, weights = [], {}
    for b in "ab":
        weights[f"w{b}"] = RNG.standard_normal((256, 256)).astype(np.float32) / 16
        weights[f"k{b}"] = RNG.standard_normal((8, 1, 3, 3)).astype(np.float32)
        nodes += [
            helper.make_node("MatMul", ["x", f"w{b}"], [f"p{b}"]),
            helper.make_node("Exp", [f"p{b}"], [f"e{b}"]),
            helper.make_node("Reshape", [f"e{b}", "image"], [f"i{b}"]),
            helper.make_node("Conv", [f"i{b}", f"k{b}"], [f"c{b}"]),
            helper.make_node("ReduceSum", [f"c{b}"], [f"y{b}"], keepdims=0),
        ]
    weights["image"] = np.array([1, 1, 256, 256])
    outputs = {f"y{b}": (F, []) for b in "ab"}
    return model_of(nodes, {"x": (F, [256, 256])}, outputs, weights)


@pytest.mark.parametrize(("inter", "intra"), [(2, 1), (2, 2), (3, 1)])
def test_no_more_threads_compute_than_were_asked_for(inter: int, intra: int) -> None:
    feeds, threads = given(256, 256), torch.get_num_threads()
    torch.set_num_threads(5)
    try:
        session = session_of(every_library(), inter_op_num_threads=inter, intra_op_num_threads=intra)
        before = threads_now() - inter
        for _ in range(20):
            session.run(None, feeds)
        assert threads_now() - before <= inter * intra
    finally:
        torch.set_num_threads(threads)


def test_threads_without_work_sleep() -> None:
    session = session_of(MODEL, inter_op_num_threads=4)
    session.run(None, FEEDS)
    time.sleep(0.05)
    begin = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - begin < 0.1


def test_a_forked_process_runs_nodes_one_by_one() -> None:
    session = session_of(MODEL)
    session.run(None, FEEDS)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        same = np.allclose(session.run(None, FEEDS)[0], WANTED, rtol=1e-5, atol=1e-5)
        del session
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert np.allclose(session.run(None, FEEDS)[0], WANTED, rtol=1e-5, atol=1e-5)


def test_an_observed_run_goes_one_by_one() -> None:
    session, seen = session_of(MODEL), []
    session._session.observe(lambda phase, node, op, inputs, outputs: seen.append(threading.get_ident()))
    session.run(None, FEEDS)
    assert set(seen) == {threading.get_ident()}


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("execution_mode", "paralel", "ExecutionMode.ORT_PARALLEL"),
        ("execution_mode", 1, "ExecutionMode.ORT_PARALLEL"),
        ("inter_op_num_threads", -1, "from 0 on"),
        ("inter_op_num_threads", 2.0, "from 0 on"),
        ("inter_op_num_threads", 10**6, "at most"),
        ("intra_op_num_threads", 10**12, "at most"),
        ("inter_op_allow_spinning", 1, "True or False"),
        ("use_per_session_threads", None, "True or False"),
    ],
)
def test_options_that_cannot_be_so(name: str, value, message: str) -> None:
    with pytest.raises(ortmodule.InvalidArgumentError, match=f"SessionOptions.{name}.*{message}"):
        setattr(SessionOptions(), name, value)


@pytest.mark.parametrize(("threads", "spinning"), [(0, True), (True, True), (1.5, True), ("2", True), (2, 1)])
def test_global_threads_that_cannot_be_so(threads, spinning) -> None:
    with pytest.raises(ortmodule.InvalidArgumentError):
        ortmodule.set_global_inter_op_threads(threads, allow_spinning=spinning)


def test_one_by_one_is_the_default() -> None:
    options = SessionOptions()
    assert options.execution_mode is ExecutionMode.ORT_SEQUENTIAL
    assert (options.inter_op_num_threads, options.intra_op_num_threads) == (0, 0)
    assert InferenceSession(two_results())._session.plan_text().count(" after ") == 0
