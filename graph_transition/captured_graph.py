"""A captured graph: the calls that it holds for, and why it does not hold for another."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from ..capture import Captured
from ..capture.reads import holder_of, holds
from ..capture.settings import answers
from .disk_key import DiskKey
from .scope import ScopeRead
from .transition import Transition


def is_flag(leaf: Any) -> bool:
    """Whether a call's leaf is one bool, as a tensor in host memory: a graph per value is no more than two."""
    flag = isinstance(leaf, torch.Tensor) and leaf.dtype == torch.bool and leaf.numel() == 1
    return flag and leaf.device.type == "cpu"


def flag_value(leaf: torch.Tensor) -> Any:
    """The flag's value, nested as the tensor is."""
    return leaf.tolist()


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Why a graph does not hold for a call; `value`: the Python value that is another one."""

    reason: str
    value: str | None = None


class CapturedGraph:
    """One captured graph and the sessions made from it, by the set of inputs that want a gradient."""

    def __init__(
        self,
        captured: Captured,
        module: torch.nn.Module,
        leaves: Sequence[Any],
        dynamic: frozenset[tuple[int, int]],
        loaded: DiskKey | None,
        scope: Sequence[ScopeRead],
    ) -> None:
        self.captured = captured
        self.scope = scope
        self.loaded = loaded  # the key under which it was found in the cache on disk
        self.dynamic = dynamic
        self.shapes = [tuple(x.shape) if isinstance(x, torch.Tensor) else None for x in leaves]
        tensors = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        self.tensor_leaves = [i for i in tensors if i not in captured.flags]
        self.answers = answers(captured.settings, leaves, module)
        asked = captured.branches or any(node.op_type == "Expect" for node in captured.model.graph.node)
        self.branching = bool(asked)  # an export that cannot ask about data fails
        self.sessions: dict[tuple[Any, ...], Transition] = {}

    def refusal(self, leaves: Sequence[Any], module: torch.nn.Module, names: Sequence[str] = ()) -> Refusal | None:
        """Why this graph does not hold for the call; None when it does."""
        for i in self.tensor_leaves:
            shape = leaves[i].shape
            if shape == self.shapes[i]:
                continue
            for axis, (new, old) in enumerate(zip(shape, self.shapes[i], strict=True)):  # type: ignore[arg-type]
                if new != old and (i, axis) not in self.dynamic:
                    name = names[i] if names else i
                    return Refusal(f"size {axis} of input '{name}' changed from {old} to {new}")
        for i, value in self.captured.flags.items():
            if flag_value(leaves[i]) != value:
                name = names[i] if names else i
                return Refusal(f"the value of input '{name}', on which the forward branches, changed")
        for owner, path, value in self.captured.attributes:
            try:
                holder, name = holder_of(module, owner, path)
                now = getattr(holder, name, None)
            except AttributeError:
                now = None
            if not holds(now, value):
                what = f"the attribute {owner + '.' if owner else ''}{path}"
                return Refusal(f"{what} changed from {value!r} to {now!r}", what)
        for read in self.scope:
            if not read.holds():
                return Refusal(f"{read.text} changed from {read.value!r} to {read.now()!r}", read.text)
        for setting, answer in answers(self.answers, leaves, module).items():
            if answer != self.answers[setting]:
                return Refusal(f"the forward asks for the {setting}, which changed")
        if self.dynamic or self.captured.branches:
            failed = self.captured.check([leaves[i] for i in self.tensor_leaves])
            if failed is not None:
                return Refusal(f"the guard `{failed}` does not hold")
        return None
