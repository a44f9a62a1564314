"""What the optimizers of this package share: one call of the C++ engine updates all parameters of a step.

What: `NativeStep`, a class that stands before one of torch.optim's and replaces its `step`. Groups, states, defaults,
state dicts, hooks and closures are torch's. A group that the engine cannot serve (a device without our kernels, tensors
of a subclass, sparse gradients, `foreach`, `fused`, `capturable` or `differentiable` asked for) is updated by torch's
code. Not here: the rules (csrc/kernels/optimizer), what their settings and states are (a file for each class).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ortmodule import _C

Row = tuple[Tensor | None, ...]
Group = dict[str, Any]

_TYPES = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128})
_DEVICE_TYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
_TORCHS = ("foreach", "fused", "capturable", "differentiable")
_PLAIN = frozenset({Tensor, nn.Parameter})
_STATE_BLOCK = 256


def is_plain(tensor: Tensor) -> bool:
    """Whether the engine may write its memory: strided, of the CPU or a device with our kernels, of no subclass."""
    plain = type(tensor) in _PLAIN and tensor.layout is torch.strided
    return plain and (tensor.is_cpu or (tensor.dtype in _DEVICE_TYPES and _has_kernels(tensor.device.type)))


@functools.cache
def _has_kernels(device_type: str) -> bool:
    return _C.updates_on(device_type)


def scalar_dtype() -> torch.dtype:
    """The type of `step`, as torch.optim has it."""
    return torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32


def number(value: Any) -> float:
    return float(value.item() if isinstance(value, Tensor) else value)


def state_like(p: Tensor, bits: int = 32, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor | None]:
    """Zeros for a state of `p`, and with 8 bits their scales."""
    if bits != 8:
        return torch.zeros_like(p, dtype=dtype, memory_format=torch.preserve_format), None
    codes = torch.zeros_like(p, dtype=torch.uint8, memory_format=torch.preserve_format)
    return codes, torch.zeros((p.numel() + _STATE_BLOCK - 1) // _STATE_BLOCK)


class NativeStep(torch.optim.Optimizer):
    """One native call a step. Before a class of torch.optim in the bases."""

    _rule = ""
    _takes_sparse = False
    _has_device_rule = True  # a CUDA kernel
    _step_supports_amp_scaling = True  # torch.amp.GradScaler hands over found_inf and grad_scale
    _state_dtype: torch.dtype | None = None  # of states that are made; the parameter's where None

    # -- what a class says -------------------------------------------------------------------------------------------

    def _settings(self, group: Group) -> dict[str, float]:
        """The rule's numbers (csrc/kernels/optimizer/update.cpp)."""
        raise NotImplementedError

    def _row(self, group: Group, p: Tensor, gradient: Tensor, copy: Tensor | None) -> Row:
        """What the engine takes for a parameter: itself, gradient, step, copy, states, scales. Makes missing states."""
        raise NotImplementedError

    def _torch_step(self, groups: list[Group]) -> None:
        """The step of groups that the engine does not serve; gradients are unscaled."""
        step: Any = torch_step(type(self))
        own = self.param_groups
        self.param_groups = [self._fused_where_possible(group) for group in groups]
        try:
            step(self)
        finally:
            self.param_groups = own

    # -- torch's surface ---------------------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient; returns what `closure` returns.

        An error leaves parameters and states of the engine's groups as they were. Gradients are not changed, except
        that they are unscaled where torch.amp.GradScaler gives a scale.

        Args:
            closure: computes the loss anew, with gradients enabled.

        Raises:
            InvalidArgumentError: tensors of a parameter do not belong together (shape, type, device).
            RuntimeError: gradients or options that torch's class refuses as well.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if torch.compiler.is_compiling():
            self._torch_step(self.param_groups)
            return loss
        self._step_groups()
        return loss

    def _step_groups(self) -> None:
        found = getattr(self, "found_inf", None)
        scale = getattr(self, "grad_scale", None)
        native = [group for group in self.param_groups if self._is_native(group)]
        others = [group for group in self.param_groups if not any(group is g for g in native)]
        if found is not None and not others and self._needs_no_answer(native, found, scale):
            self.native_step(native, divisor_on_device=scale, found_inf=found, written=scale is not None)
            return
        if found is not None and number(found):
            return
        self.native_step(native, divisor=1.0 if scale is None else number(scale), written=scale is not None)
        if others:
            with torch.no_grad():
                self._unscaled_torch_step(others, scale)

    def _needs_no_answer(self, groups: list[Group], *numbers: Any) -> bool:
        """Whether a step reads these numbers on the device alone, where everything is that it writes."""
        there = all(value is None or (isinstance(value, Tensor) and not value.is_cpu) for value in numbers)
        used = [p for group in groups for p in group["params"] if p.grad is not None]
        return there and bool(used) and not any(p.is_cpu for p in used)

    def _unscaled_torch_step(self, groups: list[Group], scale: Tensor | None) -> None:
        """torch's code asserts that nobody else has a scale."""
        hidden: dict[str, Any] = {
            name: self.__dict__.pop(name) for name in ("grad_scale", "found_inf") if name in self.__dict__
        }
        try:
            if scale is not None:
                for gradient in (p.grad for group in groups for p in group["params"] if p.grad is not None):
                    gradient.div_(scale.to(gradient.device) if isinstance(scale, Tensor) else scale)
            self._torch_step(groups)
        finally:
            self.__dict__.update(hidden)

    def __getstate__(self) -> dict[str, Any]:
        """With what later groups begin with, besides torch's defaults."""
        own = {name: value for name, value in self.__dict__.items() if name.startswith("_initial_")}
        return {**super().__getstate__(), **own}

    # -- the native call ---------------------------------------------------------------------------------------------

    def native_step(
        self,
        groups: list[Group],
        *,
        gradient_of: Callable[[Tensor], Tensor | None] = lambda p: p.grad,
        copy_of: Callable[[Tensor], Tensor | None] = lambda p: None,
        divisor: float = 1.0,
        written: bool = False,
        settings: dict[str, float] | None = None,
        divisor_on_device: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None:
        """One step of `groups` in one call, which holds autograd off by itself: an interrupt cannot leave it off.

        Args:
            groups: some of this optimizer's, all of whose tensors `is_plain`.
            gradient_of: a parameter's gradient, which may be of another floating-point type; None skips it.
            copy_of: a tensor in 16 bits that gets the new parameter, too.
            divisor: gradients are divided by it first.
            written: the divided gradients take the place of the given ones.
            settings: further numbers of every group: `stochastic` and `seed`.
            divisor_on_device: a tensor of one element: gradients are divided by it, too, and the host does not wait for
                its value. Of parameters on devices alone, as the next.
            found_inf: a tensor of one element; unless it is 0 nothing is updated. Steps are counted on the device.
        """
        given = []
        for group in groups:
            numbers = {**self._settings(group), **(settings or {})}
            rows: list[Row] = []
            for p in group["params"]:
                gradient = gradient_of(p)
                if gradient is not None:
                    row = self._row(group, p, gradient, copy_of(p))
                    rows.append(row if found_inf is None else self._counted_on_device(p, row))
            given += self._split(numbers, rows)
        if given:
            _C.update_parameters(self._rule, given, divisor, written, divisor_on_device, found_inf)
            self._stepped(given)

    def _counted_on_device(self, p: Tensor, row: Row) -> Row:
        """The row with its step on the parameter's device, where torch's fused kernels have theirs as well."""
        step = row[2]
        if step is None or not step.is_cpu:
            return row
        self.state[p]["step"] = step = step.to(p.device, torch.float32)
        return *row[:2], step, *row[3:]

    def _split(self, numbers: dict[str, float], rows: list[Row]) -> list[tuple[dict[str, float], list[Row]]]:
        """A group as groups of one kind of rows."""
        return [(numbers, rows)] if rows else []

    def _stepped(self, given: list[tuple[dict[str, float], list[Row]]]) -> None:
        """After a step that went well."""

    def _is_native(self, group: Group) -> bool:
        if any(group.get(name) for name in _TORCHS) or not self._serves(group):
            return False
        plain = True
        on_devices = self._has_device_rule and group.get("state_bits", 32) == 32
        for p in group["params"]:
            gradient = p.grad
            if gradient is None:
                continue
            if gradient.is_sparse and not self._takes_sparse:
                raise RuntimeError(f"{type(self).__name__} does not support sparse gradients")
            plain = plain and is_plain(p) and is_plain(gradient) and p.dtype in _TYPES
            plain = plain and (p.is_cpu or (on_devices and p.device == gradient.device))
        return plain

    def _serves(self, group: Group) -> bool:
        """Whether the engine's rule has the group's options, for whose values nobody waits."""
        rate = group.get("lr")
        if isinstance(rate, Tensor) and not rate.is_cpu:
            return False
        return not any(isinstance(beta, Tensor) for beta in group.get("betas", ()))

    def _fused_where_possible(self, group: Group) -> Group:
        """On CUDA devices torch's fused kernel, which has to be asked for and refuses what it cannot serve.

        For what our kernels do not take: a tensor as the rate, doubles, tensors of subclasses.
        """
        if "fused" not in group or any(group.get(name) is not None for name in ("foreach", "fused")):
            return group
        if group.get("capturable") or group.get("differentiable"):
            return group
        used = [p for p in group["params"] if p.grad is not None]
        steps = [self.state.get(p, {}).get("step") for p in used]
        fits = all(type(p) in (Tensor, nn.Parameter) and p.is_cuda and p.is_floating_point() for p in used)
        fits = fits and not any(p.grad.is_sparse for p in used)
        fits = fits and all(not isinstance(s, Tensor) or s.is_cuda for s in steps)
        return {**group, "fused": True} if used and fits else group


def torch_step(kind: type[torch.optim.Optimizer]) -> Callable[..., Any]:
    """`step` of torch's class behind ours, without the hooks that torch puts around a step: ours has them already."""
    base: Any = next(c for c in kind.__mro__ if c.__module__.startswith("torch.optim") and "step" in vars(c))
    step: Any = base.step
    while getattr(step, "hooked", False):
        step = step.__wrapped__
    return step
