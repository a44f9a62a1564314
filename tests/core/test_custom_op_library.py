"""A library of custom operators as a user builds it: own CMake project, the installed header, nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import ortmodule
from ortmodule import (
    _C,
    InferenceSession,
    InvalidArgumentError,
    InvalidGraphError,
    Options,
    ORTModule,
    ORTModuleError,
    SessionOptions,
    UnsupportedError,
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_op_library"
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")

pytestmark = pytest.mark.skipif(not COMPILER or not shutil.which("cmake"), reason="needs a C++ compiler and cmake")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The example, built by its own CMake project."""
    build = tmp_path_factory.mktemp("custom_ops")
    shown = subprocess.run([sys.executable, "-m", "ortmodule", "--include-dir"], capture_output=True, text=True)
    assert shown.stdout.strip() == ortmodule.include_dir(), shown.stderr
    configure = ["cmake", "-S", EXAMPLE, "-B", build, f"-DORTMODULE_INCLUDE_DIR={ortmodule.include_dir()}"]
    for command in (configure, ["cmake", "--build", build]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    path = next(p for p in build.iterdir() if p.suffix in (".so", ".dylib"))
    options = SessionOptions()
    options.register_custom_ops_library(path)
    assert options.custom_op_libraries == (str(path),)
    return str(path)


def compiled(folder: Path, source: str, name: str = "broken") -> str:
    """A library from one source file."""
    file = folder / f"{name}.cpp"
    file.write_text("#include <ortmodule/custom_op.h>\n" + source)
    path = folder / f"lib{name}.so"
    command = [COMPILER, "-shared", "-fPIC", f"-I{ortmodule.include_dir()}", str(file), "-o", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return str(path)


def model_of(op: str, *, domain: str = "com.example", shape: Any = ("n", 3), **attributes: Any) -> bytes:
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], name="node", domain=domain, **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [onnx.ValueInfoProto(name="y")],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11).SerializeToString()


def test_it_runs_in_an_inference_session(library: str) -> None:
    options = SessionOptions()
    options.register_custom_ops_library(library)
    session = InferenceSession(model_of("ScaledSquare", scale=3.0), options)
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], 3 * x * x, rtol=1e-6)
    strided = torch.randn(3, 5).t()
    np.testing.assert_allclose(session.run(None, {"x": strided})[0], 3 * strided.numpy() ** 2, rtol=1e-6)
    assert session.run(None, {"x": x[:0]})[0].shape == (0, 3)
    total = InferenceSession(model_of("RowSum"))
    np.testing.assert_allclose(total.run(None, {"x": x})[0], x.sum(-1), rtol=1e-5)


def test_its_shape_rule_keeps_symbols(library: str) -> None:
    session = _C.Session(model_of("RowSum", shape=("n", "m", 3)), "inference", [], {"keep_stages": True})
    output = onnx.load_from_string(session.stage_model("resolved")).graph.output[0]
    assert [d.dim_param for d in output.type.tensor_type.shape.dim] == ["n", "m"]


REFERENCES = {
    "ScaledSquare": (lambda x: 1.5 * x * x, {"scale": 1.5}),
    "RowSum": (lambda x: x.sum(-1), {}),
    "Softplus": (nn.functional.softplus, {}),
}


@pytest.mark.parametrize("op", list(REFERENCES))
def test_it_differentiates_in_a_training_session(library: str, op: str) -> None:
    reference, attributes = REFERENCES[op]
    session = _C.Session(model_of(op, **attributes), "training", ["x"])
    ours = torch.randn(4, 3, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    (y,), want = session.run([ours]), reference(theirs)
    torch.testing.assert_close(y, want)
    seed = torch.randn_like(want)
    y.backward(seed)
    want.backward(seed)
    torch.testing.assert_close(ours.grad, theirs.grad)


@torch.library.custom_op("ortmodule_test_library::scaled_square", mutates_args=())
def scaled_square(x: torch.Tensor, scale: float) -> torch.Tensor:
    return scale * x * x


scaled_square.register_fake(lambda x, scale: torch.empty_like(x))
scaled_square.register_autograd(
    lambda ctx, grad: (2 * ctx.scale * ctx.saved_tensors[0] * grad, None),
    setup_context=lambda ctx, inputs, output: (
        ctx.save_for_backward(inputs[0]),
        setattr(ctx, "scale", inputs[1]),
    ),
)


class Squares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.ortmodule_test_library.scaled_square(self.linear(x), 0.5).sum()


def test_it_runs_in_an_ortmodule_in_place_of_a_torch_operator(library: str) -> None:
    ortmodule.register_operator_mapping("ortmodule_test_library::scaled_square", "com.example", "ScaledSquare")
    eager = Squares()
    model = ORTModule(Squares(), options=Options(fallback="error", custom_op_libraries=(library,)))
    x = torch.randn(5, 3)
    for module in (eager, model):
        module(x).backward()
    torch.testing.assert_close(model.linear.weight.grad, eager.linear.weight.grad)
    assert not model.report().sessions[0].aten_nodes


def test_a_training_graph_keeps_it(library: str) -> None:
    ortmodule.register_operator_mapping("ortmodule_test_library::scaled_square", "com.example", "ScaledSquare")
    model = ortmodule.export_training_graph(Squares(), torch.randn(5, 3))
    assert {n.op_type for n in model.graph.node if n.domain == "com.example"} == {"ScaledSquare", "ScaledSquareGrad"}


def test_an_operator_without_a_gradient_says_so_until_python_gives_one(library: str) -> None:
    model = model_of("Threshold", value=0.25)
    with pytest.raises(UnsupportedError, match=r"com\.example::Threshold.*register_gradient.*node"):
        _C.Session(model, "training", ["x"])

    @ortmodule.register_gradient("com.example", "Threshold")
    def threshold(ctx: ortmodule.extending.GradientContext) -> object:
        above = ctx.node("Greater", [ctx.I(0), ctx.attributes["value"]])
        return ctx.node("Where", [above, ctx.GO(0), ctx.constant(0.0, like=ctx.GO(0))])

    try:
        x = torch.randn(4, 3, requires_grad=True)
        _C.Session(model, "training", ["x"]).run([x])[0].sum().backward()
        torch.testing.assert_close(x.grad, (x.detach() > 0.25).float())
    finally:
        _C.remove_gradient("com.example", "Threshold")


def test_its_errors_arrive_with_their_text(library: str) -> None:
    with pytest.raises(InvalidGraphError, match="RowSum needs at least one axis.*node"):
        InferenceSession(model_of("RowSum", shape=()))
    double = onnx.load_from_string(model_of("ScaledSquare"))
    double.graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    with pytest.raises(ORTModuleError, match="take float32 tensors.*node"):
        InferenceSession(double).run(None, {"x": np.zeros((2, 3))})


def test_loading_again_and_from_many_threads_changes_nothing(library: str) -> None:
    names, errors = [], []

    def load() -> None:
        try:
            names.append(_C.register_custom_ops_library(library))
            InferenceSession(model_of("ScaledSquare"))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=load) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and all(n == names[0] for n in names) and "com.example::RowSum" in names[0]


def test_another_library_cannot_take_its_operators(library: str, tmp_path: Path) -> None:
    copy = shutil.copy(library, tmp_path / "libcopy.so")
    with pytest.raises(InvalidArgumentError, match=r"com\.example::ScaledSquare.*defined already"):
        SessionOptions().register_custom_ops_library(copy)


HEAD = "static int run(OrtmoduleContext*, const OrtmoduleApi*, void*) { return 0; }\n"
PARAMETERS = 'static const OrtmoduleParameter X[] = {{"x", 0}};\n'


def described(domain: str = "com.broken", name: str = "Op", abi: str = "ORTMODULE_CUSTOM_OP_ABI_VERSION",
              compute: str = "run", gradient: str = "nullptr, 0") -> str:  # fmt: skip
    fields = (
        f'sizeof(OrtmoduleCustomOp), "{domain}", "{name}", 1, 0, X, 1, X, 1, nullptr, {compute}, nullptr, {gradient}'
    )
    return (
        HEAD + PARAMETERS + 'static const char* const IN[] = {"GO(1)"};\nstatic const char* const OUT[] = {"GI(0)"};\n'
        'static const OrtmoduleGradientNode G[] = {{"Neg", IN, 1, OUT, 1}};\n'
        f"static const OrtmoduleCustomOp op = {{{fields}}};\n"
        "static const OrtmoduleCustomOp* const ops[] = {&op};\n"
        f"static const OrtmoduleCustomOpLibrary all = {{{abi}, sizeof(OrtmoduleCustomOpLibrary), ops, 1}};\n"
        "const OrtmoduleCustomOpLibrary* OrtmoduleRegisterCustomOps(void) { return &all; }\n"
    )


@pytest.mark.parametrize(
    ("source", "words"),
    [
        pytest.param(described(abi="99"), ["version 99", "has version 1", "include_dir"], id="another ABI version"),
        pytest.param("int nothing = 0;\n", ["no symbol OrtmoduleRegisterCustomOps"], id="missing symbol"),
        pytest.param(
            'extern "C" int RegisterCustomOps() { return 0; }\n', ["one for ONNX Runtime"], id="ONNX Runtime's library"
        ),
        pytest.param(described(domain="", name="Relu"), ["domain ''"], id="a standard operator"),
        pytest.param(described(domain="com.microsoft", name="Gelu"), ["ORTModule's own"], id="an operator of ours"),
        pytest.param(described(compute="nullptr"), ["com.broken::Op", "compute"], id="no kernel"),
        pytest.param(described(gradient="G, 1"), ["com.broken::Op", "Neg", "GO(1)"], id="broken gradient"),
        pytest.param(
            HEAD + "const OrtmoduleCustomOpLibrary* OrtmoduleRegisterCustomOps(void) { return nullptr; }",
            ["returned null"],
            id="null",
        ),
    ],
)
def test_a_broken_library_is_refused_with_its_name(tmp_path: Path, source: str, words: list[str]) -> None:
    path = compiled(tmp_path, source)
    with pytest.raises(InvalidArgumentError) as caught:
        SessionOptions().register_custom_ops_library(path)
    assert all(word in str(caught.value) for word in [*words, path])


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(InvalidArgumentError, match=r"text\.so' is no library"):
        SessionOptions().register_custom_ops_library(tmp_path / "text.so")
    with pytest.raises(InvalidArgumentError, match=r"there is no file .*missing\.so"):
        SessionOptions().register_custom_ops_library(tmp_path / "missing.so")
    with pytest.raises(InvalidArgumentError, match=r"there is no file"):
        ORTModule(nn.Linear(1, 1), options=Options(custom_op_libraries=(tmp_path / "missing.so",)))


def test_a_library_that_makes_no_output_is_an_error(tmp_path: Path) -> None:
    _C.register_custom_ops_library(compiled(tmp_path, described(domain="com.lazy"), "lazy"))
    with pytest.raises(ORTModuleError, match="made no output 0.*node"):
        InferenceSession(model_of("Op", domain="com.lazy")).run(None, {"x": np.zeros((2, 3), np.float32)})
