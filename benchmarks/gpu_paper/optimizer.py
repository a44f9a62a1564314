"""The kernels of an optimizer's step: torch's AdamW by its default and by its fused kernel, and ours.

torch.optim.AdamW on CUDA tensors is a dozen operators over lists of tensors (foreach) unless `fused=True` is asked for.
Its lists are cut as ATen's multi_tensor_apply cuts them (ForeachFunctors and MultiTensorApply.cuh): in so many tensors
by the lists that an operator has, and in 320 chunks of 65536 elements. Ours are of 64 parameters, those of the norm of
128 gradients (csrc/kernels/optimizer). Gradients are floats, of every parameter. Not here: what a kernel costs
(machines.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from .machines import Kernel

TENSORS = {1: 110, 2: 64, 3: 48, 4: 36}  # of a launch, by lists
CHUNK, CHUNKS = 65536, 320


def launches(lists: int, sizes: list[int]) -> int:
    chunks = sum(math.ceil(n / CHUNK) for n in sizes)
    return max(math.ceil(len(sizes) / TENSORS[lists]), math.ceil(chunks / CHUNKS))


class _Lists(TorchDispatchMode):
    """Notes a Kernel for each operator over lists of tensors; the counts of steps are the host's."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[Kernel] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        name = op.overloadpacket.__name__
        given = [a for a in args if isinstance(a, (list, tuple)) and a and isinstance(a[0], torch.Tensor)]
        if name.startswith("_foreach_") and given[0][0].dim():
            sizes = [t.numel() for t in given[0]]
            elements = float(sum(sizes))
            moved = 4 * elements * (len(given) + 1)  # each list is read, one is written
            count = launches(min(4, len(given) + (not name.endswith("_"))), sizes)
            self.kernels.append(Kernel(name, "optimizer", count, moved))
        return out


def default_kernels(make: Callable[[], torch.nn.Module]) -> list[Kernel]:
    """A step of torch.optim.AdamW as it is on CUDA where nothing else is asked for."""
    with FakeTensorMode():
        parameters = [torch.nn.Parameter(p.detach()) for p in make().parameters()]
        for p in parameters:
            p.grad = torch.zeros_like(p)
        optimizer = torch.optim.AdamW(parameters, foreach=True)
        optimizer.step()  # makes the states
        with _Lists() as lists:
            optimizer.step()
    return lists.kernels


def fused_kernels(make: Callable[[], torch.nn.Module]) -> list[Kernel]:
    """A step of torch's fused kernel: parameter, gradient and two moments are read, all but the gradient written."""
    with torch.device("meta"):
        sizes = [p.numel() for p in make().parameters()]
    return [Kernel("_fused_adamw_", "optimizer", launches(4, sizes), 28.0 * sum(sizes))]


# Of ortmodule.optim: bytes of an element and launches of a list, tensors of a list.
OWN = {
    "SGD, momentum": (20.0, 1, 64),  # parameter, gradient and momentum are read, all but the gradient written
    "AdamW": (28.0, 1, 64),
    "LAMB": (40.0, 2, 64),  # the parameter and both moments once more, for the step
    "clip_grad_norm_": (12.0, 2, 128),  # gradients are read for the norm, read and written where it is too large
}


def own_kernels(make: Callable[[], torch.nn.Module], name: str = "AdamW") -> list[Kernel]:
    """A step of ortmodule.optim's, by our kernels."""
    with torch.device("meta"):
        sizes = [p.numel() for p in make().parameters()]
    width, count, listed = OWN[name]
    return [Kernel(name, "optimizer", count * math.ceil(len(sizes) / listed), width * sum(sizes))]
