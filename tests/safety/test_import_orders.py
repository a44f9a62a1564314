"""The engine beside the libraries that have the same names in them (protobuf, ONNX), in whatever order they are loaded.

Each order is a process of its own, in which a model is trained for a step and each library that was loaded does its own
work after that.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

OURS, ORT, PROTO = "ortmodule", "onnxruntime", "google.protobuf.message"
ORDERS = {
    "torch, ours": ["torch", OURS],
    "ours": [OURS],
    "onnx, torch, ours": ["onnx", "torch", OURS],
    "onnx, ours, torch": ["onnx", OURS, "torch"],
    "onnxruntime, ours": [ORT, OURS],
    "onnxruntime, torch, ours": [ORT, "torch", OURS],
    "torch, onnxruntime, ours": ["torch", ORT, OURS],
    "ours, onnxruntime": [OURS, ORT],
    "ours, onnxruntime, onnx": [OURS, ORT, "onnx"],
    "protobuf, onnx, onnxruntime, torch, ours": [PROTO, "onnx", ORT, "torch", OURS],
    "all, symbols of all shared": ["RTLD_GLOBAL", "onnx", ORT, "torch", OURS],
    "ours first, symbols of all shared": ["RTLD_GLOBAL", OURS, ORT, "onnx"],
    "all, bound at once": ["LD_BIND_NOW", "torch", ORT, "onnx", OURS],
}

PROGRAM = """
import importlib, sys
for name in sys.argv[1:]:
    if name == "RTLD_GLOBAL":
        import os
        sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
    elif name != "LD_BIND_NOW":
        importlib.import_module(name)
import torch, onnx, onnx.parser, ortmodule
model = ortmodule.ORTModule(torch.nn.Linear(3, 2), options=ortmodule.Options(fallback="error"))
model(torch.ones(1, 3)).sum().backward()
assert model.weight.grad is not None
proto = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) { y = Neg(x)}')
onnx.checker.check_model(onnx.shape_inference.infer_shapes(proto))
x = torch.ones(2).numpy()
assert ortmodule.InferenceSession(proto).run(None, {"x": x})[0].tolist() == [-1, -1]
if "onnxruntime" in sys.modules:
    session = sys.modules["onnxruntime"].InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": x})[0].tolist() == [-1, -1]
print("done")
"""


@pytest.mark.parametrize("name", ORDERS)
def test_an_order_of_imports(name: str, tmp_path: Path) -> None:
    order = ORDERS[name]
    if ORT in order:
        pytest.importorskip("onnxruntime")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if "LD_BIND_NOW" in order:
        environment["LD_BIND_NOW"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *order], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.endswith("done\n"), f"{done.returncode}: {done.stderr[-1500:]}"


def test_there_are_at_least_twelve_orders() -> None:
    print(f"{len(ORDERS)} orders of imports")
    assert len(ORDERS) >= 12
