"""Buffers that a traced forward assigns anew: `self.mean = 0.9 * self.mean + 0.1 * x.mean(0)`.

A trace knows a buffer by the tensor that it began with, so it would forget the new one. Here the new tensors are what
the forward leaves on its modules, set again by every call: the old ones stay as they are, for whoever holds them, and a
new one has the history that it has in eager. What would need a graph for each call (another shape or dtype), a buffer
that was not there, a parameter, and whether one is trained are named, and the forward runs in PyTorch.

Not here: plain attributes (side_outputs.py), writes into a tensor (writes.py).
"""

from __future__ import annotations

import torch

__all__ = ["AssignedTensors"]

_Table = dict[str, torch.Tensor | None]


class AssignedTensors:
    """What the modules of a trace hold at its beginning.

    Args:
        root: the module that is traced.
    """

    def __init__(self, root: torch.nn.Module) -> None:
        # A forward in TorchScript assigns nothing, and its tables are no dicts.
        modules = [(name, module) for name, module in root.named_modules()]
        self._names = {module: name for name, module in modules if not isinstance(module, torch.jit.ScriptModule)}
        self._buffers: dict[torch.nn.Module, _Table] = {}
        self._parameters: dict[torch.nn.Module, _Table] = {}
        self._trained: list[tuple[str, torch.Tensor, bool]] = []

    def begin(self) -> None:
        """Called by the traced forward before the module's own, with the trace's tensors in their places."""
        self._buffers = {module: dict(module._buffers) for module in self._names}
        self._parameters = {module: dict(module._parameters) for module in self._names}
        self._trained = [
            (f"{self._names[module]}.{name}".lstrip("."), tensor, tensor.requires_grad)
            for module, table in self._parameters.items()
            for name, tensor in table.items()
            if tensor is not None
        ]

    def finish(self) -> tuple[list[tuple[torch.nn.Module, str, torch.Tensor]], list[str]]:
        """Called after it: gives the modules back what they held, and returns (module, name, value) of the buffers that
        were assigned and the names of what no graph can repeat.
        """
        refused = [f"requires_grad of {name}" for name, tensor, was in self._trained if tensor.requires_grad != was]
        left: list[tuple[torch.nn.Module, str, torch.Tensor]] = []
        for module, owner in self._names.items():
            for held, now in (
                (self._buffers[module], module._buffers),
                (self._parameters[module], module._parameters),
            ):
                if len(held) == len(now) and all(now.get(name) is was for name, was in held.items()):
                    continue
                for name in {**held, **now}:
                    was, value = held.get(name), now.get(name)
                    if value is was and name in held:
                        continue
                    if now is module._buffers and was is not None and value is not None and _fits(was, value):
                        left.append((module, name, value))
                    else:
                        refused.append(f"{owner}.{name}".lstrip("."))
                now.clear()
                now.update(held)
        return left, refused


def _fits(was: torch.Tensor, value: torch.Tensor) -> bool:
    same_kind = (was.dtype, was.device, was.dim()) == (value.dtype, value.device, value.dim())
    return same_kind and was.shape == value.shape
