"""torch.nn.Modules: those of the traced module's tree, and others that a forward uses (in a plain list, a global).

Of a module in the tree, the call's signature compares the tables (parameters, buffers, children, hooks) and the mode.
Of one outside, they are conditions like any other attribute.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from .condition import Before, Change, Condition, Watch
from .objects import ObjectCondition, instance_table

__all__ = ["ModuleCondition"]

# What nn.Module keeps for itself.
_INTERNALS = frozenset({*vars(torch.nn.Module()), "_compiled_call_impl"}) - {"training"}
# Of that, what a forward may change: children and hooks. Parameters and buffers are the trace's own (capture).
_TABLES = ("_modules", *sorted(name for name in _INTERNALS if name.endswith("hooks")))
# What of it decides a call, whatever names the forward uses.
_DECIDING = _INTERNALS - {"_non_persistent_buffers_set", "_is_full_backward_hook"} - {
    name for name in _INTERNALS if "state_dict" in name
} | {"training"}


class ModuleCondition(ObjectCondition):
    """A module of the same class, with the same in the attributes that were looked up.

    Args:
        in_tree: whether it is the traced module or one of its sub-modules.
    """

    kind = "torch module"
    __slots__ = ("_in_tree", "_children", "_before")

    def __init__(self, value: torch.nn.Module, kind_of: Condition, in_tree: bool) -> None:
        super().__init__(value, kind_of, None)
        self._in_tree = in_tree
        self._children: dict[str, Condition] = {}
        tables = {name: vars(value).get(name) for name in _TABLES} if in_tree else {}
        self._before = {name: dict(table) for name, table in tables.items() if isinstance(table, dict)}

    def grow(
        self, value: Any, names: frozenset[str], whole: bool, part: Callable[[Any], Condition]
    ) -> list[tuple[str, Any]]:
        if not self._in_tree:
            return super().grow(value, _and_deciding(names), whole, part)
        found = super().grow(value, _but_internals(names), whole, part)
        every = whole or "_modules" in names
        for name, child in list(value._modules.items()):
            if child is not None and (every or name in names):
                if name not in self._children:
                    self._children[name] = part(child)
                found.append((name, child))
        return found

    def forget_results(self, names: frozenset[str]) -> None:
        """Notes that the forward has set these attributes itself before it looked at them."""
        self.entries.forget_results(names)

    def _table(self, value: Any) -> Mapping[str, Any] | None:
        """Without torch's own: its tables, an RNN's `_flat_weights`, which it makes of its weights, and what
        weight_norm and its like set before each forward.
        """
        table = instance_table(value)
        if table is None or not self._in_tree:
            return table
        of_torch = type(value).__module__.startswith("torch.") or isinstance(value, torch.nn.RNNBase)
        hidden = _INTERNALS | _set_by_hooks(value)
        return {n: v for n, v in table.items() if n not in hidden and not (of_torch and n.startswith("_"))}

    def refusal(self, now: Any) -> str | None:
        why = super().refusal(now)
        if why is None and self._children:
            gone = [name for name in self._children if name not in now._modules]
            why = f"has no sub-module '{gone[0]}' any more" if gone else None
        return why

    def changed(self, now: Any, before: Before) -> list[Change]:
        changes = super().changed(now, before)
        if type(now) is self._type and any(self._other(now, name, before.own) for name in self._before):
            changes.append(Change("", None, now))
        return changes

    def _other(self, now: Any, name: str, own: Callable[[Any], Any]) -> bool:
        """Whether a table holds others than before, or in another order."""
        held = [(key, id(own(value))) for key, value in vars(now)[name].items()]
        return held != [(key, id(value)) for key, value in self._before[name].items()]

    def forget(self) -> None:
        super().forget()
        self._before = {}

    def restore(self, value: Any, original: Callable[[Condition], Any]) -> None:
        super().restore(value, original)
        for name, held in self._before.items():
            if self._other(value, name, lambda one: one):
                vars(value)[name].clear()
                vars(value)[name].update(held)

    def parts(self, now: Any) -> Iterator[tuple[str, Condition, Any]]:
        yield from super().parts(now)
        for name, part in self._children.items():
            yield f".{name}", part, now._modules[name]

    def stored(self) -> tuple[frozenset[str], Any]:
        names, whole = super().stored()
        return names | frozenset(self._children), whole

    def watches(self, now: Any) -> Iterator[Watch]:
        table = instance_table(now) or {}
        hidden = frozenset(table) - frozenset(self._table(now) or ())
        for watch in super().watches(now):
            if watch[0] == "names" and watch[1] is table and hidden:
                length = -1 if watch[4] < 0 else watch[4] + len(hidden)
                yield "names", table, watch[2] - hidden, watch[3], length
            else:
                yield watch
        for name in self._children:
            yield "entry", now._modules, name, now._modules[name]


def _set_by_hooks(module: torch.nn.Module) -> frozenset[str]:
    """What hooks of torch.nn.utils make of parameters before each forward."""
    hooks = [h for h in module._forward_pre_hooks.values() if type(h).__module__.startswith("torch.nn.utils.")]
    names = [getattr(hook, place, None) for hook in hooks for place in ("name", "_tensor_name")]
    return frozenset(name for name in names if isinstance(name, str))


@functools.lru_cache(maxsize=4096)
def _but_internals(names: frozenset[str]) -> frozenset[str]:
    return names - _INTERNALS


@functools.lru_cache(maxsize=4096)
def _and_deciding(names: frozenset[str]) -> frozenset[str]:
    return names | _DECIDING
