"""Execution providers as users name them: what Options, InferenceSession and the environment take.

Not here: what a provider is and how nodes are given to them (csrc/placement).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import InvalidArgumentError

__all__ = ["Provider", "checked_providers"]

Provider = str | tuple[str, Mapping[str, str]]

_NAMES_OF_ONNXRUNTIME = {"CPUExecutionProvider": "cpu", "CUDAExecutionProvider": "cuda"}


def checked_providers(where: str, value: Any) -> tuple[tuple[str, dict[str, str]], ...]:
    """(name, options) of each provider, in order of priority.

    Args:
        where: how errors name the argument.
        value: a list of names, or of pairs of a name and a mapping of options; names separated by commas as one text.

    Raises:
        InvalidArgumentError: anything else.
    """
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list | tuple):
        raise InvalidArgumentError(f"{where} should be a list of names, got {value!r}")
    checked = []
    for one in value:
        name, options = (one, {}) if isinstance(one, str) else _pair(where, one)
        texts = {str(k): ",".join(map(str, v)) if isinstance(v, list | tuple) else str(v) for k, v in options.items()}
        checked.append((_NAMES_OF_ONNXRUNTIME.get(name, name), texts))
    return tuple(checked)


def _pair(where: str, one: Any) -> tuple[str, Mapping[str, Any]]:
    if isinstance(one, list | tuple) and len(one) == 2 and isinstance(one[0], str) and isinstance(one[1], Mapping):
        return one[0], one[1]
    raise InvalidArgumentError(f"{where} should hold names, or (name, options), got {one!r}")
