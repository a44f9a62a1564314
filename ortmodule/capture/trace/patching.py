"""The only place that replaces anything in torch and in Python, and that keeps other threads from seeing it.

What is replaced, and why, is in patches/ and its folders, a subject a file. Such a file has `PATCHES`, a tuple of

- `Patch`: an attribute of a module or a class, and what makes what stands there during a capture from what was there;
- `Around`: a context manager, for what is no single attribute.

A new file there is found by itself. Files are taken by their `ORDER` (0 where a file has none) and then by name, and
what comes later lies around what comes earlier. An entry is in force during the whole trace, or with `during=FORWARD`
only while the module's own forward runs in it.

Replacements are process-global, hence `tracing.LOCK`; a function or a property that is replaced is so for the capturing
thread alone. No graph is read or written here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import pkgutil
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

from ... import _C
from .tracing import TraceState

__all__ = [
    "ADDED",
    "FORWARD",
    "ORIGINALS",
    "TRACE",
    "Around",
    "Patch",
    "added",
    "caller",
    "deferred_interrupt",
    "entries",
    "installed",
]

TRACE, FORWARD = "trace", "forward"
_MISSING: Any = object()
# By the identity of what a capture puts into torch or Python: what was there.
ORIGINALS: dict[int, Any] = {}
# Identities of what a capture puts where nothing was (what the owner computes on demand).
ADDED: set[int] = set()


def _always(state: TraceState) -> bool:
    return True


@dataclasses.dataclass(frozen=True)
class Patch:
    """One attribute that a capture replaces.

    Attributes:
        owner: a module or a class; a string is the name of a module, which is replaced in only if it is loaded.
        name: the attribute.
        make: called with what is there and the capture: the function or property for the capturing thread.
        elsewhere: what other threads are sent to; None: what was there.
        default: what counts as there where the owner has no such attribute.
        by_code: whether the code of the function is exchanged, not the attribute: it may have been bound before. With
            neither `elsewhere` nor `only`.
        during: TRACE or FORWARD.
        when: whether this capture needs it.
        only: of a function, or of what reads a property: the calls that are for the replacement (`_C.patched_call`);
            all others go to what was there, without running any Python.
    """

    owner: Any
    name: str
    make: Callable[[Any, TraceState], Any]
    elsewhere: Callable[..., Any] | None = None
    default: Any = _MISSING
    by_code: bool = False
    during: str = TRACE
    when: Callable[[TraceState], bool] = _always
    only: Callable[[TraceState], Any] | None = None


@dataclasses.dataclass(frozen=True)
class Around:
    """A context manager that a capture runs in; what it changes must be for the capturing thread alone."""

    enter: Callable[[TraceState], contextlib.AbstractContextManager[Any]]
    during: str = TRACE
    when: Callable[[TraceState], bool] = _always


@functools.cache
def entries() -> tuple[Patch | Around, ...]:
    """Every entry of every file of patches/, in the order in which they are put in place."""
    folder = f"{__package__}.patches"
    paths = importlib.import_module(folder).__path__
    names = [found.name for found in pkgutil.walk_packages(paths, f"{folder}.") if not found.ispkg]
    files = [importlib.import_module(name) for name in names]
    files.sort(key=lambda file: (getattr(file, "ORDER", 0), file.__name__))
    return tuple(entry for file in files for entry in file.PATCHES)


@contextlib.contextmanager
def installed(state: TraceState, during: str = TRACE) -> Iterator[None]:
    """Within it, what this capture needs is in place."""
    with contextlib.ExitStack() as stack:
        before = state.place
        state.place = lambda patch: stack.enter_context(_placed(patch, state))
        stack.callback(setattr, state, "place", before)
        for entry in entries():
            if entry.during != during or not entry.when(state):
                continue
            stack.enter_context(_placed(entry, state) if isinstance(entry, Patch) else entry.enter(state))
        yield


def _placed(patch: Patch, state: TraceState) -> contextlib.AbstractContextManager[None]:
    owner = sys.modules.get(patch.owner) if isinstance(patch.owner, str) else patch.owner
    if isinstance(patch.owner, str) and not hasattr(owner, patch.name):
        return contextlib.nullcontext()
    if patch.by_code:
        return _recoded(patch, state)
    raw = vars(owner).get(patch.name, _MISSING)
    of_class = isinstance(raw, classmethod)
    original = raw.__func__ if of_class else getattr(owner, patch.name, patch.default)
    replacement = patch.make(original, state)
    if state.audit is not None and state.audit.follows(original):
        replacement = _heard(replacement, original, state.audit)
    if isinstance(replacement, property):
        return _replaced(owner, patch.name, _property_for(replacement, original, patch, state))
    elsewhere = patch.elsewhere or original
    value = _function_for(replacement, elsewhere, state.thread)
    if patch.only is not None:
        called = _C.patched_call(value, original, elsewhere, patch.only(state))
        value = functools.update_wrapper(called, replacement)
    return _replaced(owner, patch.name, classmethod(value) if of_class else value)


def _heard(replacement: Callable[..., Any], original: Callable[..., Any], audit: Any) -> Callable[..., Any]:
    """`replacement`, of which the audit hears as of the original: it reads what is the user's in its place."""

    def call(*args: Any, **kwargs: Any) -> Any:
        audit.replaced(original, (*args, *kwargs.values()))
        return replacement(*args, **kwargs)

    return functools.update_wrapper(call, replacement)


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Within it, `owner` has `value` as its attribute `name`."""
    raw = vars(owner).get(name, _MISSING)
    inner = value.__func__ if isinstance(value, classmethod) else value
    there = getattr(owner, name, None) if raw is _MISSING else raw
    ORIGINALS[id(value)] = ORIGINALS.get(id(there), there)  # which may itself stand in another's place
    ORIGINALS[id(inner)] = raw.__func__ if isinstance(raw, classmethod) else ORIGINALS[id(value)]
    if raw is _MISSING:
        ADDED.add(id(value))
    setattr(owner, name, value)
    try:
        yield
    finally:
        ADDED.discard(id(value))
        for one in {id(value), id(inner)}:
            del ORIGINALS[one]
        if raw is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, raw)


@contextlib.contextmanager
def added(table: dict[str, Any], name: str, value: Any, hidden: Any) -> Iterator[None]:
    """Within it, globals that have no such name have it, in front of the builtin `hidden`."""
    ORIGINALS[id(value)] = hidden
    ADDED.add(id(value))
    table[name] = value
    try:
        yield
    finally:
        table.pop(name, None)
        ADDED.discard(id(value))
        ORIGINALS.pop(id(value), None)


@contextlib.contextmanager
def _recoded(patch: Patch, state: TraceState) -> Iterator[None]:
    """Exchanges the code of a function or a class method: what was bound before (`gelu = Gelu.apply`) runs it, too."""
    function = vars(patch.owner)[patch.name]
    function = function.__func__ if isinstance(function, classmethod) else function
    code, namespace = function.__code__, function.__globals__
    original = types.FunctionType(code, namespace, patch.name, function.__defaults__, function.__closure__)

    # The new code runs with the old function's globals, and has to have its free variables (`__class__`).
    def call(*args: Any, **kwargs: Any) -> Any:
        return globals()["_ortmodule_replacement"](*args, **kwargs)

    place = f"_ortmodule_{patch.name}"
    constants = tuple(place if one == "_ortmodule_replacement" else one for one in call.__code__.co_consts)
    namespace[place] = _function_for(patch.make(original, state), original, state.thread)
    function.__code__ = call.__code__.replace(co_freevars=code.co_freevars, co_consts=constants)
    _DISPATCHES.add(function.__code__)
    try:
        yield
    finally:
        _DISPATCHES.discard(function.__code__)
        function.__code__ = code
        del namespace[place]


# -- threads ----------------------------------------------------------------------------------------------------------


def _function_for(replacement: Callable[..., Any], elsewhere: Callable[..., Any], thread: int) -> Callable[..., Any]:
    """`replacement` for one thread, `elsewhere` for all others."""

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread:
            return replacement(*args, **kwargs)
        return elsewhere(*args, **kwargs)

    _DISPATCHES.add(dispatch.__code__)
    return functools.update_wrapper(dispatch, replacement)


def _property_for(replacement: property, original: Any, patch: Patch, state: TraceState) -> property:
    """The same of a property, which stands in place of a descriptor."""
    thread = state.thread
    get, put = replacement.fget or original.__get__, replacement.fset or original.__set__
    remove = getattr(original, "__delete__", None)

    def dispatch(self: Any) -> Any:
        return get(self) if threading.get_ident() == thread else original.__get__(self)

    def dispatch_set(self: Any, value: Any) -> None:
        (put if threading.get_ident() == thread else original.__set__)(self, value)

    _DISPATCHES.update((dispatch.__code__, dispatch_set.__code__))
    if patch.only is not None:
        return property(
            _C.patched_call(dispatch, original.__get__, original.__get__, patch.only(state)), dispatch_set, remove
        )
    return property(dispatch, dispatch_set, remove)


_DISPATCHES: set[types.CodeType] = set()


def caller() -> types.FrameType:
    """The frame that called the replaced function or property whose replacement runs."""
    frame: Any = sys._getframe(1)
    while frame.f_code not in _DISPATCHES:
        frame = frame.f_back
    while frame.f_code in _DISPATCHES:  # one calls the other where the code of a function was exchanged
        frame = frame.f_back
    return frame


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Holds a Ctrl-C back until its end: in the midst of torch's dispatch an exception may end the whole process.

    A second one is not held back.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    held: list[tuple[int, types.FrameType | None]] = []

    def hold(number: int, frame: types.FrameType | None) -> None:
        if held:
            handler(number, frame)
        held.append((number, frame))

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            handler(*held[0])
