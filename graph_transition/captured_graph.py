"""A captured graph: the calls that it holds for, and why it does not hold for another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..capture import Captured
from ..capture.trace.state.scope_settings import answers
from .audit import Effect
from .conditions import Argument, Check, Condition, Refusal, Roots, Watch
from .disk.key import DiskKey
from .ready_session import ReadySession
from .signature import Call


def is_flag(leaf: Any) -> bool:
    """Whether a call's leaf is one bool, as a tensor in host memory: a graph per value is no more than two."""
    flag = isinstance(leaf, torch.Tensor) and leaf.dtype == torch.bool and leaf.numel() == 1
    return flag and leaf.device.type == "cpu"


def flag_value(leaf: torch.Tensor) -> Any:
    """The flag's value, nested as the tensor is."""
    return leaf.tolist()


def lost_effect(effects: Sequence[Effect], roots: Roots, call: Call) -> str | None:
    """What the forward sets on an object that none of the conditions leads to, so that no call finds it again."""
    check = Check()
    if check.refusal(_roots_of(roots, call)) is not None:
        return None  # no call runs on this graph
    found = {id(condition) for condition, _ in check.bound}
    return next((effect.text for effect in effects if id(effect.condition) not in found), None)


class CapturedGraph:
    """One captured graph and the sessions made from it, by the set of inputs that want a gradient."""

    def __init__(
        self,
        captured: Captured,
        module: torch.nn.Module,
        leaves: Sequence[Any],
        dynamic: frozenset[tuple[int, int]],
        loaded: DiskKey | None,
        roots: Roots,
        effects: Sequence[Effect] = (),
    ) -> None:
        self.captured = captured
        self.roots = roots
        self.effects = effects  # plain values that the forward leaves behind
        self.loaded = loaded  # the key under which it was found in the cache on disk
        self.dynamic = dynamic
        self.shapes = [tuple(x.shape) if isinstance(x, torch.Tensor) else None for x in leaves]
        tensors = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        self.tensor_leaves = [i for i in tensors if i not in captured.flags]
        self.answers = answers(captured.settings, leaves, module)
        asked = captured.branches or any(node.op_type == "Expect" for node in captured.model.graph.node)
        self.branching = bool(asked)  # an export that cannot ask about data fails
        self.sessions: dict[tuple[Any, ...], ReadySession] = {}

    def refusal(self, call: Call, module: torch.nn.Module, names: Sequence[str] = ()) -> Refusal | None:
        """Why this graph does not hold for the call; None when it does."""
        leaves = call.leaves
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
        refusal = Check(call.given).refusal(_roots_of(self.roots, call))
        if refusal is not None:
            return refusal
        for setting, answer in answers(self.answers, leaves, module).items():
            if answer != self.answers[setting]:
                return Refusal(f"the forward asks for the {setting}, which changed")
        if self.dynamic or self.captured.branches:
            failed = self.captured.check([leaves[i] for i in self.tensor_leaves])
            if failed is not None:
                return Refusal(f"the guard `{failed}` does not hold")
        return None

    def bound(self, call: Call) -> Mapping[int, Any] | None:
        """By a condition's identity, the object that it holds for at this moment; None where the result has no such."""
        return self._bound(call) if any(ref.kind == "object" for ref in self.captured.result_refs) else None

    def _bound(self, call: Call) -> Mapping[int, Any]:
        check = Check()
        check.refusal(_roots_of(self.roots, call))
        return {id(condition): now for condition, now in check.bound}

    def leave_effects(self, call: Call) -> Callable[[], None]:
        """What sets the plain values that the forward leaves behind, on the objects that the conditions hold for."""
        bound = self._bound(call)

        def leave() -> None:
            for effect in self.effects:
                effect.condition.set(bound[id(effect.condition)], effect.name, effect.value)

        return leave

    def watches(self, call: Call) -> tuple[list[Watch], list[Any]]:
        """What the native check compares of the conditions, as they hold at this moment; and the containers that they
        hold for, none of which a call may be given.

        Raises:
            TypeError: they hold no longer, or what they say cannot be checked natively.
        """
        check = Check(call.given)
        if check.refusal(_roots_of(self.roots, call)) is not None:
            raise TypeError("the conditions hold no longer")
        kinds = set(map(type, call.given))
        return list(check.watches()), [value for _, value in check.bound if type(value) in kinds]


def given_elsewhere(call: Call, roots: Roots) -> str | None:
    """What a container is called that the call is given and that the forward reaches by itself, too.

    A trace is given other containers, made of the same leaves: it can neither tell that the two are one (`a is b`), nor
    see on one of them what it sets on the other.
    """
    refusal = Check(call.given).refusal(_roots_of(roots, call)) if call.given else None
    return refusal.value if refusal is not None and refusal.given else None


def _roots_of(roots: Roots, call: Call) -> list[tuple[str, Condition, Any]]:
    """Where the conditions begin, for a call."""
    return [(text, c, call.leaves[v.index] if isinstance(v, Argument) else v) for text, c, v in roots]
