"""The table of translators and the decorator that fills it.

A translator is called as `f(c, *args, **kwargs)` with the arguments of the aten schema, in which tensors are Values and
symbolic sizes are SymInts. It returns the Value (or a tuple of Values) of the result, or NotImplemented to leave the
node to the ATen fallback; in that case it must not have emitted anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["TRANSLATORS", "Translator", "translates"]

Translator = Callable[..., Any]
TRANSLATORS: dict[str, Translator] = {}
_F = TypeVar("_F", bound=Translator)


def translates(*names: str) -> Callable[[_F], _F]:
    """Registers a translator for operators, named `add.Tensor` or, with the default overload, `relu`.

    Those of other libraries than aten have their namespace in front: `vision::nms`.
    """

    def register(function: _F) -> _F:
        for name in names:
            assert name not in TRANSLATORS, name
            TRANSLATORS[name] = function
        return function

    return register
