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
        _forget_traced_results()


def _forget_traced_results() -> None:
    for found in gc.get_referrers(functools._lru_cache_wrapper):  # an object refers to its type; half get_objects' time
        if type(found) is functools._lru_cache_wrapper and not str(found.__module__).startswith("torch."):
            if any(map(_holds_traced, gc.get_referents(found))):
                found.cache_clear()


def _holds_traced(value: Any) -> bool:
    if type(value) in (list, tuple, dict):
        return any(map(_holds_traced, value.values() if type(value) is dict else value))
    return isinstance(value, FakeTensor)


ORDER = 2  # the first thing when the trace has ended
PATCHES = (Around(_forgetting),)
