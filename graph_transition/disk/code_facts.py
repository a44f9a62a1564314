"""What can be told of Python code without running it: bytecode as a digest, the names it uses, whose code it is.

Not here: what is followed from a module, and why (fingerprint.py).
"""

from __future__ import annotations

import dis
import functools
import re
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import onnx
import sympy
import torch

from ... import capture

__all__ = [
    "VERSIONED",
    "Unkeyable",
    "callable_parts",
    "cell_content",
    "file_origin",
    "functions_in",
    "global_names",
    "globals_read",
    "is_patch",
    "names_in",
    "origin_of",
]

# Packages whose code stands for its name and version.
VERSIONED = ("torch", "numpy", "sympy", "onnx", "ortmodule")
_LIBRARY = sysconfig.get_paths()["stdlib"]
_PACKAGE_ROOTS = [Path(str(m.__file__)).parent for m in (torch, numpy, sympy, onnx)] + [
    Path(capture.__file__).parents[1]
]
_ROOTS = tuple(f"{root}/" for root in _PACKAGE_ROOTS)
_LOAD_GLOBAL, _LOAD_NAME = dis.opmap["LOAD_GLOBAL"], dis.opmap["LOAD_NAME"]
_IMPORT_NAME, _EXTENDED = dis.opmap["IMPORT_NAME"], dis.opmap["EXTENDED_ARG"]
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class Unkeyable(Exception):
    """Something that the trace may depend on cannot be told by value; the text says what."""


def callable_parts(value: Any) -> tuple[Any, ...] | None:
    """What a callable or descriptor that is no plain function is made of; None for anything else."""
    if isinstance(value, types.MethodType):
        return (value.__func__, value.__self__)
    if isinstance(value, functools.partial | functools.partialmethod):
        return (value.func, value.args, value.keywords)
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    if isinstance(value, property):
        return (value.fget, value.fset)
    if isinstance(value, functools.cached_property):
        return (value.func,)
    if isinstance(value, functools._lru_cache_wrapper):
        return (value.__wrapped__,)
    if isinstance(value, types.BuiltinFunctionType):
        holder = getattr(value, "__self__", None)
        name = (getattr(value, "__module__", None), value.__qualname__)
        return name if holder is None or isinstance(holder, types.ModuleType | type) else (*name, holder)
    if isinstance(value, types.MethodDescriptorType | types.WrapperDescriptorType | types.GetSetDescriptorType
                  | types.MemberDescriptorType | types.ClassMethodDescriptorType):  # fmt: skip
        return (value.__objclass__.__qualname__, value.__name__)
    return None


def cell_content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return ...


def functions_in(member: Any) -> list[types.FunctionType]:
    """The functions of a class member, those that a decorator wraps included."""
    found: dict[int, types.FunctionType] = {}
    pending = [member]
    while pending:
        value = pending.pop()
        if isinstance(value, types.FunctionType):
            if id(value) not in found:
                found[id(value)] = value
                pending.extend(cell_content(c) for c in value.__closure__ or ())
        elif isinstance(value, staticmethod | classmethod | property | functools.cached_property):
            pending.extend(callable_parts(value) or ())
    return list(found.values())


def is_patch(value: Any) -> bool:
    """Whether a member of one of torch's classes is a function from elsewhere."""
    return isinstance(value, types.FunctionType) and file_origin(value.__code__.co_filename) != "versioned"


_facts: dict[int, tuple[types.CodeType, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {}


def _code_facts(code: types.CodeType) -> tuple[types.CodeType, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """(code, global names, names of imported modules, other names and identifiers in strings), nested code included."""
    found = _facts.get(id(code))
    if found is not None:
        return found
    names, text = code.co_names, code.co_code
    scope: dict[str, None] = {}
    imports: dict[str, None] = {}
    extended = 0
    for i in range(0, len(text), 2):
        operation, argument = text[i], text[i + 1] | extended
        extended = argument << 8 if operation == _EXTENDED else 0
        if operation == _LOAD_GLOBAL:
            scope[names[argument >> 1]] = None
        elif operation == _LOAD_NAME:
            scope[names[argument]] = None
        elif operation == _IMPORT_NAME:
            imports[names[argument]] = None
    others = dict.fromkeys(names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _, inner_scope, inner_imports, inner_others = _code_facts(constant)
            scope.update(dict.fromkeys(inner_scope))
            imports.update(dict.fromkeys(inner_imports))
            others.update(dict.fromkeys(inner_others))
        for word in constant if isinstance(constant, tuple) else (constant,):
            if isinstance(word, str) and len(word) < 64 and _IDENTIFIER.fullmatch(word):
                others.update(dict.fromkeys(word.split(".")))
    found = _facts[id(code)] = (code, tuple(scope), tuple(imports), tuple(others))
    return found


def global_names(code: types.CodeType) -> tuple[str, ...]:
    """The names that a function looks up among globals and builtins."""
    return _code_facts(code)[1]


def names_in(code: types.CodeType) -> tuple[str, ...]:
    """Every name, and every string that looks like one, in a function."""
    return _code_facts(code)[3]


def globals_read(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The globals that a function reads, and the modules that it imports itself."""
    scope = function.__globals__
    _, names, imports, _ = _code_facts(function.__code__)
    for name in names:
        if name in scope:
            yield name, scope[name]
    if file_origin(function.__code__.co_filename) != "user":
        return
    package = str(scope.get("__package__") or "").split(".")
    for name in imports:
        places = (".".join([*package[:depth], name]) for depth in range(len(package) + 1))
        loaded = [sys.modules[place] for place in places if place in sys.modules]
        if not loaded:
            raise Unkeyable(f"{function.__qualname__} imports '{name}', which is not loaded yet")
        yield from ((name, module) for module in loaded)


@functools.cache
def file_origin(path: str) -> str:
    """Whose code a source file is: "versioned", "package" or "user"."""
    if path.startswith("<frozen") or path.startswith(_ROOTS):
        return "versioned"
    if "-packages" in path:
        return "package"
    return "versioned" if path.startswith(_LIBRARY) else "user"


@functools.cache
def origin_of(module: str) -> str:
    """Whose code a Python module is."""
    top = module.partition(".")[0]
    if top in VERSIONED or (top in sys.stdlib_module_names and top != "__main__"):
        return "versioned"
    return file_origin(getattr(sys.modules.get(module), "__file__", None) or "")
