"""Functions of torch that a trace should not see as they are, as the same in operators that it takes well.

- `take_along_dim` takes the sizes as numbers; becomes `gather`.
- `fill_diagonal_` writes through `as_strided`, for which all has to be functionalised; becomes a masked fill.
- `cov` looks at a number that it makes from the size; becomes a product.

Not here: when they are put in torch's place (patches.py).
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["patches"]


def patches() -> list[tuple[Any, str, Any]]:
    """(owner, name, what makes the replacement from the original) of each."""
    both = [(owner, name, made) for name, made in _BOTH.items() for owner in (torch, torch.Tensor)]
    return [*both, (torch.Tensor, "fill_diagonal_", _fill_diagonal)]


def _take_along_dim(original: Any) -> Any:
    """As `gather`, whose sizes stay symbolic."""

    def take(x: torch.Tensor, indices: torch.Tensor, dim: int | None = None, **kwargs: Any) -> torch.Tensor:
        if kwargs or x.dim() != indices.dim() or dim is None:
            return original(x, indices, dim, **kwargs)
        sizes = [b if isinstance(a, int) and a == 1 else a for a, b in zip(x.shape, indices.shape, strict=True)]
        axis = dim % x.dim() if x.dim() else 0
        along, taken = ([*sizes[:axis], t.shape[axis], *sizes[axis + 1 :]] for t in (x, indices))
        return x.expand(along).gather(axis, indices.expand(taken)) if sizes else original(x, indices, dim)

    return take


def _fill_diagonal(original: Any) -> Any:
    def fill(self: torch.Tensor, fill_value: Any, wrap: bool = False) -> torch.Tensor:
        if wrap or self.dim() != 2:
            return original(self, fill_value, wrap)
        rows, columns = (torch.arange(size, device=self.device) for size in self.shape)
        return self.masked_fill_(rows[:, None] == columns, fill_value)

    return fill


def _cov(original: Any) -> Any:
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


def _corrcoef(original: Any) -> Any:
    def corrcoef(input: torch.Tensor) -> torch.Tensor:
        if not input.is_floating_point() or input.dim() != 2:
            return original(input)
        products = torch.cov(input)
        deviations = products.diagonal().sqrt()
        return (products / deviations[:, None] / deviations).clamp(-1, 1)

    return corrcoef


_BOTH = {"take_along_dim": _take_along_dim, "cov": _cov, "corrcoef": _corrcoef}
