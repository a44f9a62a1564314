"""Whether an optimizer may see shards: it may if what becomes of an element depends on that element's gradients alone.

SGD and the Adam family are such; LAMB and Adafactor (norms and means over a whole tensor) are not. Which one a class is
is tried out, so that no list of names is needed: the same three steps on a matrix and on its two flat halves.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

__all__ = ["is_elementwise"]


def is_elementwise(optimizer: torch.optim.Optimizer) -> bool:
    """Whether optimizers like this one update elements one by one. False where it cannot be made for a trial."""
    kind = type(optimizer)
    accepted = _accepted(kind)
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(4, 6, generator=generator)
    gradients = [torch.randn(4, 6, generator=generator) * 10.0**i for i in (-2, 0, 1)]
    for group in optimizer.param_groups:
        options = {k: v for k, v in group.items() if k in optimizer.defaults and k in accepted}
        try:
            whole = _after(kind, options, [start], [[g] for g in gradients])[0]
            halves = _after(kind, options, list(start.view(2, 12)), [list(g.view(2, 12)) for g in gradients])
        except (TypeError, ValueError, RuntimeError, KeyError, AttributeError):
            return False
        if not torch.allclose(whole.flatten(), torch.cat(halves), rtol=1e-6, atol=1e-7):
            return False
    return True


def _accepted(kind: type) -> set[str]:
    """What the class's constructor takes, and those of its bases that it hands `**options` on to."""
    names: set[str] = set()
    for base in kind.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        names |= {p.name for p in parameters}
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            break
    return names


def _after(
    kind: Any, options: dict[str, Any], values: list[torch.Tensor], steps: list[list[torch.Tensor]]
) -> list[torch.Tensor]:
    """What `values` are after steps with these gradients."""
    options = {k: v.detach().cpu().clone() if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    parameters = [torch.nn.Parameter(value.clone()) for value in values]
    optimizer = kind(parameters, **options)
    for gradients in steps:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return [parameter.detach() for parameter in parameters]
