"""An optimizer around another, whose groups, states and hyperparameters are the inner one's very objects.

What: what schedulers, trainers and checkpoints ask of an optimizer, passed on. Not here: `step` and `zero_grad`, which
are why there is a wrapper (mixed_precision.py, in_backward.py).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch


class OptimizerWrapper(torch.optim.Optimizer):
    """Attributes that are not the wrapper's own are `optimizer`'s."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        for name in ("step_pre", "step_post", "state_dict_pre", "state_dict_post"):
            setattr(self, f"_optimizer_{name}_hooks", OrderedDict())
        for name in ("load_state_dict_pre", "load_state_dict_post"):
            setattr(self, f"_optimizer_{name}_hooks", OrderedDict())
        self._patch_step_function()

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.optimizer.defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        # A scheduler has put its own `step` on the object.
        return {k: v for k, v in self.__dict__.items() if k != "step" and not k.endswith(("_hooks", "_handles"))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        OptimizerWrapper.__init__(self, state["optimizer"])
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.optimizer!r})"
