"""Buffers that a traced forward assigns anew: `self.mean = 0.9 * self.mean + 0.1 * x.mean(0)`.

A trace knows a buffer by the tensor that it began with, so it would forget the new one. Here the new values are written
into that tensor at the end of the forward, which makes them a change of the buffer like any other. What no write can
say (another shape or dtype, a buffer that was not there, a parameter, whether one is trained) is named, and the forward
runs in PyTorch.

Not here: plain attributes (module_reads.py), writes into a tensor (writes.py).
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

    def finish(self) -> list[str]:
        """Called after it: writes what was assigned, gives the modules back what they held, and returns the names of
        what cannot be written.
        """
        refused = [f"requires_grad of {name}" for name, tensor, was in self._trained if tensor.requires_grad != was]
        writes: list[tuple[torch.Tensor, torch.Tensor]] = []
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
                        writes.append((was, value))
                    else:
                        refused.append(f"{owner}.{name}".lstrip("."))
                now.clear()
                now.update(held)
        values = [value.detach().clone() for _, value in writes]  # two buffers may have changed places
        for (was, _), value in zip(writes, values, strict=True):
            (was.detach() if was.requires_grad else was).copy_(value)
        return refused


def _fits(was: torch.Tensor, value: torch.Tensor) -> bool:
    same_kind = (was.dtype, was.device, was.dim()) == (value.dtype, value.device, value.dim())
    return same_kind and was.shape == value.shape
