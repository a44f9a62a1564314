"""A remainder of a symbolic size is written as what it leaves of the quotient: `s % 64` is `s - 64*(s//64)`.

Sequences are filled up to whole chunks, `pad = (64 - length % 64) % 64`, cut into chunks and cut back. Sympy has no
rule by which `length + pad` is a multiple of 64, so torch would fix the size, or carry the remainders through each size
that comes after. In quotients the sum is `-64*(-length//64)` by itself.
"""

from __future__ import annotations

from typing import Any

from torch.fx.experimental.sym_node import SymNode
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

from ...patching import Patch
from ...tracing import TraceState

__all__ = ["PATCHES"]


def _by_quotient(original: Any, state: TraceState) -> Any:
    def mod(self: SymNode, other: SymNode) -> SymNode:
        found: SymNode = original(self, other)
        if not isinstance(found._expr, (Mod, PythonMod)):
            return found
        size, divisor = found._expr.args
        if not divisor.is_Integer or divisor <= 0:
            return found
        return SymNode(size - divisor * FloorDiv(size, divisor), found.shape_env, found.pytype, found.hint)

    return mod


PATCHES = (Patch(SymNode, "mod", _by_quotient),)
