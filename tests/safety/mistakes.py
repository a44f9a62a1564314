"""Mistakes that people make, each with what its message has to name and what it has to say to do or expect."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.parser
import torch
from torch import nn

from ortmodule import (
    InferenceSession,
    Options,
    ORTModule,
    OrtValue,
    RunOptions,
    SessionOptions,
    export_training_graph,
)  # fmt: skip

X, W = np.ones((3, 2), np.float32), np.ones(2, np.float32)
STRICT = Options(fallback="error")


class Mistake(NamedTuple):
    """`make` raises an error of the library's; `named` and `told` are in its text."""

    make: Callable[[], Any]
    named: str
    told: str


def model(text: str, opset: int = 21) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> g {text}')


ADD = model("(float[n,2] x, float[2] w) => (float[n,2] y) { y = Add(x, w) }")


def session(proto: Any = ADD, **options: Any) -> InferenceSession:
    made = SessionOptions()
    for name, value in options.items():
        setattr(made, name, value)
    return InferenceSession(proto, made)


def of_node(body: str, opset: int = 21, x: str = "float[2]") -> Callable[[], Any]:
    return lambda: session(model(f"({x} x) => (float[2] y) {{ {body} }}", opset))


def fed(*names: str | None, **feeds: Any) -> Callable[[], Any]:
    return lambda: session().run(list(names) or None, feeds)


def bound(*steps: Callable[[Any], Any]) -> Callable[[], Any]:
    def make() -> None:
        own = session()
        binding = own.io_binding()
        for step in steps:
            step(binding)
        own.run_with_iobinding(binding)

    return make


def configured(step: Callable[[SessionOptions], Any]) -> Callable[[], Any]:
    def make() -> None:
        options = SessionOptions()
        step(options)
        InferenceSession(ADD, options)

    return make


def called(module: nn.Module, *args: Any, **kwargs: Any) -> Callable[[], Any]:
    return lambda: ORTModule(module, options=STRICT)(*args, **kwargs)


def linear() -> nn.Module:
    return nn.Linear(2, 2)


def backward_twice() -> None:
    loss = ORTModule(linear(), options=STRICT)(torch.ones(2, 2)).sum()
    loss.backward()
    loss.backward()


def parameter_changed() -> None:
    wrapped = ORTModule(nn.Sequential(linear(), nn.Tanh(), linear()), options=STRICT)
    loss = wrapped(torch.ones(2, 2, requires_grad=True)).sum()
    with torch.no_grad():
        wrapped.module[2].weight.add_(1)
    loss.backward()


def outside_in_bytes() -> None:
    proto = onnx.ModelProto()
    proto.CopyFrom(ADD)
    tensor = proto.graph.initializer.add(name="k", data_type=1, dims=[2], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    InferenceSession(proto)


BIND_X, BIND_W = (lambda b: b.bind_cpu_input("x", X)), (lambda b: b.bind_cpu_input("w", W))
SMALL = np.zeros((1, 2), np.float32)
MISTAKES: dict[str, Mistake] = {
    # the model
    "no such file": Mistake(lambda: InferenceSession("nowhere.onnx"), "nowhere.onnx", "No such file"),
    "a folder": Mistake(lambda: InferenceSession(tempfile.gettempdir()), tempfile.gettempdir(), "no regular file"),
    "a text": Mistake(lambda: InferenceSession(b"this is no model"), "16 bytes", "at byte 0"),
    "nothing": Mistake(lambda: InferenceSession(b""), "0 bytes", "neither a version nor a graph"),
    "a part": Mistake(lambda: InferenceSession(ADD.SerializeToString()[:-5]), "no ONNX model", "at byte"),
    "None": Mistake(lambda: InferenceSession(None), "path_or_bytes", "should be a path"),
    "a number": Mistake(lambda: InferenceSession(3), "path_or_bytes", "should be a path"),
    "a module": Mistake(lambda: InferenceSession(linear()), "got Linear", "runs in ORTModule"),
    "an unknown operator": Mistake(of_node("y = Rellu(x)"), "Rellu node 'y'", "did you mean 'Relu'"),
    "an operator that is newer": Mistake(of_node("y = Gelu(x)", 13), "Gelu node 'y'", "20 and later"),
    "a cycle": Mistake(of_node("y = Add(x, z)  z = Neg(y)"), "Neg node 'z'", "has a cycle"),
    "a value that nothing makes": Mistake(of_node("y = Add(x, q)"), "'q' as input 1", "is no graph input"),
    "an attribute of another kind": Mistake(of_node('y = Softmax<axis = "a">(x)'), "Softmax node", "of kind string"),
    "shapes that do not fit": Mistake(of_node("y = MatMul(x, x)", x="float[2,3]"), "MatMul node 'y'", "do not fit"),
    "an opset that is newer": Mistake(of_node("y = Neg(x)", 99), "opset 99", "1 to 28 are supported"),
    "data outside of bytes": Mistake(outside_in_bytes, "initializer 'k'", "give the model's folder"),
    # its options
    "options of another kind": Mistake(lambda: InferenceSession(ADD, {}), "sess_options", "should be SessionOptions"),
    "a misspelt option": Mistake(lambda: session(enable_mem_patern=1), "'enable_mem_patern'", "did you mean"),
    "an option's type": Mistake(lambda: session(intra_op_num_threads="4"), "num_threads", "should be a number"),
    "an unknown order": Mistake(lambda: session(execution_order="fast"), "execution_order", "should be one of"),
    "a limit below 0": Mistake(lambda: session(max_nodes=-1), "SessionOptions.max_nodes", "from 0 on"),
    "a limit that is reached": Mistake(lambda: session(max_nodes=0), "1 nodes", "SessionOptions.max_nodes"),
    "an unknown provider": Mistake(lambda: InferenceSession(ADD, providers=["TPU"]), "'TPU'", "registered provider"),
    "an unknown device": Mistake(lambda: InferenceSession(ADD, device="tpu"), "'tpu'", "such as 'cpu'"),
    "an unknown pass": Mistake(lambda: session(disabled_passes=["fus"]), "disabled_passes", "there is no pass 'fus'"),
    "a size that is not free": Mistake(
        configured(lambda o: o.add_free_dimension_override_by_name("batch", 3)), "'batch'", "it has 'n'"
    ),
    "an unknown initializer": Mistake(
        configured(lambda o: o.add_initializer("v", OrtValue.ortvalue_from_numpy(W))), "'v'", "no initializer"
    ),
    "no such library": Mistake(
        lambda: SessionOptions().register_custom_ops_library("libno.so"), "libno.so", "there is no file"
    ),
    # its runs
    "an input that is missing": Mistake(fed(x=X), "missing: ['w']", "the inputs are"),
    "an input too many": Mistake(fed(x=X, w=W, z=W), "unknown: ['z']", "the inputs are"),
    "an unknown output": Mistake(fed("Y", x=X, w=W), "'Y'", "it has ['y']"),
    "another type": Mistake(fed(x=X.astype(np.float64), w=W), "input 'x'", "should be of type"),
    "another rank": Mistake(fed(x=X[0], w=W), "input 'x'", "should have shape [n, 2]"),
    "another size": Mistake(fed(x=X, w=np.ones(3, np.float32)), "input 'w'", "should have shape [2]"),
    "strings": Mistake(fed(x=np.array([["a", "b"]]), w=W), "input 'x'", "holds strings"),
    "None for a tensor": Mistake(fed(x=None, w=W), "input 'x'", "is a tensor, got None"),
    "a list of feeds": Mistake(lambda: session().run(None, [X, W]), "feeds", "should be a mapping"),
    "other run options": Mistake(
        lambda: session().run(None, {"x": X, "w": W}, {"tag": 1}), "run_options", "should be RunOptions"
    ),
    "a misspelt run option": Mistake(lambda: setattr(RunOptions(), "tags", ""), "'tags'", "did you mean 'tag'"),
    "an input that is not bound": Mistake(bound(BIND_X, lambda b: b.bind_output("y")), "inputs ['w']", "bind_input"),
    "no output that is bound": Mistake(bound(BIND_X, BIND_W), "no output is bound", "bind_output"),
    "a buffer that is too small": Mistake(
        bound(BIND_X, BIND_W, lambda b: b.bind_output("y", "cpu", 0, np.float32, [1, 2], SMALL.ctypes.data)),
        "output 'y'", "is of float32 and shape [1, 2], the result of float32 and [3, 2]",
    ),
    "an unknown name is bound": Mistake(bound(lambda b: b.bind_cpu_input("q", X)), "'q'", "it has ['x', 'w']"),
    "no profile": Mistake(lambda: session().end_profiling(), "nothing was profiled", "SessionOptions.enable_profiling"),
    # values
    "a value of strings": Mistake(lambda: OrtValue.ortvalue_from_numpy(np.array(["a"])), "<U1", "holds numbers"),
    "a value on no device": Mistake(lambda: OrtValue.ortvalue_from_numpy(W, "tpu"), "'tpu'", "there is no device"),
    "a value of a number": Mistake(lambda: OrtValue(3), "got 3", "holds a tensor, a list of tensors"),
    "a value of another shape": Mistake(
        lambda: OrtValue.ortvalue_from_numpy(W.copy()).update_inplace(X), "shape [3, 2]", "does not fit a value"
    ),
    "a tensor with history": Mistake(
        lambda: OrtValue.from_dlpack(torch.ones(1, requires_grad=True)), "DLPack", "detach"
    ),
    # modules
    "no module": Mistake(lambda: ORTModule(torch.ones(2)), "got Tensor", "wraps an nn.Module"),
    "a class": Mistake(lambda: ORTModule(nn.Linear), "got type", "wraps an nn.Module"),
    "a misspelt option of a module": Mistake(lambda: Options(memry_budget=1), "'memry_budget'", "did you mean"),
    "an option's value": Mistake(lambda: Options(memory_budget="half"), "Options.memory_budget", "should be bytes"),
    "options as a dict": Mistake(lambda: ORTModule(linear(), options={}), "options", "should be Options"),
    "another element type": Mistake(
        called(linear(), torch.ones(2, 2, dtype=torch.float64)), "node 'linear'", "should have one type"
    ),
    "an argument that is missing": Mistake(called(linear()), "'input'", "missing 1 required"),
    "an argument too many": Mistake(called(linear(), torch.ones(2, 2), 1), "Linear.forward()", "takes 2 positional"),
    "an index that is out of range": Mistake(called(nn.Embedding(4, 2), torch.tensor([7])), "index", "out of range"),
    "backward twice": Mistake(backward_twice, "a second time", "Specify retain_graph=True"),
    "a parameter that was changed": Mistake(parameter_changed, "'2.weight'", "or after the backward"),
    "no such loss": Mistake(
        lambda: export_training_graph(linear(), torch.ones(2, 2), loss="los"), "loss='los'", "['output']"
    ),
    "no such input": Mistake(
        lambda: export_training_graph(linear(), torch.ones(2, 2), dynamic_axes={"inpt": [0]}), "'inpt'", "['input']"
    ),
}  # fmt: skip
