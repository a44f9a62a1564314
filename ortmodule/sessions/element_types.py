"""Values of a session between NumPy and the engine, element type by element type.

The engine keeps elements of less than a byte in a byte each, and so-called minifloats as codes; torch has types that
NumPy lacks, which ml_dtypes adds. Not here: plain arrays and tensors, which pass as they are (csrc/bindings/inference).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import torch

from ..errors import InvalidArgumentError, UnsupportedError

__all__ = ["NodeArg", "array_from", "element_of", "onnx_type", "value_from"]

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
_MOST_AXES = 64  # of an array
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
_PLAIN: dict[int, torch.dtype] = {
    _ELEMENT.FLOAT: torch.float32,
    _ELEMENT.DOUBLE: torch.float64,
    _ELEMENT.FLOAT16: torch.float16,
    _ELEMENT.INT64: torch.int64,
    _ELEMENT.INT32: torch.int32,
    _ELEMENT.INT16: torch.int16,
    _ELEMENT.INT8: torch.int8,
    _ELEMENT.UINT8: torch.uint8,
    _ELEMENT.BOOL: torch.bool,
    _ELEMENT.UINT16: torch.uint16,
    _ELEMENT.UINT32: torch.uint32,
    _ELEMENT.UINT64: torch.uint64,
    _ELEMENT.COMPLEX64: torch.complex64,
    _ELEMENT.COMPLEX128: torch.complex128,
}


@dataclasses.dataclass(frozen=True)
class NodeArg:
    """An input or output of a model.

    Attributes:
        name: its name.
        type: as the standard writes types: "tensor(float)", "seq(tensor(int64))", "optional(tensor(float))".
        shape: numbers, names of sizes that are free, None for a size without a name; None where the model says nothing
            of the shape, as of a sequence's.
        element_type: the number of its tensors' element type in onnx.TensorProto.
    """

    name: str
    type: str
    shape: list[int | str | None] | None
    element_type: int = dataclasses.field(repr=False, default=0)
    is_sequence: bool = dataclasses.field(repr=False, default=False)
    is_optional: bool = dataclasses.field(repr=False, default=False)


def element_of(dtype: torch.dtype) -> int:
    """The number of torch's type in onnx.TensorProto; 0 where ONNX has none."""
    return next((number for types in (_PLAIN, _BY_BITS) for number, own in types.items() if own == dtype), 0)


def torch_type(element: int) -> torch.dtype:
    """What holds elements of an ONNX type in the engine.

    Raises:
        UnsupportedError: the engine has none of that type.
    """
    for types in (_PLAIN, _BY_BITS, _AS_BYTES):
        if element in types:
            return types[element]
    raise UnsupportedError(f"the engine has no element type {_ELEMENT.DataType.Name(element)}")


def onnx_type(element: int) -> str:
    """ "tensor(float)"."""
    return f"tensor({_ELEMENT.DataType.Name(element).lower()})"


def value_from(value: Any, declared: NodeArg, device: torch.device) -> torch.Tensor | list[Any] | None:
    """What the engine takes for an input: a tensor, a list of tensors, None.

    Raises:
        InvalidArgumentError: no such value, or one of another type.
        UnsupportedError: it holds strings.
    """
    if declared.is_optional and value is None:
        return None
    if declared.is_sequence:
        if not isinstance(value, list | tuple):
            raise InvalidArgumentError(f"the input {declared.name!r} should be a list, got {type(value).__name__}")
        return [_tensor_from(one, declared, device) for one in value]
    return _tensor_from(value, declared, device)


def _tensor_from(value: Any, declared: NodeArg, device: torch.device) -> torch.Tensor:
    name, element = declared.name, declared.element_type
    if value is None:
        raise InvalidArgumentError(f"the input {name!r} is a tensor, got None")
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if hasattr(value, "engine_value"):
        return _tensor_from(value.engine_value, declared, device)
    array = np.asarray(value)
    if element == _ELEMENT.STRING or array.dtype.kind in "OSU":
        raise UnsupportedError(f"the input {name!r} holds strings, which the engine does not have")
    array = own_order(array)
    if element in _AS_BYTES or element in _BY_BITS:
        expected = onnx.helper.tensor_dtype_to_np_dtype(element)
        # An element's bits in an unsigned integer of its size are taken too, and numbers below a byte in int8.
        accepted = [expected, np.dtype(f"u{expected.itemsize}")] + [np.dtype(np.int8)] * (element in _AS_BYTES)
        if array.dtype not in accepted:
            raise InvalidArgumentError(f"the input {name!r} should be of type {expected}, got {array.dtype}")
    return tensor_of_array(array, element).to(device)


def own_order(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array, or a copy that is contiguous and has this machine's order of bytes."""
    native = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    return np.ascontiguousarray(native).reshape(native.shape)


def is_plain(element: int) -> bool:
    """Whether torch and NumPy both have the type."""
    return element in _PLAIN


def tensor_of_array(array: np.ndarray[Any, Any], element: int) -> torch.Tensor:
    """A tensor with a copy of a contiguous array's elements, as the engine keeps those of the ONNX type."""
    if element in _AS_BYTES:
        bits = array.view(np.uint8) if element in _CODES else array
        return torch.from_numpy(bits.astype(str(_AS_BYTES[element]).removeprefix("torch.")))
    if element in _BY_BITS:
        bits = array.view(np.dtype(f"uint{8 * array.dtype.itemsize}"))
        return torch.from_numpy(bits.copy()).view(_BY_BITS[element])
    return torch.from_numpy(array.copy())


def array_from(value: torch.Tensor | list[Any] | None, element: int) -> Any:
    """NumPy's form of a value of the engine: an array, a list of arrays, None; `element`: its ONNX type, or 0."""
    if value is None:
        return None
    if isinstance(value, list):
        return [array_from(one, element) for one in value]
    if value.dim() > _MOST_AXES:
        raise UnsupportedError(f"a result has {value.dim()} axes, more than an array can have: take it as an OrtValue")
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
