"""Builds an ONNX GraphProto: typed values, nodes, small constants, sizes.

Protobuf messages are filled directly: the helpers of the onnx package infer types over and over, and a graph of a
thousand nodes must convert in tens of milliseconds. This file knows ONNX and dtypes, not torch operators.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import onnx
import torch

from ...errors import CaptureError
from ..sizes import Dim, symbols_of_text, unbacked_symbols

__all__ = ["ATEN", "ORTMODULE", "ONNX_TYPES", "GraphBuilder", "Value", "onnx_type", "run_device"]

ORTMODULE = "ai.ortmodule"
ATEN = "org.pytorch.aten"
OPSETS = {"": 23, "com.microsoft": 1, ORTMODULE: 1, ATEN: 1}
_T = onnx.TensorProto
ONNX_TYPES: dict[torch.dtype, int] = {
    torch.float32: _T.FLOAT, torch.float64: _T.DOUBLE, torch.float16: _T.FLOAT16, torch.bfloat16: _T.BFLOAT16,
    torch.int64: _T.INT64, torch.int32: _T.INT32, torch.int16: _T.INT16, torch.int8: _T.INT8,
    torch.uint8: _T.UINT8, torch.uint16: _T.UINT16, torch.uint32: _T.UINT32, torch.uint64: _T.UINT64,
    torch.bool: _T.BOOL, torch.complex64: _T.COMPLEX64, torch.complex128: _T.COMPLEX128,
    torch.float8_e4m3fn: _T.FLOAT8E4M3FN, torch.float8_e4m3fnuz: _T.FLOAT8E4M3FNUZ,
    torch.float8_e5m2: _T.FLOAT8E5M2, torch.float8_e5m2fnuz: _T.FLOAT8E5M2FNUZ,
}  # fmt: skip


def onnx_type(dtype: torch.dtype) -> int:
    """The ONNX data type of a torch dtype.

    Raises:
        CaptureError: ONNX has no such type.
    """
    if dtype not in ONNX_TYPES:
        raise CaptureError(f"dtype {dtype} has no ONNX form")
    return ONNX_TYPES[dtype]


def run_device(devices: Iterable[torch.device]) -> torch.device:
    """Where a graph with inputs on these devices computes: on the first that is no CPU, if any."""
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))


@dataclasses.dataclass(eq=False, slots=True)
class Value:
    """A tensor value of the graph: its unique name, dtype and dims (ints or size texts)."""

    name: str
    dtype: torch.dtype
    shape: tuple[Dim, ...]

    @property
    def rank(self) -> int:
        """Number of dims."""
        return len(self.shape)


class GraphBuilder:
    """Collects the parts of one graph; every value that is made gets its type and shape recorded."""

    def __init__(self, name: str) -> None:
        self.model = onnx.ModelProto(ir_version=11, producer_name="ortmodule")
        for domain, version in OPSETS.items():
            self.model.opset_import.add(domain=domain, version=version)
        self.graph = self.model.graph
        self.graph.name = name
        self.unbacked: dict[str, Value] = {}
        self._constants: dict[tuple[Any, ...], Value] = {}
        self._sizes: dict[tuple[Any, ...], Value] = {}
        self._names: set[str] = set()
        self._reserved: set[str] = set()
        self._computed: set[str] = set()
        self._told: set[str] = set()  # the sizes that inputs have
        self.node_name = ""
        self.metadata: dict[str, str] = {}

    def unique(self, name: str) -> str:
        """`name`, or `name_1`, `name_2` ... when it is taken."""
        candidate, i = name, 0
        while candidate in self._names:
            i += 1
            candidate = f"{name}_{i}"
        self._names.add(candidate)
        return candidate

    def value(self, name: str, dtype: torch.dtype, shape: Sequence[Dim]) -> Value:
        """A new value with a unique name, declared in the graph's value_info."""
        value = Value(self.unique(name), dtype, tuple(shape))
        _declare(self.graph.value_info.add(), value)
        return value

    def reserve(self, names: Iterable[str]) -> None:
        """Keeps `names` for inputs that will be declared by `input` with exactly that name."""
        self._reserved = set(names)
        self._names |= self._reserved

    def input(self, name: str, dtype: torch.dtype, shape: Sequence[Dim]) -> Value:
        """A new graph input."""
        exact = name in self._reserved
        self._reserved.discard(name)
        self._told.update(d for d in shape if isinstance(d, str))
        value = Value(name if exact else self.unique(name), dtype, tuple(shape))
        _declare(self.graph.input.add(), value)
        return value

    def is_computed(self, value: Value) -> bool:
        """Whether a node makes `value`; inputs and constants are not computed."""
        return value.name in self._computed

    def output(self, value: Value, memory: int) -> None:
        """Declares `value`, which a node must have made, as the next graph output. `memory`: a number that it shares
        with those that are one memory in eager (csrc/compile/result_owners.h).
        """
        _declare(self.graph.output.add(), value)
        if len(self.graph.output) == 1:
            self.model.metadata_props.add(key="result_memory")
        entry = self.model.metadata_props[-1]
        entry.value += f"{memory} {value.name}\n"

    def node(
        self,
        op: str,
        inputs: Iterable[Value | None],
        outputs: Sequence[Value | None],
        domain: str = "",
        **attributes: Any,
    ) -> None:
        """Appends a node. Absent inputs and outputs are None; attributes that are None are left out."""
        names = [v.name if v is not None else "" for v in inputs]
        while names and not names[-1]:
            names.pop()
        results = [v.name if v is not None else "" for v in outputs]
        while results and not results[-1]:
            results.pop()
        self._computed.update(results)
        proto = self.graph.node.add(op_type=op, domain=domain, input=names, output=results)
        proto.name = f"{self.node_name}/{results[0] if results else op}" if self.node_name else results[0]
        for name, attribute in attributes.items():
            if attribute is not None:
                _set_attribute(proto.attribute.add(), name, attribute)
        for key, text in self.metadata.items():
            proto.metadata_props.add(key=key, value=text)

    def const(self, data: Any, dtype: torch.dtype) -> Value:
        """A small constant as initializer; equal constants are one."""
        key = (dtype, repr(data))
        found = self._constants.get(key)
        if found is None:
            tensor = torch.tensor(data, dtype=dtype)
            found = Value(self.unique(f"constant_{len(self._constants)}"), dtype, tuple(tensor.shape))
            self.graph.initializer.append(tensor_proto(tensor, found.name))
            self._constants[key] = found
        return found

    def bind(self, symbol: str, value: Value) -> None:
        """Says that the data-dependent size `symbol` is `value` (int64, 0-d)."""
        self.unbacked[symbol] = value

    def bindings(self, sizes: Iterable[Dim]) -> tuple[list[str], list[Value]]:
        """The data-dependent symbols in `sizes` and the values that hold them.

        Raises:
            CaptureError: a size is computed from what no size of an input tells, as a stride that varies.
        """
        sizes = list(sizes)
        symbols = sorted({s for size in sizes for s in unbacked_symbols(size)})
        for size in sizes:
            if untold := symbols_of_text(size) - self._told - set(symbols):
                raise CaptureError(f"the forward reads {size}, and no input has a size {min(untold)}: a stride varies")
        return symbols, [self.unbacked[s] for s in symbols]

    def sizes(self, dims: Sequence[Dim]) -> Value:
        """`dims` as a 1-D int64 value."""
        if all(type(d) is int for d in dims):
            return self.const(list(dims), torch.int64)
        return self._size_node(tuple(dims), scalar=False)

    def size(self, dim: Dim) -> Value:
        """`dim` as a 0-d int64 value."""
        return self.const(dim, torch.int64) if type(dim) is int else self._size_node((dim,), scalar=True)

    def _size_node(self, dims: tuple[Dim, ...], scalar: bool) -> Value:
        found = self._sizes.get((dims, scalar))
        if found is None:
            found = self.value(f"sizes_{len(self._sizes)}", torch.int64, () if scalar else (len(dims),))
            symbols, inputs = self.bindings(dims)
            texts = [str(d) for d in dims]
            self.node("Sizes", inputs, [found], ORTMODULE, exprs=texts, scalar=int(scalar), symbols=symbols or None)
            self._sizes[(dims, scalar)] = found
        return found


def tensor_proto(tensor: torch.Tensor, name: str = "") -> onnx.TensorProto:
    """A dense CPU tensor as a TensorProto with raw little-endian data."""
    flat = tensor.detach().contiguous().reshape(-1)
    proto = onnx.TensorProto(data_type=onnx_type(tensor.dtype), dims=list(tensor.shape), name=name)
    proto.raw_data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return proto


def _declare(info: onnx.ValueInfoProto, value: Value) -> None:
    info.name = value.name
    tensor = info.type.tensor_type
    tensor.elem_type = onnx_type(value.dtype)
    dims = tensor.shape.dim
    tensor.shape.SetInParent()
    for d in value.shape:
        if type(d) is int:
            dims.add(dim_value=d)
        else:
            dims.add(dim_param=str(d))


def _set_attribute(proto: onnx.AttributeProto, name: str, value: Any) -> None:
    proto.name = name
    if isinstance(value, (bool, int)):
        proto.type, proto.i = onnx.AttributeProto.INT, int(value)
    elif isinstance(value, float):
        proto.type, proto.f = onnx.AttributeProto.FLOAT, value
        if value != float(f"{value:.6g}"):
            proto.doc_string = repr(value)  # the digits that a float32 has no room for
    elif isinstance(value, str):
        proto.type, proto.s = onnx.AttributeProto.STRING, value.encode()
    elif isinstance(value, onnx.TensorProto):
        proto.type = onnx.AttributeProto.TENSOR
        proto.t.CopyFrom(value)
    elif value and isinstance(value[0], str):
        proto.type = onnx.AttributeProto.STRINGS
        proto.strings.extend(v.encode() for v in value)
    elif value and any(isinstance(v, float) for v in value):
        proto.type = onnx.AttributeProto.FLOATS
        proto.floats.extend(value)
    else:
        proto.type = onnx.AttributeProto.INTS
        proto.ints.extend(int(v) for v in value)
