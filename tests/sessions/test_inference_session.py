"""InferenceSession: what it loads, what it says of a model, and what it computes of what it is asked for."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import ortmodule
from ortmodule import InferenceSession, OrtValue, RunOptions, SessionOptions

from .models import F, add_one, model_of, seconds_to_end, two_results

X = np.ones((2, 3), np.float32)
AT = np.array(1)


def weighted(size: int) -> onnx.ModelProto:
    weights = np.arange(size * size, dtype=np.float32).reshape(size, size) / size
    return model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": (F, ["n", size])}, {"y": (F, ["n", size])}, {"w": weights},
    )  # fmt: skip


def saved_outside(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


# -- loading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["path", "text", "bytes", "proto"])
def test_a_model_comes_in_four_forms(form: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(add_one(), path)
    given = {"path": path, "text": str(path), "bytes": path.read_bytes(), "proto": add_one()}[form]
    assert InferenceSession(given).run(None, {"x": np.zeros(2, np.float32)})[0].tolist() == [1, 1]


@pytest.mark.parametrize("size", [4, 640], ids=["read", "mapped"])
def test_tensors_in_a_file_beside_the_model_are_found(size: int, tmp_path: Path) -> None:
    model = weighted(size)
    weights = onnx.numpy_helper.to_array(model.graph.initializer[0])
    session = InferenceSession(saved_outside(model, tmp_path))
    x = np.random.default_rng(0).standard_normal((3, size)).astype(np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ weights, rtol=1e-4, atol=1e-3)


def test_mapped_weights_take_no_memory_of_the_process(tmp_path: Path) -> None:
    session = InferenceSession(saved_outside(weighted(640), tmp_path))
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "weights.bin" in line]
    assert mapped
    del session
    assert not [line for line in Path("/proc/self/maps").read_text().splitlines() if "weights.bin" in line]


def test_what_lies_elsewhere_is_refused(tmp_path: Path) -> None:
    path = saved_outside(weighted(4), tmp_path)
    (tmp_path / "other").mkdir()
    os.replace(tmp_path / "weights.bin", tmp_path / "other" / "weights.bin")
    (tmp_path / "weights.bin").symlink_to(tmp_path / "other" / "weights.bin")
    with pytest.raises(ortmodule.InvalidArgumentError, match="symbolic links are refused"):
        InferenceSession(path)
    with pytest.raises(ortmodule.InvalidArgumentError, match="weights.bin"):
        InferenceSession(path.read_bytes())


@pytest.mark.parametrize("what", ["missing", "folder", "empty", "text"])
def test_what_is_no_model_is_an_error(what: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    if what == "folder":
        path.mkdir()
    elif what != "missing":
        path.write_bytes(b"" if what == "empty" else b"no model at all")
    with pytest.raises((ortmodule.InvalidArgumentError, ortmodule.InvalidGraphError), match=r"model"):
        InferenceSession(path)


# -- what it says ------------------------------------------------------------------------------------------------------


def test_inputs_outputs_and_metadata() -> None:
    model = two_results()
    model.producer_name, model.domain, model.model_version, model.doc_string = "ours", "test", 7, "two results"
    helper.set_model_props(model, {"author": "nobody"})
    session = InferenceSession(model)
    x, at = session.get_inputs()
    assert (x.name, x.type, x.shape) == ("x", "tensor(float)", ["batch", 3])
    assert (at.name, at.type, at.shape) == ("at", "tensor(int64)", [])
    assert [(o.name, o.shape) for o in session.get_outputs()] == [("total", ["batch", 2]), ("row", [3])]
    meta = session.get_modelmeta()
    assert (meta.producer_name, meta.domain, meta.version, meta.description) == ("ours", "test", 7, "two results")
    assert (meta.graph_name, meta.custom_metadata_map) == ("main", {"author": "nobody"})
    assert session.get_providers() == ["cpu"]
    assert InferenceSession(model, providers=["CPUExecutionProvider"]).get_providers() == ["cpu"]


def test_types_of_sequences_and_unknown_shapes() -> None:
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.INT64, None))
    graph = helper.make_graph(
        [helper.make_node("Identity", ["s"], ["t"]), helper.make_node("Identity", ["x"], ["y"])],
        "main",
        [helper.make_value_info("s", sequence), helper.make_tensor_value_info("x", F, ["n", None])],
        [helper.make_value_info("t", sequence), helper.make_tensor_value_info("y", F, None)],
    )
    session = InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))
    assert [(i.type, i.shape) for i in session.get_inputs()] == [
        ("seq(tensor(int64))", None), ("tensor(float)", ["n", None]),
    ]  # fmt: skip
    assert session.get_outputs()[1].shape is None


def test_an_input_with_a_value_is_overridable() -> None:
    model = add_one()
    model.graph.input.append(helper.make_tensor_value_info("one", F, []))
    session = InferenceSession(model)
    assert [i.name for i in session.get_inputs()] == ["x"]
    assert [i.name for i in session.get_overridable_initializers()] == ["one"]


def adding(**values: float) -> onnx.ModelProto:
    """y = x + a + b, whose a and b are inputs with values."""
    model = model_of(
        [helper.make_node("Add", ["a", "b"], ["c"]), helper.make_node("Add", ["x", "c"], ["y"])],
        {"x": (F, ["n"]), **{name: (F, []) for name in values}}, {"y": (F, ["n"])},
        {name: np.array(value, np.float32) for name, value in values.items()},
    )  # fmt: skip
    assert len(model.graph.input) == 3
    return model


def test_a_run_may_be_given_other_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(adding(a=1.0, b=2.0), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    for source in ("model.onnx", adding(a=1.0, b=2.0)):
        monkeypatch.chdir(tmp_path)
        session = InferenceSession(source)
        monkeypatch.chdir("/")
        x, ten = np.zeros(2, np.float32), np.array(10, np.float32)
        results = [
            session.run(None, {"x": x, **others})[0][0]
            for others in ({}, {"a": ten}, {"a": ten * 2}, {"b": ten}, {"a": ten, "b": ten}, {})
        ]
        assert results == [3, 12, 22, 11, 20, 3]
        values = {name: OrtValue.ortvalue_from_numpy(value) for name, value in {"x": x, "b": ten}.items()}
        assert session.run_with_ort_values(["y"], values)[0].numpy()[0] == 11
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        assert binding.get_outputs()[0].numpy()[0] == 3
        binding.bind_cpu_input("a", ten)
        session.run_with_iobinding(binding)
        assert binding.get_outputs()[0].numpy()[0] == 12
        with pytest.raises(ortmodule.InvalidArgumentError, match="'a'"):
            session.run(None, {"x": x, "a": np.zeros(3, np.float32)})
        with pytest.raises(ortmodule.InvalidArgumentError, match=r"unknown: \['c'\]"):
            session.run(None, {"x": x, "c": ten})
        held = weakref.ref(session)
        gc.disable()
        del session, binding
        assert held() is None
        gc.enable()


def test_a_value_from_the_options_gives_way_to_a_runs() -> None:
    options = SessionOptions()
    options.add_initializer("a", OrtValue.ortvalue_from_numpy(np.array(5, np.float32)))
    session = InferenceSession(adding(a=1.0, b=2.0), options)
    x = np.zeros(1, np.float32)
    assert session.run(None, {"x": x})[0] == 7
    assert session.run(None, {"x": x, "a": np.array(0, np.float32)})[0] == 2
    assert session.run(None, {"x": x})[0] == 7


# -- runs --------------------------------------------------------------------------------------------------------------


def test_outputs_come_in_the_order_in_which_they_are_asked_for() -> None:
    session = InferenceSession(two_results())
    total, row = session.run(None, {"x": X, "at": AT})
    again_row, again_total, once_more = session.run(["row", "total", "row"], {"x": X, "at": AT})
    for got, want in [(again_row, row), (again_total, total), (once_more, row)]:
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(session.run(["total"], {"x": X, "at": AT})[0], total)
    assert len(session.run([], {"x": X, "at": AT})) == 2


def test_nothing_is_computed_that_nobody_asked_for() -> None:
    session = InferenceSession(two_results())
    beyond = {"x": X, "at": np.array(5)}  # the row's kernel fails
    assert session.run(["total"], beyond)[0].shape == (2, 2)
    with pytest.raises(ortmodule.ORTModuleError, match="position 5"):
        session.run(["row"], beyond)
    options = RunOptions()
    options.only_execute_path_to_fetches = False
    with pytest.raises(ortmodule.ORTModuleError, match="position 5"):
        session.run(["total"], beyond, options)


def test_many_kinds_of_questions() -> None:
    """There are more subsets of the outputs than plans that are kept."""
    names = [f"y{i}" for i in range(8)]
    session = InferenceSession(
        model_of(
            [helper.make_node("Add", ["x", f"c{i}"], [f"y{i}"]) for i in range(8)],
            {"x": (F, [])}, {name: (F, []) for name in names}, {f"c{i}": np.float32(i).reshape(()) for i in range(8)},
        )
    )  # fmt: skip
    for mask in range(1, 256):
        wanted = [name for i, name in enumerate(names) if mask >> i & 1]
        got = session.run(wanted, {"x": np.float32(1).reshape(())})
        assert [float(v) for v in got] == [1.0 + int(name[1:]) for name in wanted]


def test_names_that_do_not_fit() -> None:
    session = InferenceSession(two_results())
    with pytest.raises(ortmodule.InvalidArgumentError, match=r"missing: \['at'\], unknown: \['att'\]"):
        session.run(None, {"x": X, "att": AT})
    with pytest.raises(ortmodule.InvalidArgumentError, match=r"missing: \[\], unknown: \['z'\]"):
        session.run(None, {"x": X, "at": AT, "z": X})
    with pytest.raises(ortmodule.InvalidArgumentError, match=r"no output 'totl'.*did you mean 'total'"):
        session.run(["totl"], {"x": X, "at": AT})


def test_given_arrays_stay_as_they_are_and_results_are_their_own() -> None:
    model = model_of([helper.make_node("Identity", ["x"], ["y"])], {"x": (F, [4])}, {"y": (F, [4])})
    session = InferenceSession(model)
    x = np.arange(4, dtype=np.float32)
    (y,) = session.run(None, {"x": x})
    y[0] = 7
    assert x[0] == 0
    x[1] = 9
    assert y[1] == 1
    relu = InferenceSession(model_of([helper.make_node("Neg", ["x"], ["y"])], {"x": (F, [4])}, {"y": (F, [4])}))
    relu.run(None, {"x": x})
    assert x.tolist() == [0, 9, 2, 3]


def test_a_constant_that_is_an_output_is_the_callers_own() -> None:
    table = np.arange(4096, dtype=np.float32)
    session = InferenceSession(
        model_of(
            [helper.make_node("Identity", ["table"], ["y"])], {"x": (F, [1])}, {"y": (F, [4096])}, {"table": table}
        )
    )
    (y,) = session.run(None, {"x": np.zeros(1, np.float32)})
    y[:] = 0
    np.testing.assert_array_equal(session.run(None, {"x": np.zeros(1, np.float32)})[0], table)


@pytest.mark.parametrize(
    "x",
    [
        np.arange(8, dtype=np.float32)[::2],
        np.arange(4, dtype=np.float32)[::-1],
        np.arange(4, dtype=">f4"),
        torch.arange(4.0),
        torch.arange(4.0, requires_grad=True),
        [0.0, 1.0, 2.0, 3.0],
    ],
    ids=["strides", "backwards", "big-endian", "tensor", "leaf", "list"],
)
def test_arrays_and_tensors_of_any_layout(x) -> None:
    session = InferenceSession(add_one())
    if isinstance(x, list):
        x = np.array(x, np.float32)
    want = np.asarray(x.detach() if isinstance(x, torch.Tensor) else x, np.float32) + 1
    (y,) = session.run(None, {"x": x})
    assert isinstance(y, np.ndarray)
    np.testing.assert_array_equal(y, want)


def test_another_type_is_refused() -> None:
    session = InferenceSession(add_one())
    with pytest.raises(ortmodule.InvalidArgumentError, match="'x'.*Float.*Double"):
        session.run(None, {"x": np.zeros(2)})
    with pytest.raises(ortmodule.UnsupportedError, match="strings"):
        session.run(None, {"x": np.array(["a"])})


def test_threads_share_a_session() -> None:
    session = InferenceSession(two_results())
    wanted = {n: session.run(None, {"x": np.full((n, 3), n, np.float32), "at": AT * 0}) for n in range(1, 9)}
    failures = []

    def work(n: int) -> None:
        for _ in range(200):
            got = session.run(["total"] if n % 2 else None, {"x": np.full((n, 3), n, np.float32), "at": AT * 0})
            if not np.array_equal(got[0], wanted[n][0]):
                failures.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# -- ending a run ------------------------------------------------------------------------------------------------------


def long_loop() -> onnx.ModelProto:
    """Ten million additions, one after another."""
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "s"], ["t"]), helper.make_node("Identity", ["c"], ["go"])],
        "body",
        [helper.make_tensor_value_info(*v, []) for v in (("i", TensorProto.INT64), ("c", TensorProto.BOOL), ("s", F))],
        [helper.make_tensor_value_info("go", TensorProto.BOOL, []), helper.make_tensor_value_info("t", F, [])],
    )  # fmt: skip
    return model_of(
        [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)],
        {"x": (F, []), "n": (TensorProto.INT64, [])}, {"y": (F, [])},
    )  # fmt: skip


def test_terminate_ends_a_run_and_the_session_goes_on() -> None:
    session = InferenceSession(long_loop())
    options = RunOptions()
    feeds = {"x": np.float32(1).reshape(()), "n": np.array(10_000_000)}
    taken = seconds_to_end(lambda: session.run(None, feeds, options), options)
    assert taken < 0.5  # usually under a millisecond; this machine may be at work
    with pytest.raises(ortmodule.TerminatedError, match="terminate"):
        session.run(None, {**feeds, "n": np.array(2)}, options)
    options.terminate = False
    assert session.run(None, {**feeds, "n": np.array(2)}, options)[0] == 4
    assert session.run(None, {**feeds, "n": np.array(3)})[0] == 8


def test_options_of_another_kind_are_refused() -> None:
    with pytest.raises(ortmodule.InvalidArgumentError, match="SessionOptions"):
        InferenceSession(add_one(), {"execution_order": 1})  # type: ignore[arg-type]
    with pytest.raises(ortmodule.InvalidArgumentError, match="RunOptions"):
        InferenceSession(add_one()).run(None, {"x": X[0]}, SessionOptions())  # type: ignore[arg-type]


def test_a_session_goes_at_once_when_it_is_dropped() -> None:
    session = InferenceSession(two_results())
    binding = session.io_binding()
    session.run(None, {"x": X, "at": AT})
    held = weakref.ref(session)
    gc.disable()
    try:
        del session, binding
        assert held() is None
    finally:
        gc.enable()
