"""Nodes side by side: the same results and errors as one by one, on as many threads as were asked for."""

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
from onnx import TensorProto, helper

import ortmodule
from ortmodule import ExecutionMode, InferenceSession, RunOptions, SessionOptions

from .models import F, add_one, model_of, two_results

RNG = np.random.default_rng(0)
SIZE = 96


def session_of(model: onnx.ModelProto, mode: str = "parallel", **settings) -> InferenceSession:
    options = SessionOptions()
    options.execution_mode = mode
    for name, value in ({"inter_op_num_threads": 2, "intra_op_num_threads": 1} | settings).items():
        setattr(options, name, value)
    return InferenceSession(model, options)


def branches(count: int = 2, depth: int = 3, size: int = SIZE, op: str = "Tanh") -> onnx.ModelProto:
    """`count` chains of products, each read by the next one's last sum, and their sum."""
    nodes, weights, ends = [], {}, []
    for branch in range(count):
        at = "x"
        for step in range(depth):
            name = f"{branch}_{step}"
            weights[f"w{name}"] = (RNG.standard_normal((size, size)) / np.sqrt(size)).astype(np.float32)
            nodes.append(helper.make_node("MatMul", [at, f"w{name}"], [f"p{name}"]))
            nodes.append(helper.make_node(op, [f"p{name}"], [f"t{name}"]))
            at = f"t{name}"
        ends.append(at)
    nodes.append(helper.make_node("Sum", ends, ["y"]))
    return model_of(nodes, {"x": (F, ["n", size])}, {"y": (F, ["n", size])}, weights)


def given(rows: int = SIZE, size: int = SIZE) -> dict[str, np.ndarray]:
    return {"x": RNG.standard_normal((rows, size)).astype(np.float32)}


MODEL = branches()
FEEDS = given()
WANTED = session_of(MODEL, "sequential").run(None, FEEDS)[0]


# -- results -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"inter_op_num_threads": 7},
        {"inter_op_num_threads": 1},
        {"inter_op_num_threads": 0, "intra_op_num_threads": 0},
        {"inter_op_allow_spinning": False},
        {"use_per_session_threads": False},
        {"enable_mem_pattern": False},
        {"enable_mem_reuse": False},
        {"execution_order": "memory_efficient"},
        {"graph_optimization_level": 0},
    ],
    ids=str,
)
def test_results_are_those_of_one_by_one(settings: dict) -> None:
    session = session_of(MODEL, **settings)
    for rows in (SIZE, SIZE, 3, SIZE):
        np.testing.assert_allclose(session.run(None, {"x": FEEDS["x"][:rows]})[0], WANTED[:rows], rtol=1e-5, atol=1e-5)


def test_results_are_bit_for_bit_the_same_with_as_many_threads_per_operator() -> None:
    for count, depth in [(2, 5), (5, 2), (16, 1)]:
        model, feeds = branches(count, depth), given()
        np.testing.assert_array_equal(
            session_of(model).run(None, feeds)[0], session_of(model, "sequential").run(None, feeds)[0]
        )


def mixed() -> onnx.ModelProto:
    """Values that several nodes read, views of them, nodes that write over operands, a body that reads from outside."""
    value, whole = helper.make_tensor_value_info, [SIZE, SIZE]
    body = helper.make_graph(
        [helper.make_node("MatMul", ["s", "b"], ["m"]), helper.make_node("Tanh", ["m"], ["t"]),
         helper.make_node("Identity", ["c"], ["go"])],
        "body",
        [value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, []), value("s", F, whole)],
        [value("go", TensorProto.BOOL, []), value("t", F, whole)],
    )  # fmt: skip
    flat, square = np.array([-1]), np.array([SIZE, SIZE])
    return model_of(
        [
            helper.make_node("MatMul", ["x", "x"], ["a"]),
            helper.make_node("Reshape", ["a", "flat"], ["v"]),
            helper.make_node("Exp", ["x"], ["b"]),
            helper.make_node("Neg", ["a"], ["na"]),
            helper.make_node("Sin", ["v"], ["sv"]),
            helper.make_node("Relu", ["a"], ["ra"]),
            helper.make_node("Transpose", ["a"], ["ta"], perm=[1, 0]),
            helper.make_node("MatMul", ["ta", "b"], ["p"]),
            helper.make_node("Loop", ["three", "", "b"], ["l"], body=body),
            helper.make_node("Reshape", ["sv", "square"], ["sq"]),
            helper.make_node("Sum", ["na", "ra", "sq", "p", "l"], ["s"]),
            helper.make_node("Abs", ["s"], ["y"]),
            helper.make_node("Softmax", ["p"], ["z"]),
        ],
        {"x": (F, [SIZE, SIZE])},
        {"y": (F, [SIZE, SIZE]), "z": (F, [SIZE, SIZE]), "a": (F, [SIZE, SIZE])},
        {"flat": flat, "square": square, "three": np.array(3)},
    )


@pytest.mark.parametrize("level", [0, 1, 99])
def test_values_that_several_nodes_read(level: int) -> None:
    model, feeds = mixed(), {"x": FEEDS["x"] / SIZE}
    wanted = session_of(model, "sequential", graph_optimization_level=level).run(None, feeds)
    session = session_of(model, inter_op_num_threads=4, graph_optimization_level=level)
    for _ in range(100):
        for got, want in zip(session.run(None, feeds), wanted, strict=True):
            np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(session.run(["z"], feeds)[0], wanted[1])


def test_random_nodes_draw_in_the_order_of_the_model() -> None:
    model = model_of(
        [
            helper.make_node("RandomNormalLike", ["x"], ["r0"]),
            helper.make_node("MatMul", ["x", "r0"], ["a"]),
            helper.make_node("RandomUniformLike", ["x"], ["r1"]),
            helper.make_node("MatMul", ["r1", "x"], ["b"]),
            helper.make_node("RandomNormalLike", ["x"], ["r2"]),
            helper.make_node("MatMul", ["r2", "r2"], ["c"]),
            helper.make_node("Sum", ["a", "b", "c"], ["y"]),
        ],
        {"x": (F, [SIZE, SIZE])}, {"y": (F, [SIZE, SIZE])},
    )  # fmt: skip
    sessions = [session_of(model, "sequential"), session_of(model, inter_op_num_threads=3)]
    for seed in range(20):
        results = []
        for session in sessions:
            torch.manual_seed(seed)
            results.append(session.run(None, FEEDS)[0])
        np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_eight_threads_on_one_session(mode: str) -> None:
    session, failures = session_of(MODEL, mode), []
    feeds = [given(rows) for rows in (1, 7, SIZE, SIZE)]
    alone = session_of(MODEL, "sequential")
    wanted = [alone.run(None, one)[0] for one in feeds]

    def work(thread: int) -> None:
        for run in range(1000):
            which = (thread + run) % len(feeds)
            if not np.array_equal(session.run(None, feeds[which])[0], wanted[which]):
                failures.append((thread, run))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_bindings_and_chosen_outputs() -> None:
    session = session_of(mixed())
    binding = session.io_binding()
    feeds = {"x": FEEDS["x"] / SIZE}
    binding.bind_cpu_input("x", feeds["x"])
    binding.bind_output("z")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), session.run(["z"], feeds)[0])


# -- errors and ends ---------------------------------------------------------------------------------------------------


def failing() -> onnx.ModelProto:
    """A product beside a node that fails where `at` is no row."""
    model = branches(2, 4)
    model.graph.node.append(helper.make_node("Gather", ["x", "at"], ["row"], name="the_row"))
    model.graph.node.append(helper.make_node("Gather", ["t0_0", "at"], ["inner"], name="the_inner_row"))
    model.graph.input.append(helper.make_tensor_value_info("at", TensorProto.INT64, []))
    model.graph.output.append(helper.make_tensor_value_info("row", F, [SIZE]))
    model.graph.output.append(helper.make_tensor_value_info("inner", F, [SIZE]))
    return model


def test_an_error_is_the_same_and_the_session_goes_on() -> None:
    messages = []
    for mode in ("sequential", "parallel"):
        session = session_of(failing(), mode)
        for output in ("row", "inner"):
            for _ in range(20):
                with pytest.raises(ortmodule.ORTModuleError) as error:
                    session.run([output, "y"], {**FEEDS, "at": np.array(SIZE)})
                messages.append((output, type(error.value), str(error.value)))
                assert session.run(["row"], {**FEEDS, "at": np.array(1)})[0].shape == (SIZE,)
    assert len(set(messages)) == 2, set(messages)
    with pytest.raises(ortmodule.ORTModuleError, match="position 96"):
        session.run(None, {**FEEDS, "at": np.array(SIZE)})


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_terminate_ends_a_run_within_50_milliseconds(mode: str) -> None:
    model = branches(2, 400, 256)  # some seconds
    session, options, ended = session_of(model, mode), RunOptions(), []
    feeds = given(256, 256)
    for _ in range(3):

        def work() -> None:
            with pytest.raises(ortmodule.TerminatedError, match="terminate"):
                while True:
                    session.run(None, feeds, options)
            ended.append(time.perf_counter())

        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.1)
        asked = time.perf_counter()
        options.terminate = True
        thread.join()
        taken = ended.pop() - asked
        with pytest.raises(ortmodule.TerminatedError):
            session.run(None, feeds, options)
        options.terminate = False
        if taken < 0.05:
            break
    assert taken < 0.05  # of three, for the machine may be at work
    assert np.isfinite(session.run(None, {"x": feeds["x"][:1]}, options)[0]).all()


def test_terminate_reaches_the_body_of_a_loop() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "s"], ["t"]), helper.make_node("Identity", ["c"], ["go"])],
        "body",
        [helper.make_tensor_value_info(*v, []) for v in (("i", TensorProto.INT64), ("c", TensorProto.BOOL), ("s", F))],
        [helper.make_tensor_value_info("go", TensorProto.BOOL, []), helper.make_tensor_value_info("t", F, [])],
    )
    model = branches(2)
    model.graph.node.append(helper.make_node("Loop", ["n", "", "one"], ["z"], body=body))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1).reshape(()), "one"))
    model.graph.input.append(helper.make_tensor_value_info("n", TensorProto.INT64, []))
    model.graph.output.append(helper.make_tensor_value_info("z", F, []))
    session, options, ended = session_of(model), RunOptions(), []

    def work() -> None:
        with pytest.raises(ortmodule.TerminatedError):
            session.run(None, {**FEEDS, "n": np.array(100_000_000)}, options)
        ended.append(time.perf_counter())

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.2)
    asked = time.perf_counter()
    options.terminate = True
    thread.join()
    assert ended[0] - asked < 0.5  # usually some milliseconds; this machine may be at work
    options.terminate = False
    assert session.run(["z"], {**FEEDS, "n": np.array(3)}, options)[0] == 8


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
