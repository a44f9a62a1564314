"""DynamicLossScaler: the scale of a float16 loss, found by trying.

What: Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.2, with the settings of torch.amp.GradScaler.
One native pass finds infinities and NaN. Not here: the update by scaled gradients, which MixedPrecision does without
unscaling them first (mixed_precision.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ortmodule import _C
from ortmodule.optim.clipping import is_summed


class DynamicLossScaler:
    """Multiplies the loss, so that small gradients do not vanish in float16; halves the scale when one overflows.

    Args:
        init_scale: the scale to begin with.
        growth_factor: by which the scale grows after `growth_interval` steps without an overflow.
        backoff_factor: by which it shrinks at an overflow, whose step is skipped.
        growth_interval: steps.
        min_scale, max_scale: bounds of the scale.
        agree: a function of "this process found an overflow" to "some process did": all-reduce it there, so that all
            processes skip or none.

    Raises:
        ValueError: factors on the wrong side of 1, bounds that do not hold `init_scale`.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        *,
        min_scale: float = 1.0,
        max_scale: float = 2.0**24,
        agree: Callable[[bool], bool] | None = None,
    ) -> None:
        if not growth_factor > 1.0 or not 0.0 < backoff_factor < 1.0 or growth_interval < 1:
            raise ValueError("expected growth_factor > 1, backoff_factor in (0, 1) and growth_interval >= 1")
        if not 0.0 < min_scale <= init_scale <= max_scale < math.inf:
            raise ValueError(
                f"expected 0 < min_scale <= init_scale <= max_scale, got {min_scale}, {init_scale}, {max_scale}"
            )
        self._scale = float(init_scale)
        self._good_steps = 0
        self._growth = (growth_factor, growth_interval)
        self._backoff = backoff_factor
        self._bounds = (min_scale, max_scale)
        self._agree = agree
        self._found: bool | None = None  # by unscale_, for step and update

    def get_scale(self) -> float:
        return self._scale

    def scale(self, loss: Tensor) -> Tensor:
        """The loss (or any tensor) times the scale."""
        return loss * self._scale

    def overflows(self, gradients: Iterable[Tensor]) -> bool:
        """Whether some element is infinite or NaN here, or, with `agree`, in some process."""
        own: list[Tensor] = []
        rest: list[Tensor] = []
        for gradient in gradients:
            (own if is_summed(gradient) else rest).append(gradient)
        here = [gradient for gradient in own if gradient.is_cpu]
        found = bool(here) and not math.isfinite(_C.gradient_norm(here, 2.0))
        for device in {gradient.device for gradient in own if not gradient.is_cpu}:
            there = [gradient for gradient in own if gradient.device == device]
            found = found or not math.isfinite(_C.device_norm(there, math.inf))
        for gradient in rest:
            values = gradient.coalesce().values() if gradient.is_sparse else gradient
            found = found or not bool(torch.isfinite(values).all())
        return self._agree(found) if self._agree else found

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divides the gradients of all parameters by the scale, for clipping before `step`.

        Raises:
            RuntimeError: it was called already since the last `update`.
        """
        if self._found is not None:
            raise RuntimeError("unscale_() has already been called since the last update()")
        gradients = _gradients(optimizer)
        self._found = self.overflows(gradients)
        own = [g for g in gradients if is_summed(g)]
        if own:
            _C.scale_gradients(own, 1.0 / self._scale)
        for gradient in gradients:
            if not is_summed(gradient):
                gradient.div_(self._scale)

    def step(self, optimizer: torch.optim.Optimizer) -> Any:
        """Unscales the gradients where `unscale_` did not, and steps unless one overflowed; what `step` returned."""
        if self._found is None:
            self.unscale_(optimizer)
        return None if self._found else optimizer.step()

    def update(self, found: bool | None = None) -> None:
        """The scale for the next step.

        Args:
            found: whether this step's gradients overflowed; None where `step` looked.

        Raises:
            RuntimeError: None, and `step` was not called.
        """
        found = self._found if found is None else found
        if found is None:
            raise RuntimeError("update() comes after step()")
        self._found = None
        factor, interval = self._growth
        low, high = self._bounds
        self._good_steps = 0 if found else self._good_steps + 1
        if found:
            self._scale = max(low, self._scale * self._backoff)
        elif self._good_steps == interval:
            self._scale = min(high, self._scale * factor)
            self._good_steps = 0

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self._scale, "good_steps": self._good_steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._scale = float(state_dict["scale"])
        self._good_steps = int(state_dict["good_steps"])


def _gradients(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
