"""What a rank has of a model that is cut: its parameters and buffers under the model's names, and no code.

Not here: which ones (graph_stages.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import nn

__all__ = ["Part", "part_of", "release"]


class Part(nn.Module):
    """A node of the tree of names."""

    def forward(self, *args: Any) -> Any:
        raise RuntimeError(
            "a stage of a pipeline was called with what its graph was not cut for: call pipeline.step() or "
            "pipeline.evaluate(), with batches of one size on all ranks"
        )


def part_of(model: nn.Module, names: Collection[str]) -> Part:
    """A tree that holds these parameters and buffers, the very same, in the model's order."""
    root = Part()
    wanted = set(names)
    for prefix, module in model.named_modules():
        for key, p in module._parameters.items():
            if f"{prefix}.{key}".lstrip(".") in wanted:
                _holder(root, prefix).register_parameter(key, p)
        for key, buffer in module._buffers.items():
            if f"{prefix}.{key}".lstrip(".") in wanted:
                persistent = key not in module._non_persistent_buffers_set
                _holder(root, prefix).register_buffer(key, buffer, persistent)
    return root.train(model.training)


def _holder(root: Part, path: str) -> nn.Module:
    module: nn.Module = root
    for name in path.split(".") if path else ():
        if name not in module._modules:
            module.add_module(name, Part())
        module = getattr(module, name)
    return module


def release(tensors: Iterable[torch.Tensor]) -> None:
    """Frees the memory of parameters that lie on other ranks; they keep shapes and types, which captures look at."""
    for tensor in tensors:
        empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        empty.untyped_storage().resize_(0)
        tensor.data = empty
