"""MixedPrecision: an optimizer of bfloat16 or float16 parameters that keeps what it learns in float32.

What: Micikevicius et al., Mixed Precision Training, ICLR 2018: a float32 master of each 16-bit parameter takes the
updates, and the parameter is its rounded copy. With this package's optimizers the engine reads the 16-bit gradient,
updates master and states and writes the copy in one pass; with others the masters get float32 gradients first.
Not here: the scale of a float16 loss (loss_scaler.py).
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ortmodule.optim.clipping import total_norm
from ortmodule.optim.loss_scaler import DynamicLossScaler
from ortmodule.optim.native import NativeStep
from ortmodule.optim.wrapper import OptimizerWrapper

_LOW = (torch.bfloat16, torch.float16)
_MASTER = "master"


class MixedPrecision(OptimizerWrapper):
    """Around an optimizer of a model in 16 bits, whose groups go on to hold the model's own parameters.

    A step that cannot be done (an error, an overflow under `loss_scaler`) changes neither masters nor parameters.
    Parameters that somebody else writes between two steps (`load_state_dict`) take their masters along.

    Args:
        optimizer: an optimizer without states yet, or a class of one.
        params: with a class, what it takes as its first argument.
        masters: False keeps none: this package's optimizers alone, states in float32 and the parameter the only copy;
            meant for bfloat16 with `stochastic_rounding`.
        stochastic_rounding: a new bfloat16 parameter is rounded up with a probability that is its part of the way to
            the next number, so that small updates are not lost (Gupta et al., Deep Learning with Limited Numerical
            Precision, 2015). Random numbers are of torch.manual_seed.
        loss_scaler: scales losses given to `backward`, skips steps with an overflow and adapts.
        options: with a class, its options.

    Raises:
        ValueError: an optimizer that has states already, or no masters for one that is not this package's.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | type[torch.optim.Optimizer],
        params: Any = None,
        *,
        masters: bool = True,
        stochastic_rounding: bool = False,
        loss_scaler: DynamicLossScaler | None = None,
        **options: Any,
    ) -> None:
        if isinstance(optimizer, type):
            optimizer = optimizer(params, **options)
        elif params is not None or options:
            raise ValueError("params and options belong to a class, not to an optimizer that has its own")
        if optimizer.state:
            raise ValueError(
                "the optimizer has states already; wrap it before its first step, or load its state dict here"
            )
        if not masters and not isinstance(optimizer, NativeStep):
            raise ValueError(f"masters=False is for the optimizers of ortmodule.optim, got {type(optimizer).__name__}")
        super().__init__(optimizer)
        self.loss_scaler = loss_scaler
        self._stochastic = stochastic_rounding
        self._masters: dict[Tensor, Tensor] | None = {} if masters else None
        self._versions: dict[Tensor, tuple[int, int]] = {}
        self._clip: tuple[Tensor, float] | None = None  # norm of the unscaled gradients, largest norm

    # -- the loss and its gradients ----------------------------------------------------------------------------------

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the scale of `loss_scaler`; the loss itself without one."""
        return self.loss_scaler.scale(loss) if self.loss_scaler else loss

    def backward(self, loss: Tensor) -> None:
        """Gradients of the scaled loss."""
        self.scale(loss).backward()

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Has the next step clip the gradients to a norm, without a pass of their own over them.

        On a device the host does not wait for the norm, unless there is a `loss_scaler`, which does.

        Returns:
            The norm of the unscaled gradients, a 0-d float32 tensor.
        """
        scale = self.loss_scaler.get_scale() if self.loss_scaler else 1.0
        norm = total_norm(self._gradients()).float() / scale
        self._clip = (norm, float(max_norm))
        return norm

    def _gradients(self) -> list[Tensor]:
        return [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]

    # -- masters -----------------------------------------------------------------------------------------------------

    def _low(self) -> Iterator[Tensor]:
        return (p for group in self.param_groups for p in group["params"] if p.dtype in _LOW)

    def _follow_parameters(self) -> None:
        """Masters for new parameters, and for those that somebody has written."""
        if self._masters is None:
            return
        for p in self._low():
            master = self._masters.get(p)
            if master is None or master.shape != p.shape or master.device != p.device:
                self._masters[p] = p.detach().float()
            elif self._versions.get(p) != (p._version, p.data_ptr()):
                rounded = master.to(p.dtype)
                changed = rounded != p.detach() if not self._stochastic else torch.ones_like(p, dtype=torch.bool)
                master.copy_(torch.where(changed, p.detach().float(), master))
        self._remember()

    def _remember(self) -> None:
        self._versions = {p: (p._version, p.data_ptr()) for p in self._low()}

    @contextlib.contextmanager
    def _on(self, stand_ins: dict[Tensor, Tensor]) -> Iterator[None]:
        """The inner optimizer has the stand-ins in place of the parameters, in groups and states."""
        inner = self.optimizer
        own = [group["params"] for group in inner.param_groups]
        back = {stand_in: p for p, stand_in in stand_ins.items()}
        inner.state = defaultdict(dict, {stand_ins.get(p, p): state for p, state in inner.state.items()})
        for group in inner.param_groups:
            group["params"] = [stand_ins.get(p, p) for p in group["params"]]
        try:
            yield
        finally:
            inner.state = defaultdict(dict, {back.get(p, p): state for p, state in inner.state.items()})
            for group, params in zip(inner.param_groups, own, strict=True):
                group["params"] = params

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates masters and parameters, unless a gradient overflowed; returns what `closure` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        clip, self._clip = self._clip, None
        divisor = 1.0
        divisor_on_device = None
        with torch.no_grad():
            if self.loss_scaler:
                overflow = not math.isfinite(clip[0]) if clip else self.loss_scaler.overflows(self._gradients())
                divisor = self.loss_scaler.get_scale()
                if overflow:
                    self.loss_scaler.update(True)
                    return loss
            if clip and not self.loss_scaler and not clip[0].is_cpu:
                divisor_on_device = 1.0 / (clip[1] / (clip[0] + 1e-6)).clamp(max=1.0)
            elif clip:
                factor = clip[1] / (float(clip[0]) + 1e-6)
                divisor = divisor if factor >= 1.0 else divisor / factor if factor else math.inf
            self._follow_parameters()
            self._step(divisor, divisor_on_device)
            self._remember()
        if self.loss_scaler:
            self.loss_scaler.update(False)
        return loss

    def _is_native(self, divisor_on_device: Tensor | None) -> bool:
        """Whether the engine does the whole step: on a device with masters, and roundings to nearest."""
        inner = self.optimizer
        if not isinstance(inner, NativeStep) or not all(inner._is_native(group) for group in self.param_groups):
            return False
        used = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        if divisor_on_device is not None and any(p.device != divisor_on_device.device for p in used):
            return False
        return all(p.is_cpu for p in used) or (self._masters is not None and not self._stochastic)

    def _step(self, divisor: float, divisor_on_device: Tensor | None = None) -> None:
        """One step with the gradients over `divisor`, or over a number that the device alone knows."""
        inner, masters = self.optimizer, self._masters
        native = self._is_native(divisor_on_device)
        if not native and divisor_on_device is not None:
            divisor, divisor_on_device = float(divisor_on_device), None
        gradients = {p: p.grad for group in self.param_groups for p in group["params"] if p.grad is not None}
        if native:
            assert isinstance(inner, NativeStep)
            settings = {}
            if self._stochastic:
                settings = {"stochastic": 1.0, "seed": float(torch.randint(2**31, ()))}
            stand_ins = masters or {}
            models = {master: p for p, master in stand_ins.items()}
            with self._on(stand_ins), self._float_states():
                inner.native_step(
                    inner.param_groups,
                    gradient_of=lambda p: gradients.get(models.get(p, p)),
                    copy_of=models.get,
                    divisor=divisor,
                    settings=settings,
                    divisor_on_device=divisor_on_device,
                )
        elif masters is None:
            raise RuntimeError("masters=False is for dense parameters on the CPU")
        else:
            self._step_by_masters(masters, gradients, divisor)

    @contextlib.contextmanager
    def _float_states(self) -> Iterator[None]:
        """Without masters: states that are made now are float32 all the same."""
        inner = self.optimizer
        assert isinstance(inner, NativeStep)
        inner._state_dtype = torch.float32 if self._masters is None else None
        try:
            yield
        finally:
            inner._state_dtype = None

    def _step_by_masters(self, masters: dict[Tensor, Tensor], gradients: dict[Tensor, Tensor], divisor: float) -> None:
        """An optimizer that is not ours, or not on the CPU: masters get gradients, and are copied back."""
        if divisor != 1.0:
            for p, gradient in gradients.items():
                if p not in masters:
                    gradient.div_(divisor)
        with self._on(masters):
            for p, master in masters.items():
                master.grad = gradients[p].float().div_(divisor) if p in gradients else None
            try:
                self.optimizer.step()
            finally:
                for master in masters.values():
                    master.grad = None
        for p in gradients:
            if p in masters:
                round_into(p, masters[p], self._stochastic)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's, with each master beside its states and the state of `loss_scaler`."""
        out = self.optimizer.state_dict()
        out["state"] = {key: dict(state) for key, state in out["state"].items()}
        for number, p in enumerate(p for group in self.param_groups for p in group["params"]):
            if self._masters and p in self._masters:
                out["state"].setdefault(number, {})[_MASTER] = self._masters[p]
        return {**out, "loss_scaler": self.loss_scaler.state_dict()} if self.loss_scaler else out

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over one of this class's, or of the inner optimizer's class: masters are then the parameters.

        Raises:
            ValueError: groups that do not match; nothing is changed then.
        """
        inner = {name: value for name, value in state_dict.items() if name != "loss_scaler"}
        inner["state"] = {k: {n: v for n, v in s.items() if n != _MASTER} for k, s in state_dict["state"].items()}
        inner["state"] = {key: state for key, state in inner["state"].items() if state}
        whole = {p: torch.empty_like(p, dtype=torch.float32, requires_grad=False) for p in self._low()}
        with self._on(whole):  # torch casts states to the type of the parameter
            self.optimizer.load_state_dict(inner)
        if self._masters is not None:
            self._masters = {}
            for number, p in enumerate(p for group in self.param_groups for p in group["params"]):
                master = state_dict["state"].get(number, {}).get(_MASTER)
                if master is not None and p.dtype in _LOW:
                    self._masters[p] = master.detach().to(p.device, torch.float32, copy=True)
            self._remember()
            self._adopt_where_different()
        if self.loss_scaler and "loss_scaler" in state_dict:
            self.loss_scaler.load_state_dict(state_dict["loss_scaler"])

    def _adopt_where_different(self) -> None:
        """Parameters that are not the copies of their masters were not loaded with them: the next step follows them."""
        for p, master in (self._masters or {}).items():
            if not self._stochastic and not torch.equal(master.to(p.dtype), p.detach()):
                self._versions.pop(p, None)


def round_into(p: Tensor, master: Tensor, stochastic: bool) -> None:
    """p = master in p's type, to nearest or, for bfloat16, stochastically."""
    if not stochastic or p.dtype != torch.bfloat16:
        p.copy_(master)
        return
    bits = master.contiguous().view(torch.int32)
    drawn = (bits + torch.randint_like(bits, 1 << 16)) & -(1 << 16)
    p.copy_(torch.where(torch.isfinite(master.contiguous()), drawn.view(torch.float32), master))
