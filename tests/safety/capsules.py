"""DLPack capsules made by hand, whose deleter is counted: what a producer other than NumPy and torch may give."""

from __future__ import annotations

import ctypes
from typing import Any

from numpy import ndarray

READ_ONLY = 1


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("number", ctypes.c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int32), ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    ]  # fmt: skip


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", _DELETER),
        ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    ]  # fmt: skip


_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Producer:
    """Gives one capsule of an array of float32. `deleted` counts the calls of its deleter.

    Args:
        array: its memory; the producer must live as long as the capsule's consumer.
        version: of the capsule; None: one without a version.
        flags: those of versioned capsules.
        bits: of the elements, as the capsule says.
    """

    def __init__(
        self, array: ndarray, version: tuple[int, int] | None = None, *, flags: int = 0, bits: int = 32
    ) -> None:
        self.array, self.deleted = array, 0
        self._shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self._name = b"dltensor" if version is None else b"dltensor_versioned"
        self._deleter = _DELETER(self._count)
        tensor = _Tensor(array.ctypes.data, _Device(1, 0), array.ndim, _Type(2, bits, 1), self._shape, None, 0)
        self._managed = (
            _Managed(tensor, None, self._deleter)
            if version is None
            else _Versioned(*version, None, self._deleter, flags, tensor)
        )

    def _count(self, managed: int) -> None:
        self.deleted += 1

    def capsule(self) -> Any:
        return _api.PyCapsule_New(ctypes.addressof(self._managed), self._name, None)

    def let_go(self, capsule: Any) -> None:
        """What the destructor of a producer's capsule does: the deleter is called where nobody took it."""
        if _api.PyCapsule_IsValid(capsule, self._name):
            self._deleter(ctypes.addressof(self._managed))
