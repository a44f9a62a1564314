"""A module's parameters and buffers, by the names of where they are.

nn.Module's own methods are asked, whatever a class makes of them: checkpoint wrappers leave a part of the names away,
others keep frozen parameters to themselves.
"""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["named_buffers", "named_parameters", "named_tensors"]


def named_parameters(module: nn.Module, again: bool = False) -> list[tuple[str, nn.Parameter]]:
    """Each parameter with its first name; with `again` one for each name."""
    return list(nn.Module.named_parameters(module, remove_duplicate=not again))


def named_buffers(module: nn.Module, again: bool = False) -> list[tuple[str, Tensor]]:
    """As `named_parameters`."""
    return list(nn.Module.named_buffers(module, remove_duplicate=not again))


def named_tensors(module: nn.Module, again: bool = False) -> list[tuple[str, Tensor]]:
    """Parameters, then buffers."""
    return [*named_parameters(module, again), *named_buffers(module, again)]
