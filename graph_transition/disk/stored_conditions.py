"""The conditions of a graph as plain data, and back.

What is kept is where a forward has looked: of each object the names that were asked for, and the way that leads to it.
In another process the same places are looked up in the objects that are there, and conditions made of what they hold.
What they say of what they found (`Condition.stored`) is what the entry has, or it is not used. The entry's key
(fingerprint.py) has most of it too, so that another state of the program finds another entry.

Not here: what a condition keeps of itself (../conditions), files (cache.py).
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import types
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from ...naming import module_of
from ..audit import Effect, Reads
from ..conditions import (
    Argument,
    Check,
    Condition,
    HooksCondition,
    NotStorable,
    OuterTensorCondition,
    QueryCondition,
    Roots,
    TreeAttributesCondition,
    ValueCondition,
    plain_text,
    shown,
)
from .stored import Unfit, attribute_of

__all__ = ["looked_up_again", "stored_conditions"]


def stored_conditions(roots: Roots, effects: Sequence[Effect], module: torch.nn.Module) -> dict[str, Any]:
    """Plain data of the conditions that `roots` lead to, and of what the forward leaves behind.

    Raises:
        NotStorable: one has no plain form, or cannot be found again in another process.
    """
    numbers: dict[int, int] = {}
    names: dict[frozenset[str], int] = {}
    pending: deque[tuple[Condition, Any]] = deque()
    nodes: list[list[Any]] = []

    def number(condition: Condition, now: Any) -> int:
        if id(condition) not in numbers:
            numbers[id(condition)] = len(numbers)
            pending.append((condition, now))
        return numbers[id(condition)]

    if any(isinstance(held, Argument) for _, _, held in roots):
        raise NotStorable("an object among the arguments")
    kept = [root for root in roots if not _stands_for_its_version(root[2], module)]
    places = [[_place_of(condition, now, module), number(condition, now)] for _, condition, now in kept]
    while pending:
        condition, now = pending.popleft()
        if isinstance(condition, OuterTensorCondition) and attribute_of(module, now) is None:
            raise NotStorable("a tensor of the program")  # the graph may have it as a constant
        asked, further = condition.stored()
        parts = [
            [name, plain_text(part.value) if isinstance(part, ValueCondition) else number(part, held)]
            for name, part, held in _labelled(condition.parts(now))
        ]
        nodes.append([condition.kind, names.setdefault(asked, len(names)), further, parts])
    left = [[effect.text, numbers[id(effect.condition)], effect.name, _plain(effect.value)] for effect in effects]
    return {"roots": places, "names": [sorted(known) for known in names], "nodes": nodes, "effects": left}


def looked_up_again(
    stored: dict[str, Any], module: torch.nn.Module, vouched: frozenset[int]
) -> tuple[Roots, list[Effect]]:
    """The conditions of an entry, on the objects of this process, and what its forward leaves behind.

    Raises:
        Unfit: the way to an object is not there, or another kind of object is at its end, or another plain value.
    """
    reads = Reads((), vouched, frozenset(map(id, module.modules())))
    names = [frozenset(known) for known in stored["names"]]
    met: dict[int, Condition] = {}
    nodes: dict[int, int] = {}  # by the identity of a condition
    looked_up: set[int] = set()
    pending: deque[tuple[int, Condition, Any]] = deque()
    pending.extend(_new_roots(stored, reads, module))
    while pending:
        node, condition, now = pending.popleft()
        if met.setdefault(node, condition) is not condition:
            raise Unfit(f"{shown(now)} is another object than the one it was")
        if nodes.setdefault(id(condition), node) != node:
            raise Unfit(f"{shown(now)} is the same object as another now")
        if node in looked_up:
            continue
        looked_up.add(node)
        kind, asked, further, parts = stored["nodes"][node]
        if condition.kind != kind:
            raise Unfit(f"there is a {condition.kind} where the entry has a {kind}")
        condition.look_up(now, names[asked], further, reads)
        if _said(condition) != further:
            raise Unfit(f"the {kind} {shown(now)} is not what it was when the entry was written")
        pending.extend(_same_parts(condition, now, kind, parts))
    reads.settle_classes()
    refusal = Check().refusal(reads.roots)
    if refusal is not None:
        raise Unfit(refusal.reason)
    effects = [Effect(text, met[node], name, value) for text, node, name, value in stored["effects"]]
    return reads.roots, effects


def _new_roots(stored: dict[str, Any], reads: Reads, module: torch.nn.Module) -> Iterator[tuple[int, Condition, Any]]:
    for place, node in stored["roots"]:
        found = _found(place, module)
        if place[0] == "query":
            reads.roots.append((f"what {found.__name__}() says", QueryCondition(found), found))
        elif place[0] == "loaded modules":
            reads.loaded_modules()
        elif place[0] == "globals":
            reads.roots.append(("", reads.namespace(stored["nodes"][node][2][0], found), found))
        elif place[0] == "hooks":
            reads.roots.append(("", HooksCondition(module, reads.part), module))
        elif place[0] == "tensors":
            reads.roots.append(("the module", TreeAttributesCondition(), module))
        else:
            reads.root(_text_of(place), found)
        yield node, reads.roots[-1][1], found


def _same_parts(
    condition: Condition, now: Any, kind: str, parts: Iterable[tuple[str, Any]]
) -> Iterator[tuple[int, Condition, Any]]:
    """What `now` leads to, where that is what the entry has; plain values are compared here."""
    there = {name: (part, held) for name, part, held in _labelled(condition.parts(now))}
    more = there.keys() - {name for name, _ in parts}
    if any(not name.endswith("__") or now is torch.Tensor for name in more):  # of that the key has nothing
        raise Unfit(f"there is more of the {kind} {shown(now)}: {', '.join(sorted(more))}")
    for name, inner in parts:
        if name not in there and kind == "class" and name.endswith("__"):
            continue  # a special method that comes with a first use; the key has the class's code
        if name not in there:
            raise Unfit(f"there is no '{name}' of the {kind} {shown(now)}, where the entry has one")
        part, held = there[name]
        if not isinstance(inner, str):
            yield inner, part, held
        elif not isinstance(part, ValueCondition) or plain_text(part.value) != inner:
            raise Unfit(f"'{name}' is not {inner}")


def _said(condition: Condition) -> Any:
    try:
        return json.loads(json.dumps(condition.stored()[1]))  # as a file has it
    except NotStorable as e:
        raise Unfit(f"{e} is not stored") from e


def _plain(value: Any) -> Any:
    if value is not None and type(value) not in (bool, int, float, str):
        raise NotStorable(f"the forward leaves {shown(value)} behind")
    return value


def _labelled(parts: Iterable[tuple[str, Condition, Any]]) -> Iterator[tuple[str, Condition, Any]]:
    """The parts with a name of its own for each."""
    counts: Counter[str] = Counter()
    for name, part, held in parts:
        counts[name] += 1
        yield name if counts[name] == 1 else f"{name} ({counts[name]})", part, held


def _stands_for_its_version(now: Any, module: torch.nn.Module) -> bool:
    """Whether a function of an installed package cannot be found by its name; the entry's key has the version."""
    if not isinstance(now, types.FunctionType) or "-packages/" not in now.__code__.co_filename:
        return False
    try:
        return _found(["named", module_of(now), now.__qualname__], module) is not now
    except Unfit:
        return True


def _place_of(condition: Condition, now: Any, module: torch.nn.Module) -> list[str]:
    """Where a root is found again."""
    if now is module:
        kinds = {HooksCondition: "hooks", TreeAttributesCondition: "tensors"}
        return [kinds.get(type(condition), "module")]
    if isinstance(now, torch.nn.Module):
        return ["sub-module", *(name for name, one in module.named_modules() if one is now)][:2]
    if isinstance(now, types.ModuleType):
        return ["python module", now.__name__]
    if type(now) is dict and vars(sys.modules.get(str(now.get("__name__")), None) or object) is now:
        return ["globals", now["__name__"]]
    if isinstance(now, logging.Logger):
        return ["logger", now.name]
    if now is sys.modules:
        return ["loaded modules"]
    if not isinstance(getattr(now, "__qualname__", None), str):
        raise NotStorable(f"{shown(now)} has no name to be found by")
    kind = "query" if isinstance(condition, QueryCondition) else "named"
    place = [kind, module_of(now), now.__qualname__]
    try:
        same = _found(place, module) is now
    except (Unfit, AttributeError):
        same = False
    if not same:
        raise NotStorable(f"{shown(now)} cannot be found by its name")
    return place


def _found(place: Sequence[str], module: torch.nn.Module) -> Any:
    if place[0] in ("module", "hooks", "tensors"):
        return module
    if place[0] == "sub-module":
        return module.get_submodule(place[1])
    if place[0] == "loaded modules":
        return sys.modules
    if place[0] == "globals":
        return vars(_found(["python module", place[1]], module))
    if place[0] == "logger":
        return logging.getLogger(place[1])  # of "root" the root
    found: Any = sys.modules.get(place[1])
    if found is None and place[1].startswith("torch"):
        found = importlib.import_module(place[1])
    if found is None:
        raise Unfit(f"there is no module {place[1]}")
    for part in place[2].split(".") if len(place) > 2 else ():
        found = getattr(found, part, None)
        if found is None:
            raise Unfit(f"there is no {place[1]}.{place[2]}")
    return found


def _text_of(place: Sequence[str]) -> str:
    if place[0] == "module":
        return ""
    if place[0] == "sub-module":
        return f".{place[1]}"
    if place[0] == "logger":
        return f"the logger {place[1]}"
    return f"the module {place[1]}" if place[0] == "python module" else f"the function {place[2]}"
