"""Symbolic sizes as text.

A size in the graph is an int or an expression over the symbols of the inputs' dims, such as `s53*12`. The text uses
`+ - * // % Max Min` and parentheses alone, so that any reader can evaluate it. Texts are cached: printing sympy is the
slow part of converting a graph.
"""

from __future__ import annotations

import re
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions as torch_functions

from ..errors import CaptureError

__all__ = ["Dim", "SizePrinter", "symbols_of_text", "unbacked_symbols"]

Dim = int | str
_SYMBOL = re.compile(r"\b[a-z]\w*\b")
_UNBACKED = re.compile(r"\bu\d+\b")
_FLOOR_DIVISIONS = tuple(getattr(torch_functions, n) for n in ("FloorDiv", "CleanDiv") if hasattr(torch_functions, n))
_MODULOS = (sympy.Mod, *(getattr(torch_functions, n) for n in ("Mod", "PythonMod") if hasattr(torch_functions, n)))
_EXTREMA = {
    **{c: "Max" for c in (sympy.Max, getattr(torch_functions, "Max", sympy.Max))},
    **{c: "Min" for c in (sympy.Min, getattr(torch_functions, "Min", sympy.Min))},
}


def symbols_of_text(text: Dim) -> set[str]:
    """The symbols of `text`, whatever they stand for."""
    return set() if isinstance(text, int) else set(_SYMBOL.findall(text))


def unbacked_symbols(text: Dim) -> list[str]:
    """The symbols of `text` that stand for data-dependent sizes, such as `u0`."""
    return [] if isinstance(text, int) else sorted(set(_UNBACKED.findall(text)))


class SizePrinter:
    """Turns ints and SymInts of one export into ints or texts."""

    def __init__(self) -> None:
        self._texts: dict[Any, Dim] = {}

    def dim(self, size: int | torch.SymInt) -> Dim:
        """`size` as an int where the export fixed it, else as text.

        Raises:
            CaptureError: the size is computed with something other than integer arithmetic.
        """
        if isinstance(size, int):
            return int(size)
        raw = size.node._expr
        found = self._texts.get(raw)
        if found is None:
            expression = size.node.expr
            found = int(expression) if expression.is_number else _text(expression)
            self._texts[raw] = found
        return found

    def shape(self, fake: torch.Tensor) -> tuple[Dim, ...]:
        """The dims of a fake tensor."""
        return tuple(d if type(d) is int else self.dim(d) for d in fake.shape)


def _text(e: sympy.Expr) -> str:
    if e.is_Symbol or e.is_Integer:
        return str(e)
    if e.is_Add:
        return "(" + " + ".join(_text(a) for a in e.args) + ")"
    if e.is_Mul:
        return "*".join(_factor(a) for a in e.args)
    if e.is_Pow and e.exp.is_Integer and e.exp > 0:
        return "*".join([_factor(e.base)] * int(e.exp))
    if isinstance(e, _FLOOR_DIVISIONS):
        return f"({_factor(e.args[0])}//{_factor(e.args[1])})"
    if isinstance(e, _MODULOS):
        return f"({_factor(e.args[0])} % {_factor(e.args[1])})"
    if type(e) in _EXTREMA:
        return f"{_EXTREMA[type(e)]}({', '.join(_text(a) for a in e.args)})"
    raise CaptureError(f"a tensor size is computed as {e}, which is not integer arithmetic")


def _factor(e: sympy.Expr) -> str:
    text = _text(e)
    return text if e.is_Symbol or e.is_Add or (e.is_Integer and e >= 0) else f"({text})"
