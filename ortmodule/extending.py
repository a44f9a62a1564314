"""What users add to the engine: gradients in Python, shared libraries of operators, the header that these include.

Not here: the engine's side (csrc/ops/custom, csrc/ops/user_gradient, csrc/bindings/gradient) and the mapping of torch
operators (capture/custom_node).
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from . import _C, _build_info
from ._C import GradientContext, GradientValue
from .errors import InvalidArgumentError, ORTModuleError

__all__ = [
    "GradientContext",
    "GradientValue",
    "cmake_dir",
    "include_dir",
    "load_extension",
    "load_libraries",
    "register_gradient",
]

_Formula = TypeVar("_Formula", bound=Callable[[GradientContext], Any])


def register_gradient(domain: str, name: str, *, replace: bool = False) -> Callable[[_Formula], _Formula]:
    """Decorates a gradient formula for the ONNX operator `domain::name` (ai.onnx: "").

    The formula is called when a graph is differentiated, once per node, with a context `ctx`:
    `ctx.I(i)` and `ctx.O(i)` are the node's inputs and outputs, `ctx.GO(i)` the gradient of output i (None where none
    arrives), `ctx.attributes` the attributes; `ctx.node("Mul", [a, b], domain="", outputs=1, **attributes)` adds a node
    and gives its value (a tuple for several), and takes numbers among its inputs; `ctx.constant`, `ctx.reduce_to(value,
    like)` (undoes broadcasting), `ctx.zeros_like` and `ctx.sizes_of` help; `ctx.needs(i)` says whether input i wants a
    gradient. It returns one value or None per input, in order (a single value for a single input): what another name
    calls `GI(i)`. Gradients of integer inputs are left out.

    It holds for graphs that are differentiated from then on, in ORTModule and in training sessions alike.

    Args:
        domain, name: the operator. One of a library may be named before the library is loaded.
        replace: replace the gradient that the operator has; without it that is an error.

    Raises:
        InvalidArgumentError: the operator has a gradient, or no such operator is known. A formula that fails or returns
            something else makes the graph's compilation fail with InvalidArgumentError that names the operator.
    """
    domain = "" if domain == "ai.onnx" else domain
    label = f"{domain}::{name}" if domain else name

    def register(formula: _Formula) -> _Formula:
        if not callable(formula):
            raise InvalidArgumentError(f"register_gradient decorates a function, got {type(formula).__name__}")

        @functools.wraps(formula)
        def guarded(context: GradientContext) -> Any:
            try:
                return formula(context)
            except ORTModuleError as error:
                raise type(error)(f"the gradient registered for {label} failed: {error}") from error
            except Exception as error:
                raise InvalidArgumentError(
                    f"the gradient registered for {label} failed: {type(error).__name__}: {error}"
                ) from error

        _C.register_gradient(domain, name, guarded, replace)
        return formula

    return register


def include_dir() -> str:
    """The folder with `ortmodule/custom_op.h`, for the compiler of a custom-operator library."""
    return str(Path(__file__).parent / "include")


def cmake_dir() -> str:
    """The folder with `ortmoduleConfig.cmake`, for `find_package(ortmodule)` of a C++ program."""
    return str(Path(__file__).parent / "cmake" / "ortmodule")


def load_libraries(paths: Sequence[str | os.PathLike[str]]) -> None:
    """Loads custom-operator libraries; loading one again changes nothing."""
    for path in paths:
        _C.register_custom_ops_library(os.path.abspath(os.fspath(path)))


def load_extension(path: str | os.PathLike[str]) -> None:
    """Loads a shared library with passes, execution providers or kernels in C++, which register themselves.

    Sessions that are made later have them. It has to be built for this version of ortmodule and torch, with the CMake
    target `ortmodule::core` (see docs/extending.md).

    Raises:
        InvalidArgumentError: it cannot be loaded, was built for another version, or registers a name that is taken.
    """
    try:
        ctypes.CDLL(os.fspath(path))
    except OSError as error:
        if "ortmodule_headers_" in str(error):
            raise InvalidArgumentError(
                f"the extension {os.fspath(path)!r} was built for another ortmodule or torch than ortmodule "
                f"{_build_info.VERSION} for torch {_build_info.TORCH_VERSION}, which is here; build it again"
            ) from error
        raise InvalidArgumentError(f"the extension {os.fspath(path)!r} cannot be loaded: {error}") from error
    if errors := _C.take_registration_errors():
        raise InvalidArgumentError(f"the extension {os.fspath(path)!r}: {'; '.join(errors)}")
