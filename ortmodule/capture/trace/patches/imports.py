"""Imports in a forward: a module that is not loaded is imported before the trace, which then begins anew.

An import runs a module's own code, once in a process, with effects that stay: tensors, entries in registries, itself in
`sys.modules` and in its package. Within a trace its tensors would be the trace's, and what an end of the trace takes
back would be missing from modules that are not imported again.

Not heard: imports of torch's own, and of what makes up traces; `importlib.reload`.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .... import _C
from ....errors import UnloadedModuleError
from ..patching import FORWARD, Patch, caller
from ..tracing import TraceState

__all__ = ["PATCHES", "with_modules_loaded"]

_APART = frozenset({"torch", "sympy", "onnx", "numpy", "ortmodule"})


def with_modules_loaded(trace: Callable[[frozenset[str]], Any]) -> Any:
    """What `trace(tried)` gives; where it ends at an import, that is done, and `trace` called again.

    Args:
        trace: told the modules that were imported for it, or could not be.
    """
    tried: frozenset[str] = frozenset()
    while True:
        try:
            return trace(tried)
        except UnloadedModuleError as error:
            names = error.names
        tried |= set(names)
        for name in names:
            try:
                importlib.import_module(name)
            except Exception:  # the forward's to hear
                continue


def _refuse(state: TraceState, names: Sequence[str]) -> None:
    if names:
        state.refusal = UnloadedModuleError(names)
        raise state.refusal


def _told(state: TraceState, full: str, run: Callable[[], Any]) -> Any:
    """What the import gives; that there is no such module is noted."""
    try:
        return run()
    except ImportError:
        if state.audit is not None:
            state.audit.no_module(name for name in _with_packages(full) if name not in sys.modules)
        raise


def _with_packages(full: str) -> Iterator[str]:
    parts = full.split(".")
    return (".".join(parts[: i + 1]) for i in range(len(parts)))


def _is_apart(scope: Mapping[str, Any] | None) -> bool:
    return str((scope or {}).get("__name__")).partition(".")[0] in _APART


def _others(state: TraceState) -> _C.Callers:
    """Torch imports by tens of thousands of statements within its functions while it traces."""
    return _C.Callers(lambda scope: int(not _is_apart(scope)))


def _absolute(name: str, scope: Mapping[str, Any] | None, level: int) -> str | None:
    """The module's whole name; None where the import will say that it has none."""
    if level == 0:
        return name
    scope = scope or {}
    package = scope.get("__package__") or getattr(scope.get("__spec__"), "parent", None)
    try:
        return importlib.util.resolve_name("." * level + name, package) if package else None
    except ImportError:
        return None


def _unloaded(full: str, wanted: Sequence[str], tried: frozenset[str]) -> list[str]:
    """Of a module and what is wanted of it, modules that an import would load."""
    if full not in sys.modules:
        top = full.partition(".")[0]
        is_there = full not in tried and (top in sys.modules or _can_be_found(top))
        return [full] if is_there else []
    module = sys.modules[full]
    if not hasattr(module, "__path__"):
        return []
    parts = [f"{full}.{name}" for name in wanted if isinstance(name, str) and name not in vars(module)]
    return [part for part in parts if part not in sys.modules and part not in tried and _can_be_found(part)]


def _can_be_found(full: str) -> bool:
    try:
        return importlib.util.find_spec(full) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _statement(original: Any, state: TraceState) -> Any:
    def load(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if (level == 0 and not fromlist and name in sys.modules) or _is_apart(globals):
            return original(name, globals, locals, fromlist, level)
        full = _absolute(name, globals, level)
        if full is None:
            return original(name, globals, locals, fromlist, level)
        _refuse(state, _unloaded(full, fromlist or (), state.tried_imports))
        return _told(state, full, lambda: original(name, globals, locals, fromlist, level))

    return load


def _function(original: Any, state: TraceState) -> Any:
    def import_module(name: str, package: str | None = None) -> Any:
        try:
            full = importlib.util.resolve_name(name, package)
        except (ImportError, ValueError):
            return original(name, package)
        if full in sys.modules or _is_apart(caller().f_globals):
            return original(name, package)
        _refuse(state, _unloaded(full, (), state.tried_imports))
        return _told(state, full, lambda: original(name, package))

    return import_module


PATCHES = (
    Patch(builtins, "__import__", _statement, during=FORWARD, only=_others),
    Patch(importlib, "import_module", _function, during=FORWARD),
)
