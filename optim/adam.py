"""Adam and AdamW in one native call a step, with states in 32 or 8 bits.

Not here: the rule (csrc/kernels/optimizer/adam.cpp), the call (native.py), 8-bit states outside of a step (states.py).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ortmodule.optim.native import Group, NativeStep, number
from ortmodule.optim.states import MomentStates

_DECAYS = ("torch", "transformers")


class Adam(MomentStates, NativeStep, torch.optim.Adam):
    """torch.optim.Adam (Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015), with its bits.

    Same arguments, states and state dicts, which load in torch's class and the other way round.

    Args:
        params, lr and further options: torch.optim.Adam's.
        state_bits: 32, or 8: both moments in 8 bits with a scale for each 256 elements (Dettmers et al., 8-bit
            Optimizers via Block-wise Quantization, 2022), of parameters with 4096 elements and more; not with
            `amsgrad`.

    Raises:
        ValueError, TypeError: as torch.optim.Adam; an impossible `state_bits`.
    """

    _rule = "adam"

    def __init__(
        self, params: Any, lr: float | Tensor = 1e-3, *args: Any, state_bits: int = 32, **options: Any
    ) -> None:
        self._initial_bits = state_bits
        super().__init__(params, lr, *args, **options)

    def _settings(self, group: Group) -> dict[str, float]:
        decoupled = group.get("decoupled_weight_decay", False)
        return {**moment_settings(group), "decay": 1.0 if decoupled else 0.0, "correct_bias": 1.0}


class AdamW(Adam, torch.optim.AdamW):
    """torch.optim.AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019), with its bits.

    Args:
        params, lr and further options: torch.optim.AdamW's.
        decay: "torch" takes weight decay off before the update; "transformers" after it, with `eps` beside the root
            that is not corrected, as AdamW of the transformers library did (its default of `eps` was 1e-6).
        correct_bias: False, with "transformers" alone: the moments are used as they are, as BERT's first optimizer did.
        state_bits: as Adam's.

    Raises:
        ValueError, TypeError: as torch.optim.AdamW; an unknown `decay`.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        *args: Any,
        decay: str = "torch",
        correct_bias: bool = True,
        **options: Any,
    ) -> None:
        if decay not in _DECAYS:
            raise ValueError(f"decay should be one of {_DECAYS}, got {decay!r}")
        if not correct_bias and decay != "transformers":
            raise ValueError("correct_bias=False belongs to decay='transformers'")
        self._initial_form = {"decay": decay, "correct_bias": correct_bias} if decay != "torch" else {}
        super().__init__(params, lr, *args, **options)

    def add_param_group(self, param_group: Group) -> None:
        super().add_param_group({**self._initial_form, **param_group})

    def __setstate__(self, state: Group) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("_initial_form", {})
        for group in self.param_groups:
            for name, value in self._initial_form.items():
                group.setdefault(name, value)

    def _settings(self, group: Group) -> dict[str, float]:
        settings = super()._settings(group)
        if group.get("decay") == "transformers":
            settings.update(decay=2.0, correct_bias=float(group.get("correct_bias", True)))
        return settings

    def _torch_step(self, groups: list[Group]) -> None:
        super()._torch_step([group for group in groups if group.get("decay") != "transformers"])
        for group in groups:
            if group.get("decay") == "transformers":
                self._transformers_step(group)

    @torch.no_grad()
    def _transformers_step(self, group: Group) -> None:
        """The same in torch's operations, for devices without a kernel of ours."""
        beta1, beta2 = (number(beta) for beta in group["betas"])
        lr, decay = number(group["lr"]), number(group["weight_decay"])
        for p in group["params"]:
            if p.grad is None:
                continue
            _, gradient, step, _, first, second, *_ = self._row(group, p, p.grad, None)
            assert gradient is not None and step is not None and first is not None and second is not None
            gradient = -gradient if group["maximize"] else gradient
            step += 1
            first.lerp_(gradient, 1 - beta1)
            second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            length = lr
            if group.get("correct_bias", True):
                t = float(step)
                length = lr * math.sqrt(1 - beta2**t) / (1 - beta1**t)
            p.addcdiv_(first, second.sqrt().add_(group["eps"]), value=-length)
            p.add_(p, alpha=-lr * decay)


def moment_settings(group: Group) -> dict[str, float]:
    """What Adam and LAMB have in common."""
    names = ("lr", "eps", "weight_decay", "amsgrad", "maximize")
    settings = {name: number(group.get(name, 0)) for name in names}
    settings["beta1"], settings["beta2"] = (number(beta) for beta in group["betas"])
    return settings
