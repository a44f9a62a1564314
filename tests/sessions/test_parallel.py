"""Nodes side by side: the same results and errors as one by one, and runs that end when they are asked to."""

from __future__ import annotations

import threading

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import ortmodule
from ortmodule import RunOptions

from .models import F, model_of, seconds_to_end
from .towers import FEEDS, MODEL, RNG, SIZE, WANTED, branches, given, session_of

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


def random_graph(seed: int, nodes: int = 40) -> onnx.ModelProto:
    """Nodes that read any values before them, many of them views, most of which may be written over."""
    random, made, values = np.random.default_rng(seed), [], ["x"]
    one = [("Tanh", {}), ("Neg", {}), ("Relu", {}), ("Abs", {}), ("Transpose", {"perm": [1, 0]}), ("Identity", {})]
    two = [("Add", {}), ("Mul", {}), ("Sub", {}), ("MatMul", {})]
    for i in range(nodes):
        op, attributes = (one + two)[random.integers(len(one) + len(two))]
        read = [str(values[-1 - min(len(values) - 1, int(random.geometric(0.3)) - 1)]) for _ in range(2)]
        made.append(helper.make_node(op, read[: 1 if (op, attributes) in one else 2], [f"v{i}"], **attributes))
        if op == "MatMul":
            made.append(helper.make_node("Tanh", [f"v{i}"], [f"t{i}"]))
        values.append(f"t{i}" if op == "MatMul" else f"v{i}")
    made.append(helper.make_node("Sum", [str(v) for v in random.choice(values, 4, replace=False)] + values[-1:], ["y"]))
    return model_of(made, {"x": (F, [64, 64])}, {"y": (F, [64, 64]), values[nodes // 2]: (F, [64, 64])})


@pytest.mark.parametrize("level", [0, 99])
def test_random_graphs(level: int) -> None:
    feeds = {"x": RNG.standard_normal((64, 64)).astype(np.float32)}
    for seed in range(25):
        model = random_graph(seed)
        wanted = session_of(model, "sequential", graph_optimization_level=level).run(None, feeds)
        session = session_of(model, inter_op_num_threads=3, graph_optimization_level=level)
        for _ in range(20):
            for got, want in zip(session.run(None, feeds), wanted, strict=True):
                np.testing.assert_array_equal(got, want)


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
    session, options = session_of(model, mode), RunOptions()
    feeds = given(256, 256)

    def run() -> None:
        while True:
            session.run(None, feeds, options)

    for _ in range(3):
        taken = seconds_to_end(run, options, 0.1)
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
    session, options = session_of(model), RunOptions()
    feeds = {**FEEDS, "n": np.array(100_000_000)}
    assert (
        seconds_to_end(lambda: session.run(None, feeds, options), options) < 0.5
    )  # usually some milliseconds; this machine may be at work
    options.terminate = False
    assert session.run(["z"], {**FEEDS, "n": np.array(3)}, options)[0] == 8
