"""Adafactor in one native call a step, in torch's form or that of the transformers library.

Not here: the rule (csrc/kernels/optimizer/adafactor.cpp), the call (native.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ortmodule.optim.native import Group, NativeStep, Row, number, scalar_dtype

_FORMS = ("torch", "transformers")
# Settings of the transformers library's class under torch's names.
_NAMES = {"clip_threshold": "d", "decay_rate": "beta2_decay"}


class Adafactor(NativeStep, torch.optim.Adafactor):
    """Adafactor: Shazeer and Stern, Adaptive Learning Rates with Sublinear Memory Cost, 2018.

    With `form="torch"` torch.optim.Adafactor: its arguments, states and state dicts. With "transformers" that library's
    class: `eps[0]` is added to the squared gradients instead of bounding the estimate, and there are four more options.
    Its state dicts load here too, and say which form they are of.

    Args:
        params: parameters, or groups of them as dicts; real, dense gradients.
        lr: learning rate; None is 1e-2 in torch's form.
        beta2_decay: exponent of the step in the decay of the variance (`decay_rate` in transformers).
        eps: the two small numbers; (None, 1e-3) and, in the other form, (1e-30, 1e-3) by default.
        d: clipping threshold of an update's root mean square (`clip_threshold` in transformers).
        weight_decay: decoupled.
        form: "torch" or "transformers".
        beta1, scale_parameter, relative_step, warmup_init: as in transformers, for that form alone.
        foreach, maximize: as in torch.optim.Adafactor; maximize also for the other form.

    Raises:
        ValueError: as the class of that form.
        RuntimeError: complex parameters or sparse gradients, at the step.
    """

    _rule = "adafactor"
    _has_device_rule = False

    def __init__(
        self,
        params: Any,
        lr: float | Tensor | None = None,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] | None = None,
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        form: str = "torch",
        beta1: float | None = None,
        scale_parameter: bool = True,
        relative_step: bool = True,
        warmup_init: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        if form not in _FORMS:
            raise ValueError(f"form should be one of {_FORMS}, got {form!r}")
        self._initial_form: Group = {}
        if form == "transformers":
            if lr is not None and relative_step:
                raise ValueError("Cannot combine manual `lr` and `relative_step=True` options")
            if warmup_init and not relative_step:
                raise ValueError("`warmup_init=True` requires `relative_step=True`")
            if lr is None and not relative_step:
                raise ValueError("`relative_step=False` requires `lr`")
            names = ("form", "beta1", "scale_parameter", "relative_step", "warmup_init")
            values = (form, beta1, scale_parameter, relative_step, warmup_init)
            self._initial_form = dict(zip(names, values, strict=True))
        eps = eps or ((1e-30, 1e-3) if self._initial_form else (None, 1e-3))
        rate = 1e-2 if lr is None else lr
        super().__init__(params, rate, beta2_decay, eps, d, weight_decay, foreach=foreach, maximize=maximize)

    def add_param_group(self, param_group: Group) -> None:
        super().add_param_group({**self._initial_form, **param_group})

    def __setstate__(self, state: Group) -> None:
        self.__dict__.setdefault("_initial_form", {})
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("maximize", False)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over state and hyperparameters of this class, torch's or the transformers library's."""
        groups = []
        for group in state_dict["param_groups"]:
            if "clip_threshold" in group:
                group = {**{_NAMES.get(name, name): value for name, value in group.items()}, "form": "transformers"}
                group["lr"] = 1e-2 if group["lr"] is None else group["lr"]
            groups.append(group)
        super().load_state_dict({**state_dict, "param_groups": groups})

    def _settings(self, group: Group) -> dict[str, float]:
        settings = {name: number(group[name]) for name in ("lr", "beta2_decay", "d", "weight_decay", "maximize")}
        small, settings["eps2"] = group["eps"][0], number(group["eps"][1])
        if small is not None:
            settings["eps1"] = number(small)
        if group.get("form") != "transformers":
            return settings
        for name in ("scale_parameter", "relative_step", "warmup_init"):
            settings[name] = float(group[name])
        beta1 = group["beta1"]
        return {**settings, "transformers": 1.0, "has_beta1": float(beta1 is not None), "beta1": number(beta1 or 0.0)}

    def _split(self, numbers: dict[str, float], rows: list[Row]) -> list[tuple[dict[str, float], list[Row]]]:
        """`eps1` is the type's where none was given: a group for each type."""
        if "eps1" in numbers or not rows:
            return super()._split(numbers, rows)
        kinds: dict[float, list[Row]] = {}
        for row in rows:
            assert row[0] is not None
            kinds.setdefault(torch.finfo(row[0].dtype).eps, []).append(row)
        return [({**numbers, "eps1": eps}, some) for eps, some in kinds.items()]

    def _row(self, group: Group, p: Tensor, gradient: Tensor, copy: Tensor | None) -> Row:
        state = self.state[p]
        if "step" not in state:
            state.update(_fresh(group, p, self._state_dtype or p.dtype))
        names = ("exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq")
        if group.get("form") != "transformers":
            names = ("row_var", "col_var", "variance")
        row, column, whole = (state.get(name) for name in names)
        return p, gradient, state["step"], copy, whole if row is None else row, column, state.get("exp_avg")

    def _is_native(self, group: Group) -> bool:
        if any(p.is_complex() for p in group["params"] if p.grad is not None):
            raise RuntimeError("Adafactor does not support complex parameters")
        return super()._is_native(group)

    def _torch_step(self, groups: list[Group]) -> None:
        super()._torch_step([group for group in groups if group.get("form") != "transformers"])
        for group in groups:
            if group.get("form") == "transformers":
                self._transformers_step(group)

    @torch.no_grad()
    def _transformers_step(self, group: Group) -> None:
        """The same in torch's operations, for devices without a kernel of ours."""
        for p in group["params"]:
            if p.grad is None:
                continue
            _, _, step, _, row, column, first = self._row(group, p, p.grad, None)
            assert step is not None and row is not None
            step += 1
            t, whole = float(step), p.float()
            gradient = p.grad.float() * (-1.0 if group["maximize"] else 1.0)
            rate = number(group["lr"])
            if group["relative_step"]:
                rate = min(1e-6 * t if group["warmup_init"] else 1e-2, t**-0.5)
            if group["scale_parameter"]:
                rate *= max(group["eps"][1], _size(whole))
            rest = t ** group["beta2_decay"]
            squares = gradient.square() + group["eps"][0]
            if column is None:
                row.mul_(1 - rest).add_(squares, alpha=rest)
                update = row.rsqrt() * gradient
            else:
                row.mul_(1 - rest).add_(squares.mean(-1), alpha=rest)
                column.mul_(1 - rest).add_(squares.mean(-2), alpha=rest)
                update = (row / row.mean(-1, keepdim=True)).rsqrt_().unsqueeze(-1) * column.unsqueeze(-2).rsqrt()
                update.mul_(gradient)
            update.mul_(rate / max(1.0, _size(update) / group["d"]))
            if first is not None:
                update = first.mul_(group["beta1"]).add_(update, alpha=1 - group["beta1"])
            p.copy_(whole.mul_(1 - group["weight_decay"] * rate).sub_(update))


def _size(tensor: Tensor) -> float:
    return float(tensor.norm() / tensor.numel() ** 0.5)


def _fresh(group: Group, p: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    step = torch.zeros((), dtype=scalar_dtype())
    rows, columns = p.shape[:-1], (*p.shape[:-2], *p.shape[-1:])
    if group.get("form") != "transformers":
        if p.dim() < 2:
            return {"step": step, "variance": torch.zeros_like(p, dtype=dtype, memory_format=torch.preserve_format)}
        shapes = {"row_var": (*rows, 1), "col_var": (*columns[:-1], 1, columns[-1])}
        return {"step": step, **{name: p.new_zeros(shape, dtype=dtype) for name, shape in shapes.items()}}
    dtype = torch.float64 if p.dtype == torch.float64 else torch.float32
    names = ["exp_avg_sq"] if p.dim() < 2 else ["exp_avg_sq_row", "exp_avg_sq_col"]
    sizes = [p.shape] if p.dim() < 2 else [rows, columns]
    state = {name: torch.zeros(shape, dtype=dtype, device=p.device) for name, shape in zip(names, sizes, strict=True)}
    if group["beta1"] is not None:
        state["exp_avg"] = torch.zeros_like(p, dtype=dtype, memory_format=torch.preserve_format)
    return {"step": step, **state}
