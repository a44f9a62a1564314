"""With symbolic sizes, torch's cache of what operators return is filled at an operator's second time.

torch keeps what each traced operator returned, for the next one with inputs of the same sizes; with symbolic sizes to
keep it costs as much as to trace it, since the result is made once more from what is kept. A model of equal layers has
nearly all operators again. In a loop over the rows of a matrix none comes again: half of the time of such a capture
went into what nobody asked for. Not here: what ends a capture that stays slow (pace.py).
"""

from __future__ import annotations

from typing import Any

from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from ..patching import Patch
from ..tracing import TraceState

__all__ = ["PATCHES"]


def _cached_at_second_time(original: Any, state: TraceState) -> Any:
    seen: set[Any] = set()

    def dispatch(mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        try:
            key = mode._cache_key(fake_tensor._CacheKeyState(mode.shape_env), func, args, kwargs)
        except fake_tensor._BypassDispatchCache:
            return original(mode, func, types, args, kwargs)
        if key in seen:
            return original(mode, func, types, args, kwargs)
        seen.add(key)
        return mode._dispatch_impl(func, types, args, kwargs)

    return dispatch


PATCHES = (Patch(FakeTensorMode, "_cached_dispatch_impl", _cached_at_second_time, when=lambda state: state.symbolic),)
