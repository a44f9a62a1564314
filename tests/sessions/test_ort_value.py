"""OrtValue: which memory is shared with whom, and for how long, between NumPy, torch and DLPack."""

from __future__ import annotations

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
import torch
from onnx import TensorProto

import ortmodule
from ortmodule import InferenceSession, OrtValue

from .models import add_one


def test_an_array_is_shared_and_kept() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    value = OrtValue.ortvalue_from_numpy(array)
    assert (value.data_type(), value.shape(), value.device_name()) == ("tensor(float)", [2, 3], "cpu")
    assert value.data_ptr() == array.ctypes.data and value.tensor_size_in_bytes() == 24
    array[0, 0] = 9
    assert value.numpy()[0, 0] == 9 and value.to_torch()[0, 0] == 9
    out = value.numpy()
    del array, value
    gc.collect()
    assert out.tolist() == [[9, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("how", ["read-only", "strides", "big-endian"])
def test_an_array_that_cannot_be_shared_is_copied(how: str) -> None:
    array = np.arange(6, dtype=np.float32)
    if how == "read-only":
        array.setflags(write=False)
    given = {"strides": array[::2], "big-endian": array.astype(">f4")}.get(how, array)
    value = OrtValue.ortvalue_from_numpy(given)
    assert value.data_ptr() != given.ctypes.data
    np.testing.assert_array_equal(value.numpy(), np.asarray(given, np.float32))


@pytest.mark.parametrize(
    "dtype",
    [np.float64, np.float16, np.int64, np.int32, np.int16, np.int8, np.uint8, np.uint16, np.uint32, np.uint64, np.bool_,
     np.complex64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4],
    ids=lambda d: np.dtype(d).name,
)  # fmt: skip
def test_every_type_comes_back(dtype) -> None:
    array = np.array([0, 1, 1, 0]).astype(dtype)
    value = OrtValue.ortvalue_from_numpy(array)
    assert value.numpy().dtype == np.dtype(dtype)
    np.testing.assert_array_equal(value.numpy(), array)
    made = OrtValue.ortvalue_from_shape_and_type([4], dtype)
    assert made.element_type() == value.element_type()
    made.update_inplace(array)
    np.testing.assert_array_equal(made.numpy(), array)


def test_bits_of_a_type_that_numpy_lacks() -> None:
    bits = np.array([0x3F80, 0x4000], np.uint16)
    value = OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.BFLOAT16)
    assert value.data_type() == "tensor(bfloat16)" and value.to_torch().tolist() == [1.0, 2.0]


def test_strings_are_refused() -> None:
    with pytest.raises(ortmodule.UnsupportedError):
        OrtValue.ortvalue_from_numpy(np.array(["a"]))


def test_update_in_place_writes_the_shared_memory() -> None:
    array = np.zeros(3, np.float32)
    value = OrtValue.ortvalue_from_numpy(array)
    value.update_inplace(np.array([1, 2, 3], np.float32))
    assert array.tolist() == [1, 2, 3]
    for wrong in (np.zeros(2, np.float32), np.zeros(3)):
        with pytest.raises(ortmodule.InvalidArgumentError, match="does not fit"):
            value.update_inplace(wrong)


def test_sequences_and_nothing() -> None:
    value = OrtValue.ortvalue_from_sequence([np.zeros(2, np.float32), torch.ones(3)])
    assert value.is_tensor_sequence() and not value.is_tensor() and value.data_type() == "seq(tensor(float))"
    assert [v.tolist() for v in value.numpy()] == [[0, 0], [1, 1, 1]]
    with pytest.raises(ortmodule.InvalidArgumentError, match="is no tensor"):
        value.shape()
    assert not OrtValue(None).has_value() and OrtValue(None).numpy() is None


# -- DLPack ------------------------------------------------------------------------------------------------------------


class Foreign:
    """A producer that is neither NumPy's nor torch's."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **requested):
        return self.array.__dlpack__(**requested)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("source", ["numpy", "torch", "ours"])
def test_a_capsule_shares_memory_until_its_last_holder_is_gone(source: str) -> None:
    array = np.arange(4, dtype=np.float32)
    given = {"numpy": Foreign(array), "torch": torch.from_numpy(array), "ours": OrtValue.ortvalue_from_numpy(array)}
    value = OrtValue.from_dlpack(given[source])
    held = weakref.ref(array)
    assert value.data_ptr() == array.ctypes.data
    array[0] = 5
    del given, array
    gc.collect()
    assert held() is not None and value.numpy().tolist() == [5, 1, 2, 3]
    del value
    gc.collect()
    assert held() is None


def test_arrays_and_tensors_from_ours() -> None:
    value = OrtValue.ortvalue_from_numpy(np.arange(4, dtype=np.float32))
    for taken in (np.from_dlpack(value), torch.from_dlpack(value), torch.from_dlpack(value.to_dlpack())):
        address = taken.ctypes.data if isinstance(taken, np.ndarray) else taken.data_ptr()
        assert address == value.data_ptr()
    assert value.__dlpack_device__()[0] == 1


def test_strides_survive() -> None:
    tensor = torch.arange(6.0).reshape(2, 3).t()
    value = OrtValue.from_dlpack(tensor)
    assert value.shape() == [3, 2] and value.to_torch().stride() == (1, 3)
    assert torch.from_dlpack(value).stride() == (1, 3)


def test_read_only_memory_stays_read_only_or_is_refused() -> None:
    array = np.arange(4, dtype=np.float32)
    array.setflags(write=False)
    try:
        value = OrtValue.from_dlpack(array)
    except ortmodule.InvalidArgumentError:
        return
    InferenceSession(add_one()).run(None, {"x": value})
    assert array.tolist() == [0, 1, 2, 3]


def test_a_capsule_is_taken_once() -> None:
    capsule = OrtValue.ortvalue_from_numpy(np.zeros(2, np.float32)).to_dlpack()
    OrtValue.from_dlpack(capsule)
    with pytest.raises(ortmodule.InvalidArgumentError, match="DLPack"):
        OrtValue.from_dlpack(capsule)
    with pytest.raises(ortmodule.InvalidArgumentError, match="DLPack"):
        OrtValue.from_dlpack(3)


def test_truth_values_through_older_capsules() -> None:
    value = OrtValue.from_dlpack(torch.tensor([1, 0], dtype=torch.uint8), is_bool_tensor=True)
    assert value.data_type() == "tensor(bool)" and value.numpy().tolist() == [True, False]


def test_capsules_that_nobody_takes_are_let_go_of() -> None:
    tensor = torch.zeros(1 << 20)
    held = weakref.ref(tensor)
    for _ in range(10):
        OrtValue.ortvalue_from_torch(tensor).to_dlpack()
    del tensor
    gc.collect()
    assert held() is None


def test_values_go_in_and_come_out_of_a_session() -> None:
    session = InferenceSession(add_one())
    (y,) = session.run_with_ort_values(None, {"x": OrtValue.ortvalue_from_numpy(np.zeros(2, np.float32))})
    assert isinstance(y, OrtValue) and y.numpy().tolist() == [1, 1]
    with pytest.raises(ortmodule.InvalidArgumentError, match="unknown"):
        session.run_with_ort_values(None, {"z": y})
