"""The moments of Adam, AdamW and LAMB, in the parameter's type or in 8 bits.

What: making them, taking them from state dicts of either kind, and `full_precision`, which makes an ordinary state dict
of one in 8 bits. Not here: the 8 bits themselves (csrc/kernels/optimizer/eight_bit.h).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from ortmodule import _C
from ortmodule.optim.native import Group, NativeStep, Row, scalar_dtype, state_like

_SMALLEST = 4096  # elements: what is smaller keeps its states whole
_BITS = (8, 32)
_MOMENTS = ("exp_avg", "exp_avg_sq")
_FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})


class MomentStates(NativeStep):
    """States `step`, `exp_avg`, `exp_avg_sq` and `max_exp_avg_sq`, as torch.optim.Adam's."""

    _initial_bits = 32

    def add_param_group(self, param_group: Group) -> None:
        if self._initial_bits != 32:
            param_group = {"state_bits": self._initial_bits, **param_group}
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        bits = group.get("state_bits", 32)
        if bits not in _BITS or (bits == 8 and group.get("amsgrad")):
            self.param_groups.pop()
            raise ValueError(f"state_bits should be one of {_BITS}, and 8 without amsgrad, got {bits}")

    def __setstate__(self, state: Group) -> None:
        super().__setstate__(state)
        if self._initial_bits != 32:
            for group in self.param_groups:
                group.setdefault("state_bits", self._initial_bits)

    def _row(self, group: Group, p: Tensor, gradient: Tensor, copy: Tensor | None) -> Row:
        state = self.state[p]
        if "step" not in state:
            fresh: dict[str, Tensor] = {"step": torch.zeros((), dtype=scalar_dtype())}
            for name in _MOMENTS:
                fresh[name], scales = state_like(p, _bits_of(group, p), self._state_dtype)
                if scales is not None:
                    fresh[f"{name}_scales"] = scales
            state.update(fresh)
        largest = None
        if group.get("amsgrad"):
            largest = state.get("max_exp_avg_sq")
            if largest is None:
                largest = state["max_exp_avg_sq"] = state_like(p, dtype=self._state_dtype)[0]
        row = (p, gradient, state["step"], copy, state["exp_avg"], state["exp_avg_sq"], largest)
        if "exp_avg_scales" not in state:
            return row
        return *row, state["exp_avg_scales"], state["exp_avg_sq_scales"]

    def _torch_step(self, groups: list[Group]) -> None:
        if any(group.get("state_bits") == 8 for group in groups):
            raise RuntimeError("states in 8 bits are for dense parameters on the CPU")
        super()._torch_step(groups)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over a state dict of this class or torch's; states get the bits that its groups say, or this class.

        Raises:
            ValueError: as torch.optim's; nothing is changed then.
        """
        super().load_state_dict(full_precision(state_dict))
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state.get(p)
                if not state or _bits_of(group, p) != 8:
                    continue
                for name, signed in zip(_MOMENTS, (True, False), strict=True):
                    dense = torch.empty_like(p, dtype=torch.float32, memory_format=torch.preserve_format)
                    dense.copy_(state[name])
                    state[name], state[f"{name}_scales"] = _C.encode_state(dense, signed)


def _bits_of(group: Group, p: Tensor) -> int:
    small = p.numel() < _SMALLEST or p.dtype not in _FLOATS
    return 32 if small else group.get("state_bits", 32)


def full_precision(state_dict: dict[str, Any]) -> dict[str, Any]:
    """A state dict whose states in 8 bits are float32 tensors: what torch.optim's classes load.

    Args:
        state_dict: an optimizer's `state_dict()`; it is not changed. States that are not in 8 bits are shared.
    """
    out = copy.copy(state_dict)
    out["state"] = {}
    for key, state in state_dict["state"].items():
        plain = dict(state)
        for name, signed in zip(_MOMENTS, (True, False), strict=True):
            scales = plain.pop(f"{name}_scales", None)
            if scales is not None:
                plain[name] = _C.decode_state(state[name], scales, signed)
        out["state"][key] = plain
    groups = [{k: v for k, v in group.items() if k != "state_bits"} for group in state_dict["param_groups"]]
    return {**out, "param_groups": groups}
