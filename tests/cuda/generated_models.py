"""The generated kernels of the six models of benchmarks/gpu_models.py, as texts: real widths, two layers each.

A plan of the CPU with a GPU's prices has the clusters that a CUDA session has; operands are taken to lie in row-major
order. Not here: who compiles them (test_generated.py).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import onnx
import torch

from ortmodule import _C, Options, ORTModule
from ortmodule.debug import plan
from ortmodule.graph_transition.built_sessions import BuiltSession, listen

from ..device.__main__ import ROOT

DTYPES = {"float": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "bool": torch.bool,
          "int64": torch.int64}  # fmt: skip


def _models() -> dict[str, tuple[Callable[[], torch.nn.Module], Callable[[], tuple[torch.Tensor, ...]]]]:
    if str(ROOT / "benchmarks") not in sys.path:
        sys.path.append(str(ROOT / "benchmarks"))
    from gpu_models import ResNet50
    from models import Bert, Gpt2, Llama, Vit, masked_text, pictures, text

    return {
        "gpt2-small": (lambda: Gpt2(50257, 768, 12, 2, 1024), lambda: text(8, 1024, 50257)),
        "gpt2-medium": (lambda: Gpt2(50257, 1024, 16, 2, 1024), lambda: text(8, 1024, 50257)),
        "llama-1b": (lambda: Llama(32000, 2048, 32, 2, 5632, 2048), lambda: text(4, 2048, 32000)),
        "bert-large": (lambda: Bert(30522, 1024, 16, 2, 512, 0.1), lambda: masked_text(16, 512, 30522)),
        "vit-large": (lambda: Vit(224, 16, 1024, 16, 2, 1000), lambda: pictures(64, 224, 1000)),
        "resnet50": (lambda: ResNet50(depths=(1, 2, 1, 1)), lambda: pictures(128, 224, 1000)),
    }


NAMES = ("gpt2-small", "gpt2-medium", "llama-1b", "bert-large", "vit-large", "resnet50")


def _operand(text: str) -> torch.Tensor:
    name, _, sizes = text.partition("[")
    shape = [int(n) if n.isdigit() else 64 for n in re.findall(r"[\w.*+-]+", sizes)]
    return torch.empty(shape, dtype=DTYPES[name], device="meta")


def sources_of(name: str) -> list[str]:
    """Each once, in the order of the plan."""
    module, batch = _models()[name]
    with torch.device("meta"):
        made = module()
    built: list[BuiltSession] = []
    end = listen(built.append)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            engine = ORTModule(
                made.to_empty(device="cpu").train(), options=Options(providers=[("cpu", {"prices": "cuda"})])
            )
            halves = plan(engine, batch()).halves
    finally:
        end()
    model = onnx.load_from_string(built[-1].session.stage_model("planned"))
    nodes = {node.name: node for node in model.graph.node if node.op_type == "FusedKernel"}
    found: dict[str, None] = {}
    for step in (step for half in halves for step in half["steps"]):
        node = nodes.get(step["node"])
        if node is None or not step["op"].endswith("FusedKernel"):
            continue
        given: dict[str, Any] = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        texts = {k: [line.decode() for line in given[k]] for k in ("program", "outputs")}
        operands = [_operand(value["type"]) for value in step["inputs"]]
        for source in _C.fused_cuda_sources(texts["program"], texts["outputs"], list(given.get("rows", ())), operands):
            found[source] = None
    return list(found)
