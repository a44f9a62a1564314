"""Which C functions a forward may call in a graph: those whose result hangs on nothing but what they are given.

What they are given is known to the walk (walk.py), so what such a function reads is a condition like any other read.
A function that is neither torch's nor in these tables may read a clock, a file, another library's state: its kind of
call runs in PyTorch, unless the user vouches for it.

Not here: functions in Python, which are followed into.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from ..conditions import is_native
from ..conditions.generators import is_default_generator

__all__ = ["impure_reason"]

# Modules all of whose C functions are pure, or change only what they are given.
_PURE_MODULES = frozenset(
    {
        "math", "cmath", "_operator", "operator", "itertools", "_functools", "functools", "_collections", "collections",
        "_abc", "_bisect", "_heapq", "_struct", "_string", "_sre", "re", "unicodedata", "binascii", "zlib", "_json",
        "_weakref", "array", "_contextvars", "_statistics", "_codecs", "_typing", "_csv", "_datetime",
        "_hashlib", "_blake2", "_md5", "_sha1", "_sha2", "_sha3", "_sha256", "_sha512", "_pickle", "_copy", "_opcode",
        "_ast", "_stat", "_imp", "_warnings", "_tokenize", "atexit", "marshal",
    }
)  # fmt: skip
_IMPURE = frozenset(
    {
        ("builtins", "open"), ("builtins", "input"), ("builtins", "print"), ("builtins", "breakpoint"),
        ("_imp", "create_dynamic"), ("atexit", "register"),
        ("_weakref", "getweakrefcount"), ("_weakref", "getweakrefs"), ("torch._C", "_cuda_memoryStats"),
    }
)  # fmt: skip
_PURE_FUNCTIONS = frozenset(
    {
        ("sys", "exc_info"), ("sys", "exception"), ("sys", "intern"), ("sys", "is_finalizing"), ("sys", "getsizeof"),
        ("sys", "_getframe"), ("sys", "audit"), ("sys", "getrecursionlimit"), ("posix", "fspath"), ("nt", "fspath"),
        ("_locale", "getencoding"),
        ("_thread", "allocate_lock"), ("_thread", "RLock"), ("_thread", "get_ident"), ("sys", "_getframemodulename"),
    }
)  # fmt: skip
# Types of CPython whose methods are pure, or change only the object itself, which the walk compares afterwards.
_PLAIN_TYPES = (
    str, bytes, bytearray, int, float, complex, list, tuple, dict, set, frozenset, range, slice, memoryview, property,
    types.MappingProxyType, types.FunctionType, types.MethodType, types.GeneratorType, types.CoroutineType,
    types.CodeType, types.CellType, types.ModuleType, types.SimpleNamespace, types.GenericAlias, staticmethod,
    classmethod, super, BaseException,
)  # fmt: skip
# Types whose methods are impure all the same.
_IMPURE_METHODS = frozenset({"now", "today", "utcnow", "fromtimestamp"})
# Functions and methods of numpy that read or write files.
_NUMPY_FILES = frozenset({"fromfile", "tofile", "dump"})
_TRUSTED = ("torch", "numpy", "sympy", "onnx", "ortmodule")
# What functions of pybind11 are bound to, by its version: a record of what they call.
_PYBIND = ("pybind11_detail_function_record", "PyCapsule")
# Generators of random numbers, wherever they are held: a draw is another at each call.
_SEEDS = ("initial_seed", "device")  # of torch's own, they stay when it moves
_RANDOM = ("numpy.random", "_random", "random", "secrets")


def impure_reason(function: Any) -> str | None:
    """Why a C function cannot be part of a graph; None where it can."""
    name = str(getattr(function, "__qualname__", None) or getattr(function, "__name__", repr(function)))
    owner = getattr(function, "__self__", None)
    if is_default_generator(owner) and function.__name__ not in _SEEDS:
        return f"the forward asks a generator of torch's ({name}), which moves with every draw"
    module = getattr(function, "__module__", None)
    if type(owner).__name__.startswith(_PYBIND):
        return None if _is_pure(str(module), function.__name__) else _text(str(module), function.__name__)
    if isinstance(owner, types.ModuleType) or owner is None:
        where = str(module or getattr(owner, "__name__", ""))
        return None if _is_pure(where, function.__name__) else _text(where, name)
    if function.__name__ == "__subclasses__":
        return _text("", name)
    kind = owner if isinstance(owner, type) else type(owner)
    base = next((b for b in kind.__mro__ if is_native(b) and function.__name__ in vars(b)), kind)
    if base.__module__ in ("builtins", "types"):
        plain = base in (object, type) or issubclass(base, _PLAIN_TYPES) or not isinstance(owner, type)
        return None if plain else _text(base.__qualname__, function.__name__)
    if base.__module__ == "datetime" and function.__name__ in _IMPURE_METHODS:
        return _text(base.__module__, name)
    pure = _is_pure(base.__module__, function.__name__) or base.__module__ == "datetime"
    return None if pure else _text(base.__module__ if base.__module__.startswith(_RANDOM) else "", name)


def _is_pure(module: str, name: str) -> bool:
    if (module, name) in _IMPURE or module.startswith(_RANDOM):
        return False
    if module == "builtins" or (module, name) in _PURE_FUNCTIONS or module in _PURE_MODULES:
        return True
    if module == "_thread" or module == "threading":
        return name in ("acquire", "release", "locked", "__enter__", "__exit__", "_is_owned")
    if module.startswith("numpy") and name in _NUMPY_FILES:
        return False
    if module.partition(".")[0] in _TRUSTED:
        return True
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return "/torch/" in file and module.startswith("torch")


def _text(where: str, name: str) -> str:
    full = name if not where or name.startswith(where) else f"{where}.{name}"
    if where.startswith(_RANDOM):
        owner = f"the module {where.lstrip('_')}"
        return f"the forward draws from a generator of {owner} ({full}), once and for all if it were captured"
    return f"the forward calls {full}, a C function of which it is not known what its result hangs on"
