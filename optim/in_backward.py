"""The optimizer inside backward: each parameter is updated as soon as its gradient is there, and the gradient is freed.

What: Lv et al., Full Parameter Fine-tuning for Large Language Models with Limited Resources (LOMO), 2023, for any
optimizer: at no time there are all gradients. A module under ORTModule hands out each gradient when it is final
(Note [Gradient segments]). Not here: the update, which is the optimizer's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ortmodule.optim.native import NativeStep
from ortmodule.optim.wrapper import OptimizerWrapper


def optimizer_in_backward(
    model: nn.Module | list[Any], kind: type[torch.optim.Optimizer], **options: Any
) -> OptimizerInBackward:
    """Makes `backward()` update the model's parameters.

    Args:
        model: a module, or what an optimizer takes as its first argument: parameters or groups of them.
        kind: a class of optimizer that updates each parameter by itself, torch.optim's or this package's.
        options: its options.

    Returns:
        An optimizer for schedulers and checkpoints, whose `step` and `zero_grad` have nothing to do. Its state dict is
        `kind`'s own, and loads in an ordinary one.

    Raises:
        ValueError: `kind` needs a closure (LBFGS).
    """
    given = [p for p in model.parameters() if p.requires_grad] if isinstance(model, nn.Module) else model
    if issubclass(kind, torch.optim.LBFGS):
        raise ValueError(f"{kind.__name__} evaluates the loss anew in its steps, which no backward can wait for")
    return OptimizerInBackward(kind(given, **options))


class OptimizerInBackward(OptimizerWrapper):
    """Each backward is a step: gradients of several backwards are not added up, and no norm over all of them is known.

    An error of a step ends the backward; the parameters that were updated before it stay so. `remove()` gives the
    parameters back to ordinary steps.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self._hook_all()

    def _hook_all(self) -> None:
        self._lock = threading.Lock()
        self._hook_handles: list[Any] = []
        for group in self.param_groups:
            self._hook(group)

    def _hook(self, group: dict[str, Any]) -> None:
        for p in group["params"]:
            self._hook_handles.append(p.register_post_accumulate_grad_hook(self._updates(group)))

    def _updates(self, group: dict[str, Any]) -> Callable[[Tensor], None]:
        def update(p: Tensor) -> None:
            inner = self.optimizer
            with self._lock:  # a backward has a thread for each device
                alone = {**group, "params": [p]}
                if isinstance(inner, NativeStep) and inner._is_native(alone):
                    with torch.no_grad():
                        inner.native_step([alone])
                else:
                    own = inner.param_groups
                    inner.param_groups = [alone]
                    try:
                        inner.step()
                    finally:
                        inner.param_groups = own
            p.grad = None

        return update

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Nothing: backward has done it. `closure` is called, with gradients enabled, and its result returned."""
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing: there are no gradients between two backwards."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        self._hook(self.param_groups[-1])

    def remove(self) -> torch.optim.Optimizer:
        """Takes the hooks off; returns the optimizer, to be stepped as any other."""
        for handle in self._hook_handles:
            handle.remove()
        self._hook_handles = []
        return self.optimizer

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in super().__getstate__().items() if k != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._hook_all()
