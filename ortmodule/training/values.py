"""What sessions and agents take from Python: tensors, and the options of the engine."""

from __future__ import annotations

from typing import Any, TypedDict

import numpy as np
import torch

from ..errors import InvalidArgumentError, nearest

__all__ = ["EngineOptions", "session_options", "tensor_of"]


def tensor_of(value: Any, what: str = "a step") -> torch.Tensor:
    """A tensor or an array as a tensor without history, on the same memory; numbers and lists as a new one."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, np.ndarray | np.generic | bool | int | float | list | tuple):
        try:
            return torch.as_tensor(value)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"{what} takes tensors and arrays; {error}") from error
    raise InvalidArgumentError(f"{what} takes tensors and arrays, got {type(value).__name__}")


class EngineOptions(TypedDict, total=False):
    """What `TrainingSession` and `TrainingAgent` take as keywords beside their own."""

    device: str | torch.device
    """Where it runs, as torch spells it; "cpu"."""
    dropout: str
    """As `Options.dropout`."""
    matmul: str
    """As `Options.matmul`."""
    memory_budget: float | None
    """As `Options.memory_budget`."""
    fusion: bool
    """As `Options.fusion`; True."""
    allow_aten_operators: bool
    """Let graphs call operators of PyTorch by name, some of which read files; False. Only for files that you trust."""


def session_options(given: EngineOptions) -> dict[str, Any]:
    """As `_C` takes them.

    Raises:
        InvalidArgumentError: one that is none; the nearest one is named.
    """
    known = list(EngineOptions.__annotations__)
    for name in given:
        if name not in known:
            raise InvalidArgumentError(f"there is no option {name!r}{nearest(name, known)}")
    budget = given.get("memory_budget")
    return {
        **given,
        "device": str(given.get("device", "cpu")),
        "memory_budget": None if budget is None else float(budget),
    }
