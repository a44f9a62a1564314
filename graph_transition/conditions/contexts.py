"""What depends on where a call is made: context variables, thread-local objects, settings that torch tells."""

from __future__ import annotations

import contextvars
import decimal
import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy

from .condition import MISSING, Before, Change, Condition, Maker, Watch, ordered, plain_text, shown
from .equality import exactly_equal, is_another, is_value

__all__ = [
    "ContextVariableCondition",
    "DecimalContextCondition",
    "LocalCondition",
    "QueryCondition",
    "decimal_context",
    "numpy_settings",
    "uses_numpy",
    "value_in_context",
]

# With what a setting is asked for; functions in Python, without an argument.
_QUESTIONS = ((), ("cpu",), ("cuda",))


def decimal_context(context: decimal.Context | None = None) -> str:
    """By what arithmetic on Decimals goes; what it has met (its flags) does not count."""
    context = decimal.getcontext() if context is None else context
    traps = sorted(signal.__name__ for signal, on in context.traps.items() if on)
    return f"{context.prec} {context.rounding} {context.Emin} {context.Emax} {context.clamp} {traps}"


def numpy_settings() -> tuple[Any, ...]:
    """By what numpy raises errors, warns and writes numbers."""
    return (*numpy.geterr().values(), *numpy.get_printoptions().values())


def uses_numpy(values: Iterable[Any]) -> bool:
    """Whether numpy, or something of it, is among the values."""
    names = (v.__name__ if type(v) is types.ModuleType else getattr(type(v), "__module__", "") for v in values)
    return any(str(name).partition(".")[0] == "numpy" for name in names)


def value_in_context(variable: contextvars.ContextVar[Any]) -> Any:
    """What the variable holds here: its own default where it is not set, MISSING where it has none."""
    try:
        return variable.get()
    except LookupError:
        return MISSING


class DecimalContextCondition(Condition):
    """The same context of decimal, with the same settings."""

    kind = "context of decimal"
    __slots__ = ("_context", "_text")

    def __init__(self, context: decimal.Context) -> None:
        self._context = context
        self._text = decimal_context(context)

    def refusal(self, now: Any) -> str | None:
        text = decimal_context(now) if now is self._context else shown(now)
        return None if text == self._text else f"changed from {self._text} to {text}"

    def stored(self) -> tuple[frozenset[str], Any]:
        return frozenset(), self._text

    def watches(self, now: Any) -> Iterator[Watch]:
        yield "call", functools.partial(decimal_context, now), self._text


class ContextVariableCondition(Condition):
    """The same context variable, with the same value in the caller's context, or its own default."""

    kind = "context variable"
    __slots__ = ("_variable", "_part", "_first", "_unset")

    def __init__(self, variable: contextvars.ContextVar[Any], part: Callable[[Any], Condition]) -> None:
        self._variable = variable
        self._first = variable.get(MISSING)
        self._unset = self._first is MISSING
        value = value_in_context(variable)
        self._part = None if value is MISSING else part(value)

    def is_set_inside(self) -> bool:
        """Whether the traced forward has set it, so that what it holds is none of the caller's."""
        return self._variable.get(MISSING) is not self._first

    def forget(self) -> None:
        self._first = None

    def refusal(self, now: Any) -> str | None:
        if now is not self._variable:
            return f"changed to {shown(now)}"
        return "was set, or is no longer" if (now.get(MISSING) is MISSING) != self._unset else None

    def parts(self, now: Any) -> Iterator[tuple[str, Condition, Any]]:
        if self._part is not None:
            yield ".get()", self._part, now.get()

    def restore(self, value: Any, original: Callable[[Condition], Any]) -> None:
        if self._part is not None and value_in_context(value) is not original(self._part):
            value.set(original(self._part))

    def stored(self) -> tuple[frozenset[str], Any]:
        return frozenset(), self._unset

    def watches(self, now: Any) -> Iterator[Watch]:
        yield "call", functools.partial(now.get, MISSING), now.get(MISSING)


def _names_on(local: Any) -> tuple[str, ...]:
    return tuple(vars(local))


class LocalCondition(Condition):
    """The same `threading.local`, with the same attributes on the caller's thread."""

    kind = "thread-local object"
    __slots__ = ("_local", "_parts", "_whole")

    def __init__(self, local: Any) -> None:
        self._local = local
        self._whole: tuple[str, ...] | None = None
        self._parts: dict[str, Condition | None] = {}

    def grow(self, names: frozenset[str], whole: bool, part: Callable[[Any], Condition]) -> list[tuple[str, Any]]:
        found = []
        if whole and self._whole is None:
            self._whole = _names_on(self._local)
        for name in (*vars(self._local), *names) if whole else names:
            if name.startswith("__"):
                continue
            value = getattr(self._local, name, MISSING)
            if name not in self._parts:
                self._parts[name] = None if value is MISSING else part(value)
            if value is not MISSING:
                found.append((name, value))
        return found

    def refusal(self, now: Any) -> str | None:
        if now is not self._local:
            return f"changed to {shown(now)}"
        for name, part in self._parts.items():
            if (getattr(now, name, MISSING) is MISSING) != (part is None):
                return f"has got or lost '{name}'"
        return None if self._whole in (None, _names_on(now)) else "has other attributes, or in another order"

    def parts(self, now: Any) -> Iterator[tuple[str, Condition, Any]]:
        for name, part in self._parts.items():
            if part is not None:
                yield f".{name}", part, getattr(now, name)

    def changed(self, now: Any, before: Before) -> list[Change]:
        changes = []
        for name, part in self._parts.items():
            held, was = before.own(getattr(now, name, MISSING)), MISSING if part is None else before.original(part)
            if is_another(held, was):
                changes.append(Change(f".{name}", name, held))
        return changes

    def set(self, now: Any, name: str, value: Any) -> None:
        if value is not MISSING:
            setattr(now, name, value)
        elif hasattr(now, name):
            delattr(now, name)

    def restore(self, value: Any, original: Callable[[Condition], Any]) -> None:
        for name, part in self._parts.items():
            self.set(value, name, MISSING if part is None else original(part))

    def stored(self) -> tuple[frozenset[str], Any]:
        return frozenset(self._parts), ordered(self._whole)

    def look_up(self, now: Any, names: frozenset[str], further: Any, maker: Maker) -> None:
        self.grow(names, further is not None, maker.part)

    def watches(self, now: Any) -> Iterator[Watch]:
        if self._whole is not None:
            yield "call", functools.partial(_names_on, now), self._whole
        for name in self._parts:
            yield "attribute", now, name, getattr(now, name, MISSING)


class QueryCondition(Condition):
    """A function that tells a setting, without an argument (`torch.get_num_threads`) or for a type of device
    (`torch.get_autocast_dtype`).
    """

    kind = "setting"
    __slots__ = ("_function", "_asked", "_answer")

    @classmethod
    def answers(cls, function: Callable[..., Any]) -> bool:
        """Whether the function needs no more than that, and gives a plain value."""
        return bool(cls(function)._asked)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        questions = _QUESTIONS if isinstance(function, types.BuiltinFunctionType) else _QUESTIONS[:1]
        self._asked = tuple(arguments for arguments in questions if _is_answered(function, arguments))
        self._answer = _answers(function, self._asked)

    def refusal(self, now: Any) -> str | None:
        if now is not self._function:
            return f"changed to {shown(now)}"
        answer = _answers(now, self._asked)
        return None if exactly_equal(answer, self._answer) else f"changed from {self._answer!r} to {answer!r}"

    def stored(self) -> tuple[frozenset[str], Any]:
        return frozenset(), plain_text(self._answer)

    def watches(self, now: Any) -> Iterator[Watch]:
        ask = now if self._asked == ((),) else functools.partial(_answers, now, self._asked)
        yield "call", ask, self._answer


def _is_answered(function: Callable[..., Any], arguments: tuple[str, ...]) -> bool:
    try:
        return is_value(function(*arguments))
    except Exception:
        return False


def _answers(function: Callable[..., Any], asked: tuple[tuple[str, ...], ...]) -> Any:
    return function() if asked == ((),) else tuple(function(*arguments) for arguments in asked)
