"""The kernels of an eager step, from a trace of its ATen operators over fake tensors: nothing is computed or stored.

The trace runs on fake CPU tensors under CPU autocast, because a build of torch without CUDA can make no CUDA tensors.
Two composites that CUDA does not take apart as the CPU does are put in CUDA's place: attention is flash attention,
dropout is one kernel with a stored mask. What remains that differs from CUDA's autocast: layer norm and losses of
bfloat16 values, which CUDA widens first (one pass for BERT's head, tiny ones for the losses of pictures).
Not here: what a kernel costs (machines.py).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from .machines import Kernel

# Kernels of an operator where there is more than one; from ATen's CUDA sources.
LAUNCHES = {
    "native_layer_norm_backward": 2,  # of x; of weight and bias
    "_scaled_dot_product_flash_attention_backward": 3,  # sums of rows, the gradients, dq from its float32 sums
    "embedding_dense_backward": 6,  # zeros, a sort in several passes, the sums
    "nll_loss_backward": 2,  # zeros, one element a row
    "convolution_backward": 2,
    "max_pool2d_with_indices_backward": 2,
    "native_batch_norm_backward": 2,
}
# Operators that launch nothing although their schema does not say that they give a view.
STILL = {
    "_unsafe_view",
    "empty",
    "empty_like",
    "new_empty",
    "empty_strided",
    "detach",
    "device",
    "sym_size",
    "lift_fresh",
}
UNITS = {"mm": "product", "addmm": "product", "bmm": "product", "baddbmm": "product"}


def moved(tensor: torch.Tensor) -> float:
    """Bytes that a pass over the tensor moves: what is broadcast lies there once."""
    elements = math.prod(n for n, stride in zip(tensor.shape, tensor.stride()) if stride != 0 or n == 0)
    return float(elements * tensor.element_size())


def bytes_of(name: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> float:
    """Bytes read and written; operators that read a part of an input, or one twice, are told apart."""
    read, written = sum(map(moved, inputs)), sum(map(moved, outputs))
    if name == "embedding":
        return moved(inputs[1]) + 2 * written  # of the table, what is looked up
    if name in (
        "nll_loss_forward",
        "nll_loss_backward",
    ):  # of a row of scores one sector; its gradient is written whole
        return (32.0 + 8.0) * inputs[-2 if name.endswith("backward") else 1].numel() + written
    if name in ("native_layer_norm_backward", "native_batch_norm", "_native_batch_norm_legit_functional"):
        return read + written + sum(map(moved, inputs[: 2 if "layer" in name else 1]))
    if name == "native_batch_norm_backward":
        return read + written + moved(inputs[0]) + moved(inputs[1])
    if name == "convolution_backward":
        return read + written + moved(inputs[0])  # dy, once for each gradient
    if name == "_scaled_dot_product_flash_attention_backward":
        return read + written + 2 * 2 * moved(outputs[0])  # dq's sums, in float32
    if name.startswith(("zeros", "ones", "full", "fill", "new_zeros", "arange", "bernoulli")):
        return written
    return read + written


def causal_share(name: str, args: Any) -> float:
    """Part of the score matrix that flash attention computes."""
    if "flash_attention" not in name:
        return 1.0
    backward = name.endswith("backward")
    q, place = args[1 if backward else 0], 11 if backward else 4
    causal = len(args) > place and args[place]
    return (q.shape[-2] + 1) / (2 * q.shape[-2]) if causal else 1.0


class Trace(TorchDispatchMode):
    """Notes a Kernel for each operator that is dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[Kernel] = []
        self.half = "forward"

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        packet = op.overloadpacket
        name = packet.__name__
        if op.namespace == "prim":
            return out
        if op.is_view or name in STILL:
            self.kernels.append(Kernel(name, self.half, 0, 0.0))
            return out
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        outputs = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        kernel = Kernel(name, self.half, LAUNCHES.get(name, 1), bytes_of(name, inputs, outputs))
        if packet in flop_registry:
            kernel.flops = float(flop_registry[packet](*args, **(kwargs or {}), out_val=out)) * causal_share(name, args)
            kernel.unit = UNITS.get(name, "attention" if "attention" in name else "convolution")
            factors = [t for t in inputs if t.dim() > 1]
            kernel.dtype = "tf32" if factors[0].dtype == torch.float32 else "bf16"
        self.kernels.append(kernel)
        return out


def flash(q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False) -> Any:
    if attn_mask is not None:
        raise NotImplementedError("flash attention takes no mask: batches are dense")
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal)[0]


def fused_dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    return torch.native_dropout(x, p, True)[0] if training and p > 0 else x


@contextlib.contextmanager
def as_cuda_does() -> Iterator[None]:
    attention = mock.patch.object(F, "scaled_dot_product_attention", flash)
    with attention, mock.patch.object(F, "dropout", fused_dropout):
        yield


def eager_kernels(make: Callable[[], torch.nn.Module], batch: tuple[torch.Tensor, ...]) -> list[Kernel]:
    """Forward and backward of a module that returns its loss, under autocast to bfloat16.

    Args:
        make: makes the module; called where all tensors are fake.
        batch: real tensors, of which sizes and types alone are read.
    """
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        module = make().train()
        inputs = [fake.from_tensor(t) for t in batch]
        with Trace() as trace, as_cuda_does():
            with torch.autocast("cpu", torch.bfloat16):
                loss = module(*inputs)
            trace.half = "backward"
            loss.backward()
    return trace.kernels
