"""Whose Python code is followed while a forward runs, and the events of its frames.

The user's code and that of installed packages is followed, and torch.nn's, which reads what users set. The rest of
torch, numpy and this package are not: they make up the trace. The standard library is followed where it is called by
code that is.

CPython tells of frames by its profile hook: in C, of this thread alone, and a profiler that is active hears of
everything as well. (`sys.monitoring`, from 3.12 on, calls Python functions, of all threads, and has ids for six tools.)
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy
import onnx
import sympy
import torch

from ... import _C, capture
from ..conditions.origin import is_internal

__all__ = [
    "BOOKKEEPERS",
    "BY_CALLER",
    "FOLLOWED",
    "OPAQUE",
    "Listener",
    "followed_frames",
    "is_followed",
    "is_heard",
    "keywords_of",
    "kind_of",
]

OPAQUE, FOLLOWED, BY_CALLER, PASSED_BY = 0, 1, 2, 3
_TORCH = str(Path(str(torch.__file__)).parent) + "/"
_OPAQUE_ROOTS = tuple(
    [f"{Path(str(m.__file__)).parent}/" for m in (numpy, sympy, onnx)] + [f"{Path(capture.__file__).parents[1]}/"]
    + [f"{Path(__file__).parents[1]}/"]
)  # fmt: skip
_SYMPY = f"{Path(str(sympy.__file__)).parent}/"
# What stands in place of functions while a forward is traced: it calls them, or what they would.
_STANDING_IN = tuple(f"{Path(capture.__file__).parent}/trace/{name}" for name in ("patching.py", "patches/"))
# Of numpy: what reads and writes files, as user code may do.
_NUMPY_FILES = ("/npyio.py", "/_npyio_impl.py", "/_datasource.py", "/format.py", "/_format_impl.py", "/memmap.py")
# Packages that torch itself calls, and others that act on their own: on `assert`, on imports.
_CALLED_PACKAGES = ("typing_extensions.py", "jinja2/", "networkx/", "mpmath/", "filelock/", "fsspec/")
_OPAQUE_PACKAGES = ("_pytest/", "_distutils_hack/", "setuptools/", "pkg_resources/")
_DECORATING = f"{_TORCH}utils/_contextlib.py"  # functions under `torch.no_grad()` and the like
# Of torch, what holds state of the user's whoever calls it.
_TORCH_FOLLOWED = tuple(f"{_TORCH}{name}" for name in ("nn/", "distributions/", "optim/", "utils/data/", "ao/"))
_TORCH_ASKED = f"{_TORCH}nn/parameter.py"  # `isinstance` asks it
_TORCH_OPAQUE = (f"{_TORCH}nn/modules/module.py", f"{_TORCH}nn/parallel/")
_LIBRARY = sysconfig.get_paths()["stdlib"] + "/"
# Of the standard library: what keeps books of its own (logs, warnings, imports), and reads nothing for a forward.
BOOKKEEPERS = frozenset(
    {
        "logging", "warnings", "linecache", "abc", "importlib", "re", "tokenize", "ast",
        "dis", "sre_parse", "sre_compile", "importlib._bootstrap", "importlib._bootstrap_external", "zipimport",
    }
)  # fmt: skip
# Where callbacks of weak references are: collections run them at any time, in the middle of whatever runs.
_WEAK = (f"{_LIBRARY}weakref.py", f"{_LIBRARY}_weakrefset.py", f"{_TORCH}utils/weak.py")
# Of these, what reads files of packages.
_READING = ("importlib/resources/", "importlib/metadata/")
# Writes of a log line, which a graph does not repeat.
EMITS = "Handler.handle"


@functools.lru_cache(maxsize=8192)
def kind_of_file(path: str) -> int:
    if path.startswith(_STANDING_IN):
        return PASSED_BY
    if path.startswith(_TORCH):
        return _kind_of_torchs(path)
    if path.startswith(_OPAQUE_ROOTS[0]) and path.endswith(_NUMPY_FILES):
        return BY_CALLER
    if path.startswith(_OPAQUE_ROOTS) or path.startswith("<eval_with_key>") or "torch_namedtensor" in path:
        return OPAQUE
    if path.startswith("<frozen "):
        return OPAQUE if path[8:-1] in BOOKKEEPERS else BY_CALLER
    if "-packages/" in path:
        if path.rpartition("-packages/")[2].startswith(_OPAQUE_PACKAGES):
            return OPAQUE
        return BY_CALLER if path.rpartition("-packages/")[2].startswith(_CALLED_PACKAGES) else FOLLOWED
    if path.startswith(_LIBRARY) and "-packages/" not in path:
        inside = path.removeprefix(_LIBRARY).removesuffix(".py")
        keeps = inside.split("/")[0] in BOOKKEEPERS and not inside.startswith(_READING)
        return OPAQUE if keeps else BY_CALLER
    return FOLLOWED


def _kind_of_torchs(path: str) -> int:
    if path == _TORCH_ASKED:
        return BY_CALLER
    if path.startswith(_TORCH_FOLLOWED):
        return OPAQUE if path.startswith(_TORCH_OPAQUE) else FOLLOWED
    inside = path.removeprefix(_TORCH).removesuffix(".py").removesuffix("__init__").strip("/")
    return OPAQUE if is_internal(".".join(("torch", *inside.split("/"))).removesuffix(".")) else BY_CALLER


def kind_of(code: types.CodeType, scope: dict[str, Any]) -> int:
    """Whether the frames of `code` with these globals are followed: OPAQUE, FOLLOWED, BY_CALLER, as their callers' are,
    or PASSED_BY, not themselves, but what they call as if their callers did.
    """
    path = code.co_filename
    if path == "<string>":  # made by a dataclass, say, for a class of that module
        path = scope.get("__file__") or path
        if path == "<string>" and str(scope.get("__name__")).startswith("namedtuple_"):
            return BY_CALLER
        if path == "<string>" and "__name__" not in scope and _is_made_by_sympy(code):
            return OPAQUE
    if path in _WEAK and _is_callback(code):
        return OPAQUE
    return kind_of_file(path)


def _is_callback(code: types.CodeType) -> bool:
    """Whether a function of those that keep weak references is what they have the interpreter call."""
    return "<locals>" in code.co_qualname or code.co_qualname == "finalize.__call__"


def _is_made_by_sympy(code: types.CodeType) -> bool:
    """Whether it is sympy that runs a function for the first time which was made of a text, as it makes some."""
    first = frame = sys._getframe(2)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back  # type: ignore[assignment]
    caller = first if frame is None else frame.f_back  # a frame that is about to begin is not on the stack
    return caller is not None and caller.f_code.co_filename.startswith(_SYMPY)


class Listener(Protocol):
    """Receives the events of followed frames."""

    def entered(self, frame: types.FrameType, function: types.FunctionType | None, values: list[Any]) -> None: ...
    def returned(self, frame: types.FrameType, value: Any) -> None: ...
    def called(self, frame: types.FrameType, function: Any) -> None: ...


@contextlib.contextmanager
def followed_frames(listener: Listener) -> Iterator[_C.CallMonitor]:
    """Within it, `listener` hears of the followed frames of this thread, but while the monitor is paused.

    What it raises goes through the code that it hears of, and is raised at the end where that code has caught it.
    """
    monitor = _C.CallMonitor(kind_of, listener.entered, listener.returned, listener.called)
    monitor.start()
    try:
        yield monitor
    except BaseException:
        monitor.stop()
        raise
    error = monitor.stop()
    if error is not None:
        raise error


def is_followed(frame: types.FrameType | None) -> bool:
    """Whether a frame is: of code that is, or called by one that is."""
    first = frame
    while frame is not None:
        kind = kind_of(frame.f_code, frame.f_globals)
        if kind != BY_CALLER and not (kind == PASSED_BY and frame is not first):
            return kind == FOLLOWED
        frame = frame.f_back
    return False


def is_heard(function: Any) -> bool:
    """Whether it is heard of a call of `function` that code makes which is not followed: torch calls a hook."""
    while not isinstance(function, torch.nn.Module):
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.MethodType):
            function = function.__func__
        elif isinstance(function, types.FunctionType):
            if function.__code__.co_filename != _DECORATING:
                return kind_of(function.__code__, function.__globals__) == FOLLOWED
            function = getattr(function, "__wrapped__", None)
        else:
            called = (vars(base).get("__call__") for base in type(function).__mro__)
            function = next((found for found in called if found is not None), None)
            if not isinstance(function, types.FunctionType | functools.partial):
                return False
    return True


def keywords_of(frame: types.FrameType) -> dict[str, Any] | None:
    """What `**kwargs` is in a function that has just been entered."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_VARKEYWORDS:
        return None
    place = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    found = frame.f_locals.get(code.co_varnames[place])
    return found if type(found) is dict else None
