"""`functools.lru_cache` of the user's: emptied after a trace where it holds a tensor of it, which is no real one."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterator
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor

from ..patching import Around
from ..tracing import TraceState

__all__ = ["PATCHES"]


@contextlib.contextmanager
def _forgetting(state: TraceState) -> Iterator[None]:
    try:
        yield
    finally:
        for cache in _every_cache() if state.audit is None else state.audit.caches():
            if any(map(_holds_traced, gc.get_referents(cache))):
                cache.cache_clear()


def _every_cache() -> Iterator[Any]:
    """Of the process, which takes a look at every object; an audit knows those that the forward can reach."""
    for found in gc.get_referrers(functools._lru_cache_wrapper):  # an object refers to its type; half get_objects' time
        if type(found) is functools._lru_cache_wrapper and not str(found.__module__).startswith("torch."):
            yield found


def _holds_traced(value: Any) -> bool:
    if type(value) in (list, tuple, dict):
        return any(map(_holds_traced, value.values() if type(value) is dict else value))
    return isinstance(value, FakeTensor)


ORDER = 2  # the first thing when the trace has ended
PATCHES = (Around(_forgetting),)
