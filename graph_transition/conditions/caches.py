"""`functools.lru_cache`: what was called before is not called again, and so what a cache holds is state.

A forward finds results there, adds to them, and may push others out. What the cache holds after the trace, it has to
hold before a call that the graph is used for: the same calls find their results then. What others have asked since
does not count, unless what the trace asked is held no longer: which calls would find something is not known then, and
the cache has to be the same. What a forward reads of the objects that a cache gives counts as well. A trace of which
no graph is kept leaves the cache as it was: the call in PyTorch asks again, and what it runs then is not run twice.
That is also so where a trace has added tensors, which are no real ones, if the next trace finds PyTorch's; where it
would not, as a key is a tensor of the call, the graph computes them at each call.

CPython tells what a cache holds to its garbage collector only.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ... import _C
from .condition import Condition, Maker, NotStorable, Watch, digest, plain_text, shown
from .equality import exactly_equal, is_value

__all__ = ["CacheCondition", "cached_in", "results_in"]

_MOST_RESULTS = 512
Result = tuple[Any, Any]  # what was asked for, and what the answer was


class CacheCondition(Condition):
    """A cached function that holds the same results, of a function that is the same."""

    kind = "cache"
    __slots__ = ("_function", "_before", "_asked", "_results", "_whole", "_parts")

    def __init__(self, value: Any, part: Callable[[Any], Condition]) -> None:
        self._function = part(value.__wrapped__)
        self._results: list[Result] | None = None
        self._whole = False  # whether nothing may be held besides
        before = results_in(value)
        self._before: list[Result] | None = before  # as long as it may have to be put back
        self._asked = _asked_of(value)
        self._parts = _parts_of(before, part)

    def lasts(self, value: Any) -> bool:
        """Whether the next call finds what PyTorch adds where the trace has added something: nothing is pushed out."""
        before = {id(key) for key, _ in self._before or ()}
        return _asked_of(value)[1] - self._asked[1] == sum(id(key) not in before for key, _ in results_in(value))

    def take_back(self, value: Any, whole: bool = False) -> None:
        """Gives the cache what it held before the trace.

        Args:
            value: the cache.
            whole: whether a graph is kept, which computes what the trace has asked for at each call.
        """
        if self._before is not None and not _same(results_in(value), self._before):
            _refill(value, self._before)
            self._asked = _asked_of(value)
        self._whole |= whole

    def settle(self, now: Any, part: Callable[[Any], Condition]) -> str | None:
        hits, misses = _asked_of(now)
        self._results = results_in(now)
        self._parts = _parts_of(self._results, part)
        before = self._before or []
        lost = not _holds(now, before)
        if lost and hits != self._asked[0]:
            return "a cache that loses results within a call"  # which the forward may have found there
        self._whole |= lost or misses - self._asked[1] != len(self._results) - len(before) or not self._results
        return "a cache of too many results to be compared" if len(self._results) > _MOST_RESULTS else None

    def refusal(self, now: Any) -> str | None:
        if not isinstance(now, functools._lru_cache_wrapper):
            return f"changed from a cached function to {shown(now)}"
        return "(a cached function) remembers other calls" if self._found(now) is None else None

    def parts(self, now: Any) -> Iterator[tuple[str, Condition, Any]]:
        yield "", self._function, now.__wrapped__
        for held, part in self._parts:  # `refusal` has found these very objects there
            yield " (its results)", part, held

    def stored(self) -> tuple[frozenset[str], Any]:
        if self._parts or self._results is None:
            raise NotStorable("a cached function, of something else than plain values,")
        results = sorted([digest(_text(key)), digest(result)] for key, result in self._results)
        return frozenset(), [self._whole, results]

    def look_up(self, now: Any, names: frozenset[str], further: Any, maker: Maker) -> None:
        self._whole, wanted = further[0], {key for key, _ in further[1]}
        found = [(key, result) for key, result in results_in(now) if _is_plain(key)]
        self._results = [pair for pair in found if digest(_text(pair[0])) in wanted]
        self._parts = _parts_of(self._results, maker.part)
        self._before = None

    def watches(self, now: Any) -> Iterator[Watch]:
        yield "call", functools.partial(_holds, now, self._found(now) or [], self._whole), True

    def _found(self, now: Any) -> list[Result] | None:
        """What `now` holds of what was held; plain values may have been computed anew. None where some is missing."""
        if self._results is None:  # the trace goes on
            return []
        there = results_in(now)
        if self._whole and len(there) != len(self._results):
            return None
        by_identity = {id(key): (key, result) for key, result in there}
        by_text = None
        found = []
        for key, result in self._results:
            pair = by_identity.get(id(key))
            if pair is None and _is_plain(key):
                if by_text is None:
                    by_text = {_text(pair[0]): pair for pair in there if _is_plain(pair[0])}
                pair = by_text.get(_text(key))
            if pair is None or not exactly_equal(pair[1], result):
                return None
            found.append(pair)
        return found


def cached_in(cache: Any) -> list[Any]:
    """What was asked for, and results."""
    return [held for pair in results_in(cache) for held in pair]


def results_in(cache: Any) -> list[Result]:
    """In the order in which they were asked for, or in that of the calls where the cache has no bound."""
    info = cache.cache_info()
    if info.maxsize is None:
        return list(_table_in(cache).items())
    held = gc.get_referents(cache)  # its type; key, result and type of each link; the dictionary; ...
    first = int(held[0] is type(cache))
    return [(held[i], held[i + 1]) for i in range(first, first + 3 * info.currsize, 3)]


def _table_in(cache: Any) -> dict[Any, Any]:
    """Its dictionary: of results, or of links where it has a bound."""
    held, info = gc.get_referents(cache), cache.cache_info()
    found = held[int(held[0] is type(cache)) + (0 if info.maxsize is None else 3 * info.currsize)]
    assert type(found) is dict
    return found


def _refill(cache: Any, results: list[Result]) -> None:
    """Has a cache hold these results and no others."""
    cache.cache_clear()
    if cache.cache_info().maxsize is None:
        _table_in(cache).update(results)
    elif results:
        _C.fill_cache(cache, _table_in(cache), _LINK, results)


def _same(now: list[Result], before: list[Result]) -> bool:
    return len(now) == len(before) and all(a is c and b is d for (a, b), (c, d) in zip(now, before, strict=True))


def _holds(cache: Any, results: Iterable[Result], whole: bool = False) -> bool:
    """Whether a cache holds these very results, and nothing besides where `whole`."""
    there = {id(key): result for key, result in results_in(cache)}
    wanted = list(results)
    return (len(there) == len(wanted) or not whole) and all(there.get(id(key), there) is r for key, r in wanted)


def _asked_of(cache: Any) -> tuple[int, int]:
    """How many calls have found a result there, and how many have not."""
    info = cache.cache_info()
    return info.hits, info.misses


def _parts_of(results: Iterable[Result], part: Callable[[Any], Condition]) -> list[tuple[Any, Condition]]:
    return [
        (held, part(held))
        for key, result in results
        for held, plain in ((key, _is_plain(key)), (result, is_value(result)))
        if not plain
    ]


def _keyword_mark() -> Any:
    """What stands between a call's arguments and its keywords in a cache."""

    @functools.cache
    def asked(**keywords: Any) -> None:
        """Is asked once."""

    asked(a=1)
    return results_in(asked)[0][0][0]


def _link() -> type:
    """The class of what a bounded cache keeps a result in."""

    @functools.lru_cache(maxsize=1)
    def asked() -> None:
        """Is asked once."""

    asked()
    return type(next(iter(_table_in(asked).values())))


_MARK, _LINK = _keyword_mark(), _link()


def _is_plain(key: Any) -> bool:
    """Whether what was asked for is plain values."""
    return is_value(key) or (type(key) is tuple and all(one is _MARK or is_value(one) for one in key))


def _text(key: Any) -> str:
    if type(key) is not tuple:
        return plain_text(key)
    return f"({', '.join('**' if one is _MARK else plain_text(one) for one in key)})"
