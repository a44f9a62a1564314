"""DLPack at the border of OrtValue: whose memory it is, who lets go of it, and how often: once."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from ortmodule import InvalidArgumentError, OrtValue

from .capsules import READ_ONLY, Producer

CAPSULES, GROWTH = 10_000, 5 << 20  # capsules that nobody takes, bytes that they may leave behind


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def floats() -> np.ndarray:
    return np.arange(4, dtype=np.float32)


@pytest.mark.parametrize("version", [None, (1, 0)], ids=["old", "versioned"])
def test_capsules_that_nobody_takes_leave_nothing_behind(version) -> None:
    value = OrtValue.ortvalue_from_numpy(np.zeros(1 << 20, np.float32))
    make = value.to_dlpack if version is None else lambda: value.__dlpack__(max_version=version)
    for _ in range(1000):
        make()
    gc.collect()
    before = resident()
    for _ in range(CAPSULES):
        make()
    gc.collect()
    growth = resident() - before
    print(f"{CAPSULES} capsules that nobody takes: {growth >> 10} KiB")
    assert growth < GROWTH


@pytest.mark.parametrize("version", [None, (1, 0)], ids=["old", "versioned"])
def test_the_deleter_is_called_once_when_the_consumer_is_gone(version) -> None:
    producer = Producer(floats(), version)
    capsule = producer.capsule()
    value = OrtValue.from_dlpack(capsule)
    assert value.numpy().tolist() == [0, 1, 2, 3] and value.data_ptr() == producer.array.ctypes.data
    array, tensor = value.numpy(), value.to_torch()
    producer.let_go(capsule)
    del value, capsule
    gc.collect()
    assert producer.deleted == 0, "an array and a tensor still show the memory"
    del array, tensor
    gc.collect()
    assert producer.deleted == 1


@pytest.mark.parametrize("version", [None, (1, 0)], ids=["old", "versioned"])
def test_a_capsule_that_is_taken_twice(version) -> None:
    producer = Producer(floats(), version)
    capsule = producer.capsule()
    value = OrtValue.from_dlpack(capsule)
    for _ in range(3):
        with pytest.raises(InvalidArgumentError, match="taken before"):
            OrtValue.from_dlpack(capsule)
    assert producer.deleted == 0 and value.numpy()[3] == 3
    del value
    gc.collect()
    assert producer.deleted == 1


def test_a_producer_that_is_dropped_first() -> None:
    array = floats()
    held = weakref.ref(array)
    given = OrtValue.ortvalue_from_numpy(array)
    value = OrtValue.from_dlpack(given.to_dlpack())
    del given, array
    gc.collect()
    assert held() is not None and value.numpy().tolist() == [0, 1, 2, 3]
    del value
    gc.collect()
    assert held() is None


@pytest.mark.parametrize("version", [None, (1, 0)], ids=["old", "versioned"])
def test_an_error_while_a_capsule_is_taken(version) -> None:
    producer = Producer(floats(), version, bits=7)  # a type that nobody has
    capsule = producer.capsule()
    with pytest.raises(InvalidArgumentError, match="DLPack"):
        OrtValue.from_dlpack(capsule)
    producer.let_go(capsule)
    del capsule
    gc.collect()
    assert producer.deleted == 1


def test_read_only_memory_is_copied() -> None:
    producer = Producer(floats(), (1, 0), flags=READ_ONLY)
    value = OrtValue.from_dlpack(producer.capsule())
    value.update_inplace(np.full(4, 9, np.float32))
    gc.collect()
    assert producer.array.tolist() == [0, 1, 2, 3] and producer.deleted == 1
    array = floats()
    array.setflags(write=False)
    value = OrtValue.from_dlpack(array)
    value.update_inplace(np.full(4, 9, np.float32))
    assert array.tolist() == [0, 1, 2, 3] and value.numpy().tolist() == [9, 9, 9, 9]


def test_capsules_of_another_version_are_refused() -> None:
    producer = Producer(floats(), (9, 0))
    capsule = producer.capsule()
    with pytest.raises(InvalidArgumentError, match=r"version 9\.0"):
        OrtValue.from_dlpack(capsule)
    producer.let_go(capsule)
    assert producer.deleted == 1


def test_what_requires_a_gradient_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="detach"):
        OrtValue.from_dlpack(torch.ones(2, requires_grad=True))
    assert OrtValue.ortvalue_from_torch(torch.ones(2, requires_grad=True)).to_dlpack() is not None


@pytest.mark.parametrize(
    "given", [None, 3, "capsule", object(), [1.0], Producer], ids=["None", "number", "text", "object", "list", "class"]
)
def test_what_is_no_capsule_is_refused(given) -> None:
    with pytest.raises(InvalidArgumentError, match="DLPack"):
        OrtValue.from_dlpack(given)


def test_tensors_that_no_capsule_shows_are_refused() -> None:
    conjugated = torch.ones(2, dtype=torch.complex64).conj()
    for tensor in (conjugated, torch.ones(2).to_sparse()):
        with pytest.raises(InvalidArgumentError, match="DLPack"):
            OrtValue.from_dlpack(tensor)


def test_a_sequence_and_an_absent_value_have_no_capsule() -> None:
    for value in (OrtValue.ortvalue_from_sequence([floats()]), OrtValue(None)):
        for give in (value.to_dlpack, value.__dlpack__, value.__dlpack_device__):
            with pytest.raises(InvalidArgumentError, match="is no tensor"):
                give()


def test_an_object_of_before_versions() -> None:
    class Old:
        def __init__(self) -> None:
            self.producer = Producer(floats())

        def __dlpack__(self, stream=None):
            return self.producer.capsule()

        def __dlpack_device__(self):
            return (1, 0)

    old = Old()
    value = OrtValue.from_dlpack(old)
    assert value.numpy().tolist() == [0, 1, 2, 3]
    del value
    gc.collect()
    assert old.producer.deleted == 1
