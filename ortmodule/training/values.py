"""What sessions and agents take from Python: tensors, and the options of the engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..errors import InvalidArgumentError

__all__ = ["session_options", "tensor_of"]


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


def session_options(
    device: str | torch.device, dropout: str, matmul: str, memory_budget: float | None, fusion: bool
) -> dict[str, Any]:
    """As `_C` takes them."""
    return {
        "device": str(device),
        "dropout": dropout,
        "matmul": matmul,
        "memory_budget": None if memory_budget is None else float(memory_budget),
        "fusion": bool(fusion),
    }
