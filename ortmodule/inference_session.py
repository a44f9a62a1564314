"""Runs any ONNX model on the engine: `InferenceSession(model).run(None, {"x": array})`.

The surface is the one that users of ONNX runtimes know. Arrays come and go as NumPy's (types that NumPy lacks as
ml_dtypes'); torch tensors are taken as they are. Not here: training (ORTModule), and how values are stored (csrc).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch

from . import _C
from .errors import InvalidArgumentError, UnsupportedError
from .extending import SessionOptions
from .options import Provider, checked_providers
from .passes import session_passes

__all__ = ["InferenceSession", "NodeArg"]

_ELEMENT = onnx.TensorProto
# Types whose elements the engine keeps in a byte each, as codes: torch has no arithmetic for them.
_AS_BYTES: dict[int, torch.dtype] = {
    _ELEMENT.UINT4: torch.uint8,
    _ELEMENT.INT4: torch.int8,
    _ELEMENT.UINT2: torch.uint8,
    _ELEMENT.INT2: torch.int8,
    _ELEMENT.FLOAT4E2M1: torch.uint8,
    _ELEMENT.FLOAT6E2M3: torch.uint8,
    _ELEMENT.FLOAT6E3M2: torch.uint8,
}
_CODES = (_ELEMENT.FLOAT4E2M1, _ELEMENT.FLOAT6E2M3, _ELEMENT.FLOAT6E3M2)
# Types that torch has and NumPy has not: passed by their bits.
_BY_BITS: dict[int, torch.dtype] = {
    _ELEMENT.BFLOAT16: torch.bfloat16,
    _ELEMENT.FLOAT8E4M3FN: torch.float8_e4m3fn,
    _ELEMENT.FLOAT8E4M3FNUZ: torch.float8_e4m3fnuz,
    _ELEMENT.FLOAT8E5M2: torch.float8_e5m2,
    _ELEMENT.FLOAT8E5M2FNUZ: torch.float8_e5m2fnuz,
    _ELEMENT.FLOAT8E8M0: torch.float8_e8m0fnu,
}


@dataclasses.dataclass(frozen=True)
class NodeArg:
    """An input or output of a model: its name, its ONNX element type, and its dims (int, symbol or None)."""

    name: str
    type: str
    shape: tuple[int | str | None, ...] | None


class InferenceSession:
    """An ONNX model, compiled for inference on the CPU or a GPU.

    Args:
        model: a path, the bytes of a ModelProto, or the ModelProto.
        sess_options: libraries of custom operators, passes over the graph.
        device: where inputs and outputs lie, "cpu" or "cuda".
        providers: as `Options.providers`; empty: that device.

    Raises:
        InvalidGraphError: no valid ONNX model, or one that contradicts itself; the message names the node.
        UnsupportedError: an operator, version or type that the engine does not have.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | onnx.ModelProto,
        sess_options: SessionOptions | None = None,
        *,
        device: str = "cpu",
        providers: Sequence[Provider] = (),
    ) -> None:
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            raise InvalidArgumentError(f"sess_options should be SessionOptions, got {type(sess_options).__name__}")
        if isinstance(model, str | os.PathLike):
            proto = onnx.load(os.fspath(model))
        elif isinstance(model, onnx.ModelProto):
            proto = model
        else:
            proto = None
        data = bytes(model) if proto is None else proto.SerializeToString()  # type: ignore[arg-type]
        settings = sess_options or SessionOptions()
        placed = list(checked_providers("providers", providers))
        passes = session_passes(settings.passes, settings.disabled_passes)
        self._session = _C.Session(data, "inference", [], {"device": device, "providers": placed, **passes})
        proto = onnx.load_model_from_string(data) if proto is None else proto
        self._device = device
        initialized = {i.name for i in proto.graph.initializer}
        self._inputs = [v for v in proto.graph.input if v.name not in initialized]
        self._outputs = list(proto.graph.output)

    def get_inputs(self) -> list[NodeArg]:
        return [_node_arg(v) for v in self._inputs]

    def get_outputs(self) -> list[NodeArg]:
        return [_node_arg(v) for v in self._outputs]

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """The named outputs (all: None) for one array, list of arrays or None per input.

        Raises:
            InvalidArgumentError: an input is missing or unknown, or its type or shape does not fit.
            UnsupportedError: an input holds strings.
        """
        names = [v.name for v in self._inputs]
        unknown = [name for name in feeds if name not in names]
        missing = [name for name in names if name not in feeds]
        if unknown or missing:
            raise InvalidArgumentError(f"the inputs are {names}; missing: {missing}, unknown: {unknown}")
        known = [v.name for v in self._outputs]
        for name in output_names or ():
            if name not in known:
                raise InvalidArgumentError(f"the model has no output {name!r}; it has {known}")
        values = [_to_engine(feeds[v.name], v.type, v.name, self._device) for v in self._inputs]
        with torch.no_grad():
            results = self._session.run(values)
        arrays = {v.name: _from_engine(r, v.type) for v, r in zip(self._outputs, results, strict=True)}
        return [arrays[name] for name in (output_names or known)]


def _node_arg(value: onnx.ValueInfoProto) -> NodeArg:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return NodeArg(value.name, str(kind), None)
    tensor = value.type.tensor_type
    shape: tuple[int | str | None, ...] | None = None
    if tensor.HasField("shape"):
        shape = tuple(
            d.dim_value if d.WhichOneof("value") == "dim_value" else (d.dim_param or None) for d in tensor.shape.dim
        )
    return NodeArg(value.name, _ELEMENT.DataType.Name(tensor.elem_type).lower(), shape)


def _to_engine(value: Any, kind: onnx.TypeProto, name: str, device: str) -> torch.Tensor | list[Any] | None:
    if kind.WhichOneof("value") == "optional_type":
        return None if value is None else _to_engine(value, kind.optional_type.elem_type, name, device)
    if kind.WhichOneof("value") == "sequence_type":
        if not isinstance(value, list | tuple):
            raise InvalidArgumentError(f"the input {name!r} should be a list, got {type(value).__name__}")
        return [_to_engine(v, kind.sequence_type.elem_type, name, device) for v in value]
    if value is None:
        raise InvalidArgumentError(f"the input {name!r} is a tensor, got None")
    if isinstance(value, torch.Tensor):
        return value.to(device)
    element = kind.tensor_type.elem_type
    array = np.asarray(value)
    if element == _ELEMENT.STRING or array.dtype.kind in "OSU":
        raise UnsupportedError(f"the input {name!r} holds strings, which the engine does not have")
    array = np.ascontiguousarray(array).reshape(array.shape)
    if element in _AS_BYTES or element in _BY_BITS:
        expected = onnx.helper.tensor_dtype_to_np_dtype(element)
        # An element's bits in an unsigned integer of its size are taken too, and numbers below a byte in int8.
        accepted = [expected, np.dtype(f"u{expected.itemsize}")] + [np.dtype(np.int8)] * (element in _AS_BYTES)
        if array.dtype not in accepted:
            raise InvalidArgumentError(f"the input {name!r} should be of type {expected}, got {array.dtype}")
    if element in _AS_BYTES:
        bits = array.view(np.uint8) if element in _CODES else array
        return torch.from_numpy(bits.astype(str(_AS_BYTES[element]).removeprefix("torch."))).to(device)
    if element in _BY_BITS:
        bits = array.view(np.dtype(f"uint{8 * array.dtype.itemsize}"))
        return torch.from_numpy(bits.copy()).view(_BY_BITS[element]).to(device)
    return torch.from_numpy(array.copy()).to(device)


def _from_engine(value: torch.Tensor | list[Any] | None, kind: onnx.TypeProto) -> Any:
    if value is None:
        return None
    if kind.WhichOneof("value") == "optional_type":
        return _from_engine(value, kind.optional_type.elem_type)
    if isinstance(value, list):
        return [_from_engine(v, kind.sequence_type.elem_type) for v in value]
    element = kind.tensor_type.elem_type
    value = value.detach().cpu().contiguous()
    if element == _ELEMENT.UNDEFINED:  # the model leaves the output's type to inference
        element = next((e for e, dtype in _BY_BITS.items() if dtype == value.dtype), element)
        if element == _ELEMENT.UNDEFINED:
            return value.numpy()
    numpy_type = onnx.helper.tensor_dtype_to_np_dtype(element)
    if element in _BY_BITS:
        return value.view(torch.uint16 if value.itemsize == 2 else torch.uint8).numpy().view(numpy_type)
    if element in _CODES:
        return value.numpy().view(numpy_type)
    if element in _AS_BYTES:
        return value.numpy().astype(numpy_type)
    return value.numpy()
