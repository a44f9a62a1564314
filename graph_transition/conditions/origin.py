"""Where classes and functions come from: packages whose objects are no state of the user's (torch, but for the modules
that hold what users set), and classes written in C, whose objects hold what Python does not show.
"""

from __future__ import annotations

import builtins
import functools
import sys
import types
from typing import Any

import torch

from ...naming import module_of

__all__ = [
    "books_of",
    "is_internal",
    "is_native",
    "is_of_library",
    "is_of_program",
    "is_opaque",
    "is_opaque_function",
    "is_opaque_module",
    "notes_of",
]

_OPAQUE = frozenset({"torch", "sympy", "onnx", "ortmodule"})
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_POINTER = 8
_OF_C = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
# Of torch's public modules, those that make up traces or keep nothing that users set; in all others users keep things.
_TORCH_INTERNAL = (
    "torch._", "torch.autograd", "torch.classes", "torch.compiler", "torch.distributed", "torch.export", "torch.func",
    "torch.functional", "torch.fx", "torch.jit", "torch.library", "torch.onnx", "torch.overrides", "torch.package",
    "torch.profiler", "torch.storage", "torch.testing", "torch.torch_version", "torch.types", "torch.version",
)  # fmt: skip
# Within those, what users set is kept here.
_TORCH_STATE = ("torch.__future__", "torch.autograd.grad_mode", "torch.autograd.graph")
_CONTEXTS = ("torch.amp.autocast_mode", "torch.autograd.grad_mode")
_NOTES = frozenset({"prev", "prev_cache_enabled", "prev_fastdtype", "_inference_mode_context"})
# Of builtins, what is neither a function nor a class: a program may add others.
_OF_PYTHON = frozenset(
    {
        "None", "True", "False", "Ellipsis", "NotImplemented", "copyright", "credits", "license", "exit", "quit",
        "help", "_", "__debug__", "__name__", "__doc__", "__package__", "__build_class__", "__import__",
    }
)  # fmt: skip


def _is_builtin(value: object) -> bool:
    return isinstance(value, types.BuiltinFunctionType | type) and module_of(value) == "builtins"


# What the interpreter writes on its own, by Python module: at imports, at errors, where output is led elsewhere for a
# while, when threads begin and end.
_BOOKS = {
    "builtins": _OF_PYTHON | {name for name, held in vars(builtins).items() if _is_builtin(held)},
    "sys": frozenset(
        {
            "modules", "path_importer_cache", "path", "path_hooks", "meta_path", "warnoptions", "last_type",
            "last_value", "last_traceback", "last_exc", "stdin", "stdout", "stderr", "ps1", "ps2", "displayhook",
            "excepthook", "unraisablehook",
        }
    ),
    "threading": frozenset(
        {
            "_counter", "_active", "_limbo", "_dangling", "_shutdown_locks", "_shutdown_locks_lock",
            "_active_limbo_lock", "_main_thread", "_threading_atexits",
        }
    ),
}  # fmt: skip


def books_of(name: str) -> frozenset[str]:
    """What a look by a computed name at the Python module `name` is not about."""
    return _BOOKS.get(name, frozenset())


def notes_of(kind: type) -> frozenset[str]:
    """Attributes in which context managers of torch's note what they will put back."""
    return _NOTES if module_of(kind) in _CONTEXTS else frozenset()


def is_opaque_module(name: str) -> bool:
    """Whether a Python module is of a package whose globals nobody computes names for."""
    return name.partition(".")[0] in (*_OPAQUE, "numpy")


def is_of_program(scope: dict[str, Any]) -> bool:
    """Whether these are globals of a module of the user's: neither Python's nor an installed package's; or builtins, of
    which only what a program has added is looked at.
    """
    if scope is vars(builtins):
        return True
    top = str(scope.get("__name__")).partition(".")[0]
    return top not in sys.stdlib_module_names and "-packages/" not in str(scope.get("__file__"))


def is_internal(module: str) -> bool:
    """Whether a Python module is of a package into which nobody looks; of torch, one in which users keep nothing."""
    package = module.partition(".")[0]
    if package == "torch" and module != "torch":
        return module.startswith(_TORCH_INTERNAL) and not module.startswith(_TORCH_STATE)
    return package in _OPAQUE


def is_opaque_function(function: types.FunctionType) -> bool:
    """Whether a function is a package's own, into which nobody looks."""
    module = function.__globals__.get("__name__")
    return isinstance(module, str) and is_internal(module)


def is_of_library(cache: functools._lru_cache_wrapper[object]) -> bool:
    """Whether a cached function is the standard library's: those remember what hangs on their arguments alone."""
    return str(getattr(cache, "__module__", None)).partition(".")[0] in sys.stdlib_module_names


@functools.lru_cache(maxsize=4096)
def is_opaque(kind: type) -> bool:
    """Whether a class is a package's own, so that it and its objects count as what they are."""
    module = module_of(kind)
    if not isinstance(module, str):  # a class may have a property of that name
        return False
    return not issubclass(kind, torch.nn.Module) and is_internal(module)


@functools.lru_cache(maxsize=4096)
def is_native(kind: type) -> bool:
    """Whether a class is written in C (or in another language than Python).

    Many of those are made at run time (`random.Random`'s base, a binding's classes), as Python's own are: they differ
    in methods in C of their own, or in room in their objects that no slot, no `__dict__` and no `__weakref__` takes.
    """
    if not kind.__flags__ & _HEAP_TYPE:
        return True
    own = list(vars(kind).values())
    if any(isinstance(member, _OF_C) and member.__objclass__ is kind for member in own):
        return True
    if any(isinstance(member, types.BuiltinFunctionType) and member.__self__ is kind for member in own):
        return True
    base = kind.__base__
    assert base is not None
    slots = sum(isinstance(member, types.MemberDescriptorType) and member.__objclass__ is kind for member in own)
    dictionary = bool(kind.__dictoffset__) and not base.__dictoffset__
    references = bool(kind.__weakrefoffset__) and not base.__weakrefoffset__
    return kind.__basicsize__ - base.__basicsize__ > _POINTER * (slots + dictionary + references)
