"""What a row of the operator table is. Rows live in samples/<family>.py, samples/__init__.py merges them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import torch

Tensors = tuple[torch.Tensor | None, ...]


@dataclass(frozen=True)
class Case:
    """One call of an operator.

    inputs: tensors in the operator's order, None for an absent optional one.
    attributes: ONNX attributes; a torch.dtype becomes a TensorProto data type, a torch.Tensor a tensor attribute.
    constants: inputs that the model holds as initializers instead of taking them at run time.
    outputs: how many outputs the node has.
    smooth: False at a kink, where differences of values are not what any side's derivative says.
    stock: False where the onnxruntime package refuses or crashes on what its documentation of com.microsoft allows.
    """

    inputs: Tensors
    attributes: dict[str, Any] = field(default_factory=dict)
    constants: tuple[int, ...] = ()
    outputs: int = 1
    smooth: bool = True
    stock: bool = True


@dataclass(frozen=True)
class Row:
    """How one operator is tested.

    reference: called with the inputs and the attributes as keywords; returns a tensor or a tuple, one per output.
    cases: called with a floating dtype; returns fresh samples, the same ones for the same seed.
    grads: inputs that are differentiated; None means every floating input that is no constant.
    bfloat16: False where bfloat16 cannot be compared: the result jumps with the last bit of an operand.
    wide: in bfloat16 the reference computes in float32 on the same numbers and rounds at the end: PyTorch has no such
        kernel, or its own rounds in between.
    float_outputs: outputs that are float32 also where the data are bfloat16; goes with `wide`.
    smooth: False where the gradient is not the derivative by definition (rounding passes it on, ...).
    nodes: makes the model's nodes from the names of inputs and outputs and the attributes, where one node of the
        operator is not enough: its values are no tensors, or its subgraphs read values around it.
    symbolic: False where the operator's shape rule needs numbers, so that it is tested with static sizes only.
    opset: the version of ai.onnx that the model imports.
    refuses: the operator refuses some forms that the reference takes: their sizes do not belong together.
    no_forms: beginnings of names of forms (forms.py) that the operator refuses although the reference takes them.
    cpu_alone: its samples are the CPU's, and are not run on other devices.
    """

    name: str
    reference: Callable[..., Any]
    cases: Callable[[torch.dtype], Sequence[Case]]
    domain: str = ""
    differentiable: bool = True
    grads: tuple[int, ...] | None = None
    bfloat16: bool = True
    wide: bool = False
    float_outputs: tuple[int, ...] = ()
    smooth: bool = True
    symbolic: bool = True
    tolerance: float | None = None
    opset: int = 23
    refuses: bool = False
    no_forms: tuple[str, ...] = ()
    cpu_alone: bool = False
    nodes: Callable[[list[str], list[str], dict[str, Any]], list[onnx.NodeProto]] | None = None

    @property
    def qualified_name(self) -> str:
        return f"{self.domain}::{self.name}" if self.domain else self.name


def rand(*shape: int, dtype: torch.dtype = torch.float32, low: float = -2.0, high: float = 2.0) -> torch.Tensor:
    """Uniform values; integers lie in [low, high)."""
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(int(low), int(high), shape, dtype=dtype)
    return (torch.rand(shape, dtype=torch.float64) * (high - low) + low).to(dtype)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def scalar(value: int) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.int64)
