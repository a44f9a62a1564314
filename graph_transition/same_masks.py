"""The masks that the engine's counter-based dropout drew, for a forward that PyTorch runs again.

The engine draws two words of torch's generator for a dropout and makes the mask of them; eager draws a number for each
element. A run that shall drop the same elements starts from the same state of the generator, and makes each dropout's
mask as the engine does: the n-th mask that it draws is the graph's n-th. Everything else draws as it always does.

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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._left and func.overloadpacket in (torch.ops.aten.bernoulli_, torch.ops.aten.bernoulli):
            draw = self._left.pop(0)
            if not draw.plain:
                noise = args[0]
                return noise.copy_((_kept_in_rows if draw.attention else _kept)(noise.shape, draw.ratio))
        return func(*args, **(kwargs or {}))


def _kept(shape: torch.Size, ratio: float) -> torch.Tensor:
    return _drawn(shape.numel(), ratio).view(shape)


def _kept_in_rows(shape: torch.Size, ratio: float) -> torch.Tensor:
    keys = shape[-1]
    blocks = -(-keys // _BLOCK)
    rows = _drawn(shape[:-1].numel() * blocks * _BLOCK, ratio).view(-1, blocks * _BLOCK)
    return rows[:, :keys].reshape(shape)


def _drawn(count: int, ratio: float) -> torch.Tensor:
    """Which of so many elements the engine's next dropout would keep."""
    inputs = [torch.ones(count), torch.tensor(ratio, dtype=torch.float64)]
    return _dropout().run(inputs)[0] != 0


@functools.lru_cache(1)
def _dropout() -> _C.Session:
    node = helper.make_node("PhiloxDropout", ["x", "ratio"], ["y", "state"], domain=_DOMAIN)
    graph = helper.make_graph(
        [node],
        "dropout",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"]),
            helper.make_tensor_value_info("ratio", TensorProto.DOUBLE, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_DOMAIN, 1)]
    return _C.Session(helper.make_model(graph, opset_imports=opsets).SerializeToString())
