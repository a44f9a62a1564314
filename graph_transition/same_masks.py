"""The masks that the engine's counter-based dropout drew, for a forward that PyTorch runs again.

The engine draws two words of torch's generator for a run, and the n-th dropout of a graph has the n-th stream of them;
eager draws a number for each element. A run that shall drop the same elements starts from the same state of the
generator, and makes the mask of its n-th dropout as the engine does. Everything else draws as it always does.

Where the engine has dropped otherwise (it may leave out rows that nobody reads, and draws on other devices are other
ones) the gradients differ, which the caller looks at. Not here: the state itself (csrc/autograd/higher_order.h).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch.utils._python_dispatch import TorchDispatchMode

from .. import _C

__all__ = ["SameMasks", "draws_of"]

_DOMAIN = "ai.ortmodule"
# Attention makes the words of each row of probabilities from a block of its own (csrc/ops/attention/flash_tiles.h).
_BLOCK = 64


class Draw(NamedTuple):
    """A mask that a graph draws. A `plain` one is no dropout's, and is drawn as eager draws it."""

    plain: bool = False
    attention: bool = False
    ratio: float = 0.0


def draws_of(model: onnx.ModelProto) -> list[Draw]:
    """What a captured graph draws of the kind that eager's dropout draws, in order."""
    constants = {t.name: t for t in model.graph.initializer}
    found = []
    for node in model.graph.node:
        attention = node.op_type == "AttentionDropout" and node.domain == _DOMAIN
        if attention or (node.op_type == "Dropout" and not node.domain):
            ratio = numpy_helper.to_array(constants[node.input[4 if attention else 1]])
            found.append(Draw(attention=attention, ratio=float(ratio)))
        elif any(a.name == "operator" and b"bernoulli" in a.s for a in node.attribute):
            found.append(Draw(plain=True))
    return found


class SameMasks(TorchDispatchMode):
    """Within it, dropout that PyTorch runs has the masks of the engine's.

    Args:
        draws: the graph's (`draws_of`).
    """

    def __init__(self, draws: list[Draw]) -> None:
        super().__init__()
        self._left = list(draws)
        self._stream: torch.Tensor | None = None  # of the next dropout

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._left and func.overloadpacket in (torch.ops.aten.bernoulli_, torch.ops.aten.bernoulli):
            draw = self._left.pop(0)
            if not draw.plain:
                noise = args[0]
                kept = _kept_in_rows if draw.attention else _kept
                return noise.copy_(kept(noise.shape, draw.ratio, self._next_stream()))
        return func(*args, **(kwargs or {}))

    def _next_stream(self) -> torch.Tensor:
        if self._stream is None:
            self._stream = _session("RandomState", ()).run([])[0]
        else:
            self._stream = self._stream + torch.tensor([0, 1])
        return self._stream


def _kept(shape: torch.Size, ratio: float, stream: torch.Tensor) -> torch.Tensor:
    return _drawn(shape.numel(), ratio, stream).view(shape)


def _kept_in_rows(shape: torch.Size, ratio: float, stream: torch.Tensor) -> torch.Tensor:
    keys = shape[-1]
    blocks = -(-keys // _BLOCK)
    rows = _drawn(shape[:-1].numel() * blocks * _BLOCK, ratio, stream).view(-1, blocks * _BLOCK)
    return rows[:, :keys].reshape(shape)


def _drawn(count: int, ratio: float, stream: torch.Tensor) -> torch.Tensor:
    """Which of so many elements the engine's dropout keeps."""
    session = _session("PhiloxDropout", (("FLOAT", 1), ("DOUBLE", 0), ("INT64", 1)))
    return session.run([torch.ones(count), torch.tensor(ratio, dtype=torch.float64), stream])[0] != 0


@functools.cache
def _session(op: str, inputs: tuple[tuple[str, int], ...]) -> _C.Session:
    """One node; inputs by type and rank."""
    infos = [
        helper.make_tensor_value_info(f"x{i}", TensorProto.DataType.Value(kind), [f"n{i}"] * rank)
        for i, (kind, rank) in enumerate(inputs)
    ]
    node = helper.make_node(op, [info.name for info in infos], ["y"], domain=_DOMAIN)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT if inputs else TensorProto.INT64, ["n"])
    graph = helper.make_graph([node], op, infos, [y])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_DOMAIN, 1)]
    return _C.Session(helper.make_model(graph, opset_imports=opsets).SerializeToString())
