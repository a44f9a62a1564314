"""torch.nn.Modules: those of the traced module's tree, and others that a forward uses (in a plain list, a global).

Of a module in the tree, the call's signature compares the tables (parameters, buffers, children) and the mode, and how
many hooks there are; which forward hooks, in which order, is a condition of the tree's (`HooksCondition`). Of a module
outside, they are conditions like any other attribute.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.modules.module as torch_module

from ...naming import module_of
from .condition import MISSING, Before, Change, Condition, Watch
from .equality import is_value
from .functions import WRAPPERS, cell_content, wrapped_parts
from .objects import ObjectCondition, instance_table

__all__ = ["AddedHooks", "HooksCondition", "ModuleCondition"]

# The tables of forward hooks, in the order in which they are called, and of those that say how.
_FORWARD_HOOKS = {
    "_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
    "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
}

# What decides what a state_dict has.
_SAVING = frozenset({"_non_persistent_buffers_set", "_state_dict_hooks", "_state_dict_pre_hooks"})
_DEEPEST = 8  # functions around functions of a hook that is looked into
# What nn.Module keeps for itself.
_INTERNALS = frozenset({*vars(torch.nn.Module()), "_compiled_call_impl"}) - {"training"}
# Of that, what a forward may change: children and hooks. Parameters and buffers are the trace's own (capture).
_TABLES = ("_modules", *sorted(n for n in _INTERNALS if n.endswith("hooks") and n not in _FORWARD_HOOKS))
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
    __slots__ = ("_in_tree", "_children", "_before", "_saved")

    def __init__(self, value: torch.nn.Module, kind_of: Condition, in_tree: bool) -> None:
        super().__init__(value, kind_of, None)
        self._in_tree = in_tree
        self._saved = False  # whether the forward makes a state_dict
        self._children: dict[str, Condition] = {}
        tables = {name: vars(value).get(name) for name in _TABLES} if in_tree else {}
        self._before = {name: dict(table) for name, table in tables.items() if isinstance(table, dict)}

    def grow(
        self, value: Any, names: frozenset[str], whole: bool, part: Callable[[Any], Condition]
    ) -> list[tuple[str, Any]]:
        if not self._in_tree:
            return super().grow(value, _and_deciding(names), whole, part)
        self._saved = self._saved or "state_dict" in names
        told = _but_internals(names)
        found = super().grow(value, told | _SAVING if self._saved else told, whole, part)
        every = whole or self._saved or "_modules" in names
        for name, child in list(value._modules.items()):
            if child is not None and (every or name in names):
                if name not in self._children:
                    self._children[name] = part(child)
                found.append((name, child))
        return found

    @staticmethod
    def no_children(conditions: Iterable[Condition]) -> list[Condition]:
        """Those of sub-modules that were met, but not as children: where they are held, one that is no part of the
        traced module may come in their place.
        """
        met = [one for one in conditions if isinstance(one, ModuleCondition)]
        children = {id(part) for one in met for part in one._children.values()}
        return [one for one in met if one._in_tree and id(one) not in children]

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
        of_torch = module_of(type(value)).startswith("torch.") or isinstance(value, torch.nn.RNNBase)
        hidden = _INTERNALS | _set_by_hooks(value) if value._forward_pre_hooks else _INTERNALS
        seen = {n: v for n, v in table.items() if n not in hidden and not (of_torch and n.startswith("_"))}
        if self._saved:
            seen.update({name: table[name] for name in _SAVING})
        return seen

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
                shown = watch[2] - hidden
                yield "names", table, shown, len(table.keys() & shown), watch[4]
            else:
                yield watch
        for name in self._children:
            yield "entry", now._modules, name, now._modules[name]


def _set_by_hooks(module: torch.nn.Module) -> frozenset[str]:
    """What hooks of torch.nn.utils make of parameters before each forward."""
    hooks = [h for h in module._forward_pre_hooks.values() if module_of(type(h)).startswith("torch.nn.utils.")]
    names = [getattr(hook, place, None) for hook in hooks for place in ("name", "_tensor_name")]
    return frozenset(name for name in names if isinstance(name, str))


@functools.lru_cache(maxsize=4096)
def _but_internals(names: frozenset[str]) -> frozenset[str]:
    return names - _INTERNALS


@functools.lru_cache(maxsize=4096)
def _and_deciding(names: frozenset[str]) -> frozenset[str]:
    return names | _DECIDING


@dataclasses.dataclass(frozen=True)
class AddedHooks:
    """Hooks that a forward has hung up and left there.

    Attributes:
        holder: of what the table is an attribute: a module's own, or the globals of torch's module.
        table: its name.
        hooks: (key, hook, names of the tables that say how it is called) of each.
    """

    holder: Mapping[str, Any]
    table: str
    hooks: tuple[tuple[int, Any, tuple[str, ...]], ...]

    def put(self) -> None:
        """Hangs them up."""
        for key, hook, how in self.hooks:
            self.holder[self.table][key] = hook
            for name in how:
                self.holder[name][key] = True


class HooksCondition(Condition):
    """The same forward hooks in the tree of a module, and for every module: in the same order, called in the same way.

    Under which numbers torch keeps them does not count: one that is removed and comes back gets another.

    Args:
        root: the module.
        part: makes the condition of a hook.
        own: whether the root's own hooks count.
    """

    kind = "hooks"
    __slots__ = ("_own", "_places", "_parts", "_before")

    def __init__(self, root: torch.nn.Module, part: Callable[[Any], Condition], own: bool = True) -> None:
        self._own = own
        hooks = list(self._hooks(root))
        self._places = [place for place, _ in hooks]
        self._parts = [part(hook) for _, hook in hooks]
        self._before = {
            (id(holder), name): dict(holder[name])
            for _, holder, table, how in _hook_tables(root)
            for name in (table, *how)
        }

    def hooks(self, root: torch.nn.Module) -> list[Any]:
        """The hooks that count."""
        return [hook for _, hook in self._hooks(root)]

    def _hooks(self, root: torch.nn.Module) -> Iterator[tuple[tuple[str, ...], Any]]:
        """(where it is and how it is called, the hook)."""
        for where, holder, table, how in _hook_tables(root):
            if self._own or holder is not vars(root):
                for key, hook in holder[table].items():
                    yield (where, table, *_ways(holder, how, key)), hook

    def refusal(self, now: Any) -> str | None:
        places = [place for place, _ in self._hooks(now)]
        return None if places == self._places else "has other forward hooks, or calls them in another way"

    def parts(self, now: Any) -> Iterator[tuple[str, Condition, Any]]:
        for (place, hook), part in zip(self._hooks(now), self._parts, strict=True):
            yield f"=a forward hook of {place[0]}", part, hook

    def stored(self) -> tuple[frozenset[str], Any]:
        return frozenset(), self._places

    def watches(self, now: Any) -> Iterator[Watch]:
        for _, holder, table, how in _hook_tables(now):
            if not holder[table] or not (self._own or holder is not vars(now)):
                continue
            for name in (table, *how):
                held = holder[name]
                yield "entry", holder, name, held
                yield "dict", held, tuple(dict.keys(held)), tuple(dict.values(held))
            yield "call", functools.partial(tuple, holder[table]), tuple(holder[table])  # it has an order of its own

    def changed(self, now: Any, before: Before) -> list[Change]:
        changes = []
        for where, holder, table, how in _hook_tables(now):
            if all(_same_entries(holder[name], self._was(holder, name)) for name in (table, *how)):
                continue
            was, held = self._was(holder, table), holder[table]
            added = [(key, hook, _ways(holder, how, key)) for key, hook in list(held.items())[len(was) :]]
            only_added = _same_entries(dict(list(held.items())[: len(was)]), was)
            value: Any = now
            if only_added and all(_can_be_hung_up(hook, before) for _, hook, _ in added):
                value = AddedHooks(holder, table, tuple(added))
            changes.append(Change(f"=the forward hooks of {where}", f"{where}: {table}", value))
        return changes

    def _was(self, holder: Mapping[str, Any], name: str) -> Mapping[int, Any]:
        return self._before.get((id(holder), name), {})

    def set(self, now: Any, name: str, value: Any) -> None:
        value.put()

    def forget(self) -> None:
        self._before = {}

    def restore(self, value: Any, original: Callable[[Condition], Any]) -> None:
        for _, holder, table, how in _hook_tables(value):
            for name in (table, *how):
                was = self._was(holder, name)
                if not _same_entries(holder[name], was):
                    holder[name].clear()
                    holder[name].update(was)


def _hook_tables(root: torch.nn.Module) -> Iterator[tuple[str, Mapping[str, Any], str, tuple[str, ...]]]:
    """(whose, of what it is an attribute, name, names of the tables that say how) of each table of forward hooks."""
    holders = [("every module", "_global", vars(torch_module))]
    holders += [(f"'{name}'" if name else "the module", "", vars(module)) for name, module in root.named_modules()]
    for whose, prefix, holder in holders:
        for table, how in _FORWARD_HOOKS.items():
            if prefix + table in holder:
                yield whose, holder, prefix + table, tuple(prefix + name for name in how if prefix + name in holder)


def _ways(holder: Mapping[str, Any], how: tuple[str, ...], key: int) -> tuple[str, ...]:
    return tuple(name for name in how if key in holder[name])


def _same_entries(one: Mapping[int, Any], other: Mapping[int, Any]) -> bool:
    """Whether the same objects stand under the same keys, in the same order."""
    return [(key, id(value)) for key, value in one.items()] == [(key, id(value)) for key, value in other.items()]


def _can_be_hung_up(hook: Any, before: Before, depth: int = _DEEPEST) -> bool:
    """Whether a function holds nothing that the traced forward has made but such functions and what cannot change."""
    if is_value(hook) or before.outer_condition(hook) is not None:
        return True
    held: list[Any]
    if type(hook) in (tuple, dict):
        held = [*hook, *(hook.values() if type(hook) is dict else ())]
    elif type(hook) in WRAPPERS:
        held = [one for _, one in wrapped_parts(hook)]
    elif type(hook) is types.FunctionType and not vars(hook):
        held = [cell_content(cell) for cell in hook.__closure__ or ()]
        held += [*(hook.__defaults__ or ()), *(hook.__kwdefaults__ or {}).values()]
    else:
        return False
    return depth > 0 and all(one is not MISSING and _can_be_hung_up(one, before, depth - 1) for one in held)
