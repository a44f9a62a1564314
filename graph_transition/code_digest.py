"""What a function's code says, as text that another process makes of the same code."""

from __future__ import annotations

import hashlib
import types
from typing import Any

__all__ = ["code_digest"]

_digests: dict[int, tuple[types.CodeType, str]] = {}


def code_digest(code: types.CodeType) -> str:
    """What a function's bytecode says; file names and line numbers do not count."""
    found = _digests.get(id(code))
    if found is None:
        facts = (
            code.co_code, _constants(code.co_consts), code.co_names, code.co_varnames, code.co_freevars,
            code.co_cellvars, code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount,
        )  # fmt: skip
        found = _digests[id(code)] = (code, hashlib.sha256(repr(facts).encode("utf-8", "surrogatepass")).hexdigest())
    return found[1]


def _constants(value: Any) -> Any:
    if isinstance(value, types.CodeType):
        return code_digest(value)
    if isinstance(value, tuple):
        return tuple(map(_constants, value))
    if isinstance(value, frozenset):
        return sorted(repr(_constants(v)) for v in value)
    return repr(value)
