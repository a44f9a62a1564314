"""Generators of torch: a forward may ask for their seed and their state.

Torch's default generators move with every draw, also of the graphs; of those only the seed counts. Not here: who draws
from a generator of one's own, which is no part of a graph (capture).

All that a generator of Python's tells, it tells by methods in C, which end a trace (audit/purity.py); one that C code
has called unheard shows in its state after the trace.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...capture.torch_private import outside_the_trace
from .condition import Before, Change, Condition, NotStorable, Watch, shown

__all__ = ["GeneratorCondition", "RandomCondition", "is_default_generator"]


class GeneratorCondition(Condition):
    """A generator of the same device, with the same seed and in the same state."""

    kind = "generator"
    __slots__ = ("_generator", "_facts", "_state")

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._facts = _facts_of(generator)
        with outside_the_trace():
            self._state: torch.Tensor | None = generator.get_state()

    def refusal(self, now: Any) -> str | None:
        if type(now) is not type(self._generator):
            return f"changed to {shown(now)}"
        if _facts_of(now) == self._facts:
            return None
        return "(a generator) has another seed, or was drawn from"

    def restore(self, value: Any, original: Callable[[Condition], Any]) -> None:
        with outside_the_trace():
            value.set_state(self._state)

    def forget(self) -> None:
        self._state = None

    def stored(self) -> tuple[frozenset[str], Any]:
        raise NotStorable("a generator")

    def watches(self, now: Any) -> Iterator[Watch]:
        yield "call", functools.partial(_facts_of, now), self._facts


class RandomCondition(Condition):
    """The generator that an object of Python's `random.Random` is."""

    kind = "generator of Python's"
    __slots__ = ("_state",)

    def __init__(self, value: random.Random) -> None:
        self._state = _python_state(value)

    def refusal(self, now: Any) -> str | None:
        return None if isinstance(now, random.Random) else f"changed to {shown(now)}"

    def changed(self, now: Any, before: Before) -> list[Change]:
        return [Change("", None, now)] if _python_state(now) != self._state else []

    def restore(self, value: Any, original: Callable[[Condition], Any]) -> None:
        if self._state is not None:
            random.Random.setstate(value, self._state)

    def forget(self) -> None:
        self._state = None

    def stored(self) -> tuple[frozenset[str], Any]:
        raise NotStorable("a generator")


def _python_state(value: random.Random) -> tuple[Any, ...] | None:
    return None if isinstance(value, random.SystemRandom) else random.Random.getstate(value)


def is_default_generator(generator: Any) -> bool:
    """Whether it is one that torch's operators draw from when they are given none."""
    return generator is torch.default_generator or any(generator is one for one in torch.cuda.default_generators)


def _facts_of(generator: torch.Generator) -> tuple[Any, ...]:
    with outside_the_trace():
        drawn = b"" if is_default_generator(generator) else generator.get_state().numpy().tobytes()
    return str(generator.device), generator.initial_seed(), drawn
