"""Packages whose objects are no state of the user's: torch, but for the modules that hold what users set."""

from __future__ import annotations

import functools
import types

import torch

__all__ = ["is_opaque", "is_opaque_function", "is_opaque_module", "without_books"]

_OPAQUE = frozenset({"torch", "sympy", "onnx", "ortmodule"})
_TORCH_STATE = ("torch.nn", "torch.distributions", "torch.optim", "torch.utils.data")
# What the interpreter writes in `sys` on its own: at imports, at errors, where output is led elsewhere for a while.
_BOOKS_OF_SYS = frozenset(
    {
        "modules", "path_importer_cache", "path", "path_hooks", "meta_path", "warnoptions", "last_type", "last_value",
        "last_traceback", "last_exc", "stdin", "stdout", "stderr", "ps1", "ps2", "displayhook", "excepthook",
        "unraisablehook",
    }
)  # fmt: skip


def without_books(name: str, names: frozenset[str]) -> frozenset[str]:
    """What a look by a computed name at the Python module `name`, which has these names, can be about."""
    return names - _BOOKS_OF_SYS if name == "sys" else names


def is_opaque_module(name: str) -> bool:
    """Whether a Python module is of a package whose globals nobody computes names for."""
    return name.partition(".")[0] in (*_OPAQUE, "numpy", "builtins")


def is_opaque_function(function: types.FunctionType) -> bool:
    """Whether a function is a package's own, into which nobody looks."""
    module = function.__globals__.get("__name__")
    if not isinstance(module, str) or module.startswith(_TORCH_STATE):
        return False
    return module.partition(".")[0] in _OPAQUE


@functools.lru_cache(maxsize=4096)
def is_opaque(kind: type) -> bool:
    """Whether a class is a package's own, so that it and its objects count as what they are."""
    module = kind.__module__
    if not isinstance(module, str):  # a class may have a property of that name
        return False
    if issubclass(kind, torch.nn.Module) or module.startswith(_TORCH_STATE):
        return False
    return module.partition(".")[0] in _OPAQUE
