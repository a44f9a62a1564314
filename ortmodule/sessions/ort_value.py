"""Values of the engine as objects: made from and turned into arrays, tensors and DLPack capsules without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import torch

from .. import _C
from ..errors import InvalidArgumentError, UnsupportedError
from .element_types import array_from, element_of, is_plain, onnx_type, own_order, tensor_of_array, torch_type

__all__ = ["OrtValue", "device_of"]

# As DLPack and runtimes of ONNX call torch's devices.
_DEVICE_NAMES = {"gpu": "cuda"}
_DLPACK_CPU = 1


def device_of(device_type: str, device_id: int = 0) -> torch.device:
    """torch's device for a name ("cpu", "cuda", "gpu", "cuda:1") and a number.

    Raises:
        InvalidArgumentError: torch knows no such device.
    """
    try:
        device = torch.device(_DEVICE_NAMES.get(device_type, device_type))
        return device if device.index is not None or device.type == "cpu" else torch.device(device.type, device_id)
    except (RuntimeError, TypeError) as error:
        raise InvalidArgumentError(f"there is no device {device_type!r} with the number {device_id!r}") from error


def onnx_element(kind: Any) -> int:
    """The number in onnx.TensorProto of a type given as that number, as NumPy's or as torch's.

    Raises:
        InvalidArgumentError: no type of ONNX.
    """
    if isinstance(kind, int) and not isinstance(kind, bool) and kind in onnx.TensorProto.DataType.values():
        return kind
    if isinstance(kind, torch.dtype) and element_of(kind):
        return element_of(kind)
    try:
        return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind)))
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidArgumentError(f"{kind!r} is no element type of ONNX") from error


class OrtValue:
    """A tensor, a sequence of tensors, or an optional value that is absent.

    It never makes a copy that it need not make: what is made from an array or a tensor on its device shares their
    memory, and so do arrays, tensors and capsules that are made from it. Whoever holds any of them keeps the memory.
    """

    def __init__(self, value: torch.Tensor | list[Any] | None, element_type: int = 0) -> None:
        """Of the engine's form of a value; the other ways to make one are the `ortvalue_from_...` methods.

        Args:
            value: a tensor, a list of tensors, or None.
            element_type: the number in onnx.TensorProto, where torch's type does not tell it.
        """
        first = value[0] if isinstance(value, list) and value else value
        if not isinstance(first, torch.Tensor | list | None):
            raise InvalidArgumentError(f"an OrtValue holds a tensor, a list of tensors or None, got {value!r}")
        self.engine_value = value
        own = element_of(first.dtype) if isinstance(first, torch.Tensor) else 0
        self._element = element_type or own

    # -- made from ---------------------------------------------------------------------------------------------------

    @staticmethod
    def ortvalue_from_numpy(array: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """Of an array, whose memory it shares where it lies on the CPU, is contiguous and may be written.

        Raises:
            UnsupportedError: an array of strings or objects.
            InvalidArgumentError: torch knows no such device.
        """
        return OrtValue.ortvalue_from_numpy_with_onnx_type(array, 0, device_type, device_id)

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(
        array: Any, onnx_element_type: int, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """The same for elements of a type that NumPy lacks, given by their bits (bfloat16 in an array of uint16)."""
        array = np.asarray(array)
        if array.dtype.kind in "OSUV" and not onnx_element_type and not _ml_dtype(array):
            raise UnsupportedError(f"an OrtValue holds numbers, not elements of the type {array.dtype}")
        element = onnx_element_type or onnx_element(array.dtype.newbyteorder("="))
        shared = array.flags.c_contiguous and array.flags.writeable and array.dtype.isnative
        if shared and is_plain(element):
            tensor = torch.from_numpy(array)
        else:
            tensor = tensor_of_array(own_order(array), element)
        return OrtValue(tensor.to(device_of(device_type, device_id)), element)

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Of new memory that holds anything.

        Args:
            shape: the sizes.
            element_type: NumPy's type, torch's, or the number in onnx.TensorProto.
            device_type, device_id: where it lies.
        """
        element = onnx_element(element_type)
        device = device_of(device_type, device_id)
        return OrtValue(torch.empty(tuple(shape), dtype=torch_type(element), device=device), element)

    @staticmethod
    def ortvalue_from_torch(tensor: torch.Tensor) -> OrtValue:
        """Of a tensor, whose memory it shares."""
        return OrtValue(tensor.detach())

    @staticmethod
    def ortvalue_from_sequence(values: Sequence[Any]) -> OrtValue:
        """Of arrays, tensors or OrtValues, one element of the sequence each."""
        made = [value if isinstance(value, OrtValue) else _of_any(value) for value in values]
        return OrtValue([value.engine_value for value in made], made[0]._element if made else 0)

    @staticmethod
    def from_dlpack(data: Any, is_bool_tensor: bool = False) -> OrtValue:
        """Of an object with `__dlpack__`, or of a capsule, which is used up.

        Args:
            data: the object or the capsule; its memory is shared, or copied where it may not be written.
            is_bool_tensor: whether bytes are truth values, which older capsules cannot say.

        Raises:
            InvalidArgumentError: no capsule, one that was used before, or a tensor that requires a gradient.
        """
        try:
            capsule, read_only = _capsule_of(data)
            tensor = torch.from_dlpack(capsule)
        except (RuntimeError, TypeError, ValueError, AttributeError, BufferError) as error:
            raise InvalidArgumentError(f"this gives no tensor through DLPack: {error}") from error
        if read_only:
            tensor = tensor.clone()
        return OrtValue(tensor.view(torch.bool) if is_bool_tensor and tensor.dtype == torch.uint8 else tensor)

    # -- asked -------------------------------------------------------------------------------------------------------

    def has_value(self) -> bool:
        return self.engine_value is not None

    def is_tensor(self) -> bool:
        return isinstance(self.engine_value, torch.Tensor)

    def is_tensor_sequence(self) -> bool:
        return isinstance(self.engine_value, list)

    def is_sparse_tensor(self) -> bool:
        return False

    def element_type(self) -> int:
        """The number in onnx.TensorProto; 0 where nothing tells it."""
        return self._element

    def data_type(self) -> str:
        """ "tensor(float)", "seq(tensor(int64))"."""
        inner = onnx_type(self._element)
        return f"seq({inner})" if self.is_tensor_sequence() else inner

    def shape(self) -> list[int]:
        return list(self._tensor().shape)

    def device_name(self) -> str:
        """ "cpu", "cuda"."""
        return self._tensor().device.type

    def data_ptr(self) -> int:
        """Where the first element lies."""
        return self._tensor().data_ptr()

    def tensor_size_in_bytes(self) -> int:
        return self._tensor().nbytes

    # -- turned into -------------------------------------------------------------------------------------------------

    def numpy(self) -> Any:
        """An array that shares the memory (from another device and of types that NumPy lacks: a copy); of a sequence a
        list of arrays, of an absent optional None."""
        return array_from(self.engine_value, self._element)

    def to_torch(self) -> torch.Tensor:
        """The tensor itself, which shares the memory."""
        return self._tensor()

    def update_inplace(self, array: Any) -> None:
        """Writes the elements of an array of the same shape and type into the memory.

        Raises:
            InvalidArgumentError: another shape or type.
        """
        given, own = OrtValue.ortvalue_from_numpy(array), self._tensor()
        if given.shape() != self.shape() or given._element != self._element:
            raise InvalidArgumentError(
                f"an array of {given.data_type()} and shape {given.shape()} does not fit a value of "
                f"{self.data_type()} and shape {self.shape()}"
            )
        own.copy_(given._tensor())

    def to_dlpack(self) -> Any:
        """A capsule that shares the memory; whoever takes it lets go of it once."""
        return torch.utils.dlpack.to_dlpack(self._tensor())

    def __dlpack__(self, **requested: Any) -> Any:
        return self._tensor().__dlpack__(**requested)

    def __dlpack_device__(self) -> Any:
        return self._tensor().__dlpack_device__()

    def __repr__(self) -> str:
        if not self.has_value():
            return "OrtValue(None)"
        size = f"{len(self.engine_value)} tensors" if self.is_tensor_sequence() else f"shape {self.shape()}"  # type: ignore[arg-type]
        return f"OrtValue({self.data_type()}, {size})"

    def _tensor(self) -> torch.Tensor:
        if not isinstance(self.engine_value, torch.Tensor):
            raise InvalidArgumentError(f"{self!r} is no tensor")
        return self.engine_value


def _capsule_of(data: Any) -> tuple[Any, bool]:
    """What torch takes, and whether it may not be written. For what lies on a GPU torch asks itself, with a stream."""
    if hasattr(data, "__dlpack__"):
        if data.__dlpack_device__()[0] != _DLPACK_CPU:
            return data, False
        try:
            data = data.__dlpack__(max_version=(1, 0))
        except TypeError:  # a producer of before versions
            data = data.__dlpack__()
    return data, _C.capsule_is_read_only(data)


def _of_any(value: Any) -> OrtValue:
    return (
        OrtValue.ortvalue_from_torch(value) if isinstance(value, torch.Tensor) else OrtValue.ortvalue_from_numpy(value)
    )


def _ml_dtype(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype.type.__module__ == "ml_dtypes"


def tensor_at(address: int, shape: Sequence[int], element: int, device: torch.device) -> torch.Tensor:
    """A tensor of memory that somebody else keeps."""
    return _C.tensor_at(address, list(shape), torch_type(element), str(device))
