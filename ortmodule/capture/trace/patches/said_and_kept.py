"""What a forward says (messages.py) and keeps: warnings and logs are heard, not written, while it is traced.

A trace leaves its tensors, which are no real ones, in no `functools.lru_cache` of the user's.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
from collections.abc import Iterator
from typing import Any

from ....errors import FilledCacheError
from ....naming import module_of
from ..leaks import holds_traced
from ..patching import FORWARD, Around, Patch
from ..tracing import TraceState

__all__ = ["PATCHES"]

_MOST_OBJECTS = 20_000  # in one cache


@contextlib.contextmanager
def _forgetting(state: TraceState) -> Iterator[None]:
    try:
        yield
        for cache in state.audit.caches_put_back() if state.audit is not None else ():
            if not state.audit.without(cache, lambda held: holds_traced([held], _MOST_OBJECTS)):
                raise FilledCacheError(f"{cache.__qualname__} keeps tensors of the forward")
    finally:
        put_back = [] if state.audit is None else state.audit.caches_put_back()
        once = state.messages.settle(_every_cache(), put_back)
        if state.audit is not None:
            state.audit.said_once = once
        for cache in _every_cache() if state.audit is None else state.audit.caches():
            watched = any(cache is one for one in put_back)
            if not watched and holds_traced(gc.get_referents(cache), _MOST_OBJECTS):
                cache.cache_clear()


def _every_cache() -> Iterator[Any]:
    """Of the process, which takes a look at every object; an audit knows those that the forward can reach."""
    for found in gc.get_referrers(functools._lru_cache_wrapper):  # an object refers to its type; half get_objects' time
        if type(found) is functools._lru_cache_wrapper and not module_of(found).startswith("torch."):
            yield found


@contextlib.contextmanager
def _heard(state: TraceState) -> Iterator[None]:
    with state.messages.heard():
        yield


def _handled(original: Any, state: TraceState) -> Any:
    def handle(self: logging.Logger, record: logging.LogRecord) -> None:
        if not state.messages.logged(self, record):
            original(self, record)

    return handle


def _asked(original: Any, state: TraceState) -> Any:
    def is_enabled(self: logging.Logger, level: int) -> Any:
        if state.audit is not None and not self.name.startswith(("torch.", "ortmodule")):
            state.audit.root(f"the logger {self.name}", self)
        state.loggers.add(self, level)
        return original(self, level)

    return is_enabled


ORDER = 2  # the first thing when the trace has ended
PATCHES = (
    Around(_forgetting),
    Around(_heard, during=FORWARD),
    Patch(logging.Logger, "handle", _handled, during=FORWARD),
    Patch(logging.Logger, "isEnabledFor", _asked, during=FORWARD, only=lambda state: state.loggers),
)
