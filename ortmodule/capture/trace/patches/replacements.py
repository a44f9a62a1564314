"""Functions of torch that a trace should not see as they are, as the same in operators that it takes well.

- `take_along_dim` takes the sizes as numbers; becomes `gather`.
- `fill_diagonal_` writes through `as_strided`, for which all has to be functionalised; becomes a masked fill.
- `cov` and `corrcoef` look at a number that they make from the size; become products.
- `BatchNorm(momentum=None)` reads its count of calls as a Python number; the factor becomes a tensor.
- `nn.Transformer` looks at its mask's values, only to compute the same faster; takes the caller's word. Where it leaves
  padding away without gradients, its results are 0 there: a `CaptureError`.
- `x[i]` under vmap, which an attention mask may be made with, has a node of its own; becomes the plain operator.
- `torch.cond` is a trace of its own, which needs Dynamo; becomes a Python branch.
"""

from __future__ import annotations

import builtins
from typing import Any

import torch
import torch._dynamo._trace_wrapped_higher_order_op as torch_vmap_items
import torch.nn.modules.batchnorm as torch_batchnorm
import torch.nn.modules.transformer as torch_transformer
from torch._subclasses.fake_tensor import FakeTensor

from ....errors import CaptureError
from ..patching import Patch
from ..tracing import TraceState

__all__ = ["PATCHES"]


def _takes_any_position() -> bool:
    """Whether `take_along_dim` counts round and round, from the end too, as later versions of torch do."""
    try:
        return torch.take_along_dim(torch.zeros(2), torch.tensor([-3]), 0).numel() == 1
    except (IndexError, RuntimeError):
        return False


_TAKES_ANY_POSITION = _takes_any_position()


def _take_along_dim(original: Any, state: TraceState) -> Any:
    """As `gather`, whose sizes stay symbolic."""

    def take(x: torch.Tensor, indices: torch.Tensor, dim: int | None = None, **kwargs: Any) -> torch.Tensor:
        if kwargs or x.dim() != indices.dim() or dim is None:
            return original(x, indices, dim, **kwargs)
        sizes = [b if isinstance(a, int) and a == 1 else a for a, b in zip(x.shape, indices.shape, strict=True)]
        axis = dim % x.dim() if x.dim() else 0
        if sizes and _TAKES_ANY_POSITION and isinstance(x.shape[axis], int) and x.shape[axis] == 0:
            return original(x, indices, dim)
        if sizes and _TAKES_ANY_POSITION:
            indices = indices.remainder(x.shape[axis])
        along, taken = ([*sizes[:axis], t.shape[axis], *sizes[axis + 1 :]] for t in (x, indices))
        return x.expand(along).gather(axis, indices.expand(taken)) if sizes else original(x, indices, dim)

    return take


def _fill_diagonal(original: Any, state: TraceState) -> Any:
    def fill(self: torch.Tensor, fill_value: Any, wrap: bool = False) -> torch.Tensor:
        if wrap or self.dim() != 2:
            return original(self, fill_value, wrap)
        rows, columns = (torch.arange(size, device=self.device) for size in self.shape)
        return self.masked_fill_(rows[:, None] == columns, fill_value)

    return fill


def _cov(original: Any, state: TraceState) -> Any:
    def cov(
        input: torch.Tensor, *, correction: int = 1, fweights: torch.Tensor | None = None,
        aweights: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        plain = fweights is None and aweights is None and input.is_floating_point() and input.dim() in (1, 2)
        degrees = input.shape[-1] - correction if plain else 0
        if not plain or degrees <= 0:
            return original(input, correction=correction, fweights=fweights, aweights=aweights)
        rows = input if input.dim() == 2 else input[None]
        centred = rows - rows.mean(1, keepdim=True)
        result = centred @ centred.t() / degrees
        return result if input.dim() == 2 else result[0, 0]

    return cov


def _corrcoef(original: Any, state: TraceState) -> Any:
    def corrcoef(input: torch.Tensor) -> torch.Tensor:
        if not input.is_floating_point() or input.dim() != 2:
            return original(input)
        products = torch.cov(input)
        deviations = products.diagonal().sqrt()
        return (products / deviations[:, None] / deviations).clamp(-1, 1)

    return corrcoef


def _batch_norm(original: Any, state: TraceState) -> Any:
    """Keeps the factor of a cumulative average (`momentum=None`) a tensor; torch would make a Python number of it."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        cumulative = self.training and self.track_running_stats and self.momentum is None
        if not cumulative or self.num_batches_tracked is None:
            return original(self, x)
        self._check_input_dim(x)
        mean, var = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
        y = torch.nn.functional.batch_norm(x, mean, var, self.weight, self.bias, True, 1.0, self.eps)
        with torch.no_grad():
            factor = 1.0 / self.num_batches_tracked.add_(1)
            self.running_mean.add_((mean - self.running_mean) * factor)
            self.running_var.add_((var - self.running_var) * factor)
        return y

    return forward


def _causal_hint(original: Any, state: TraceState) -> Any:
    def hint(mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True

    return hint


def _cond(original: Any, state: TraceState) -> Any:
    def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
        return true_fn(*operands) if pred else false_fn(*operands)

    return cond


def _plain_index(original: Any, state: TraceState) -> Any:
    return torch.ops.aten.index


_BOTH = {"take_along_dim": _take_along_dim, "cov": _cov, "corrcoef": _corrcoef}


def _length(original: Any, state: TraceState) -> Any:
    """Of a traced tensor `x.shape[0]`: the result of `len` must be an int, which would fix the size."""

    def length(value: Any, /) -> Any:
        if isinstance(value, FakeTensor) and value.dim() > 0:
            return value.shape[0]
        return original(value)

    return length


def _encoder(original: Any, state: TraceState) -> Any:
    def forward(
        self: Any, src: torch.Tensor, mask: Any = None, src_key_padding_mask: Any = None, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        first = self.layers[0]
        nested = getattr(self, "use_nested_tensor", False) and src_key_padding_mask is not None and not first.training
        wanted = torch.is_grad_enabled() and any(t.requires_grad for t in (src, *first.parameters()))
        if nested and not wanted:
            raise CaptureError("nn.TransformerEncoder leaves padding away in evaluation, with nested tensors")
        return original(self, src, mask, src_key_padding_mask, *args, **kwargs)

    return forward


PATCHES = (
    Patch(torch_transformer.TransformerEncoder, "forward", _encoder),
    Patch(builtins, "len", _length, only=lambda _: FakeTensor),
    *(Patch(owner, name, make) for name, make in _BOTH.items() for owner in (torch, torch.Tensor)),
    Patch(torch.Tensor, "fill_diagonal_", _fill_diagonal),
    Patch(torch_batchnorm._BatchNorm, "forward", _batch_norm),
    Patch(torch_transformer, "_detect_is_causal_mask", _causal_hint),
    Patch(torch_vmap_items, "mod_index", _plain_index),
    Patch(torch, "cond", _cond),
)
