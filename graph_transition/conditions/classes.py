"""Classes: members that were looked up by name on them or their bases, and their special methods.

Python finds special methods without naming them (`if x:` calls `__bool__` or `__len__`, if there is one), so all that a
class has of them count, and that it has no others.
"""

from __future__ import annotations

import abc
import functools
import operator
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ... import _C
from ...capture.trace.patching import ORIGINALS
from ...naming import full_name, module_of
from .condition import MISSING, Before, Change, Condition, Maker, Watch, digest, shown
from .equality import is_another
from .identity import IdentityCondition, UnknownCondition
from .origin import is_opaque

__all__ = ["ClassCondition", "found_on"]

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: others cannot change
_NO_METHODS = frozenset(
    {
        "__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__qualname__", "__slots__", "__name__",
        "__firstlineno__", "__static_attributes__", "__annotate__", "__annotations_cache__", "__dataclass_fields__",
        "__dataclass_params__", "__orig_bases__", "__parameters__", "__type_params__", "__constants__",
        "__abstractmethods__", "__init_subclass__", "__subclasshook__", "__class_getitem__",
        "__jit_unused_properties__", "__setstate__", "__slotnames__",
    }
)  # fmt: skip
_METHODS = (types.FunctionType, staticmethod, classmethod, property)
_OF_INSTANCES = (types.MemberDescriptorType, types.GetSetDescriptorType)
# Who names one of these may look past the first class that has a name.
_LOOKS_BEHIND = frozenset({"super", "mro", "__mro__", "__base__", "__bases__"})
_TOLD = ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__")
_TOLD_APART = frozenset({"__name__", "__qualname__"})  # which lie outside of the class's dictionary


def found_on(kind: type, name: str) -> Any:
    """What a class or its bases have under a name, as it lies there."""
    for base in kind.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return MISSING


class ClassCondition(Condition):
    """The same class, with the same members under the names that were looked up."""

    kind = "class"
    __slots__ = (
        "_class",
        "_bases",
        "_members",
        "_behind",
        "_asked",
        "_special",
        "_told",
        "_meta",
        "_own",
        "_registered",
        "_found",
        "_every",
        "_methods",
        "_holds_at",
    )

    def __init__(self, kind: type) -> None:
        self._class = kind
        self._bases = kind.__mro__  # `isinstance` asks them without naming one
        self._members: dict[str, Condition] = {}
        # What a base has under a name that a class before it has, too, by (name, base); None: nobody looks there.
        self._behind: dict[tuple[str, type], Condition] | None = None
        self._asked: frozenset[str] = frozenset()
        self._special: dict[str, Condition] | None = None
        self._told: dict[str, Any] = {}
        self._meta: Condition | None = None  # of the class's class
        self._registered = _registered(kind)
        self._own: dict[str, Any] = {}  # what the class itself has under the names; until the trace is over
        self._found: dict[Any, tuple[int, list[tuple[str, Any]]]] = {}  # with the class's version then
        # Where it was taken whole: all names of the class and its bases, and which of them has each.
        self._every: frozenset[tuple[str, type]] | None = None
        self._methods: dict[str, Any] = {}  # of these, what was not spelled out
        self._holds_at = 0  # a version of the class with which the names were as they were

    @property
    def can_change(self) -> bool:
        return bool(self._class.__flags__ & _HEAP_TYPE)

    def grow(self, names: frozenset[str], whole: bool, part: Callable[[Any], Condition]) -> list[tuple[str, Any]]:
        """Notes that `names`, or names that were computed, were looked up on the class or an instance; returns (name,
        member) of those found.
        """
        if not self.can_change:
            return []
        version = _C.class_version(self._class)
        look = (names, whole)
        known = self._found.get(look)
        if known is not None and version and known[0] == version:
            return known[1]
        self._holds_at = 0
        if type(self._class) is not type and self._meta is None:
            self._meta = part(type(self._class))
        for name in _TOLD:
            if name in names:
                self._told[name] = _told(self._class, name)
        if whole:
            self._every = _every_name(self._class) if self._every is None else self._every
            for name in _computable_names(self._class) - names - self._asked:
                member = found_on(self._class, name)
                if name in vars(self._class):
                    self._own.setdefault(name, member)
                if isinstance(member, _METHODS):  # which are heard of when they run
                    self._methods.setdefault(name, ORIGINALS.get(id(member), member))
                else:
                    names = names | {name}
        found = []
        own = vars(self._class)
        for name in (own.keys() & names) - self._asked:
            self._own.setdefault(name, own[name])
        for name in names:
            if _is_special(name):
                continue
            member = found_on(self._class, name)
            if member is MISSING:
                continue
            if name not in self._members and name not in self._asked:
                self._members[name] = part(member)
            found.append((name, member))
        self._asked = names if self._asked <= names else self._asked | names
        if self._behind is not None or not _LOOKS_BEHIND.isdisjoint(names):
            found += self._grown_behind(part, special=False)
        self._found[look] = (version, found)
        return found

    def _grown_behind(self, part: Callable[[Any], Condition], special: bool) -> list[tuple[str, Any]]:
        known = self._behind = self._behind or {}
        places = [place for place in _names_behind(self._class, self._asked) if _is_special(place[0]) == special]
        met = [(name, base, ORIGINALS.get(id(member := vars(base)[name]), member)) for name, base in places]
        known |= {(name, base): part(member) for name, base, member in met if (name, base) not in known}
        return [(name, member) for name, _, member in met]

    def functions(self) -> Iterator[Any]:
        """Those of the methods that computed names may find."""
        for member in self._methods.values():
            parts = (member.fget, member.fset, member.fdel) if isinstance(member, property) else (member,)
            yield from (getattr(one, "__func__", one) for one in parts if one is not None)

    def take_special(self, part: Callable[[Any], Condition]) -> None:
        """Takes the special methods in, once nothing is replaced any more for a capture."""
        self._found, self._holds_at = {}, 0
        if self._special is None:
            found = _special(self._class) if self.can_change else []
            self._special = {name: self._special_part(name, member, part) for name, member in found}
        if self._behind is not None:
            self._grown_behind(part, special=True)

    def _special_part(self, name: str, member: Any, part: Callable[[Any], Condition]) -> Condition:
        """Of a special method. What Python cannot call counts as what it is where no code has spelled its name, as
        objects in C that pydantic keeps there.
        """
        condition = part(member)
        calls = callable(member) or hasattr(type(member), "__get__")
        unread = isinstance(condition, UnknownCondition) and not calls and name not in self._asked
        return IdentityCondition(member) if unread else condition

    def refusal(self, now: Any) -> str | None:
        if now is not self._class:
            return f"changed from {shown(self._class)} to {shown(now)}"
        if not self.can_change:
            return None
        if len(now.__mro__) != len(self._bases) or any(map(operator.is_not, now.__mro__, self._bases)):
            return f"(class {now.__qualname__}) has other bases"
        version = _C.class_version(now)
        if not version or version != self._holds_at:
            for name in self._asked:
                if not _is_special(name):
                    if (found_on(now, name) is MISSING) != (name not in self._members):
                        return f"(class {now.__qualname__}) has got or lost '{name}'"
            if self._behind is not None and {*_names_behind(now, self._asked)} != self._behind.keys():
                return f"(class {now.__qualname__}) has got or lost a member of a base that 'super' finds"
            for name, member in self._methods.items():
                if found_on(now, name) is not member:
                    return f"(class {now.__qualname__}) has another '{name}'"
            if self._every is not None and (others := _every_name(now) ^ self._every):
                return f"(class {now.__qualname__}) has got or lost {', '.join(sorted({name for name, _ in others}))}"
            if self._special is not None and [name for name, _ in _special(now)] != list(self._special):
                return f"(class {now.__qualname__}) has got or lost a special method"
            self._holds_at = version
        if self._registered is not None and _registered(now) != self._registered:
            return f"(class {now.__qualname__}) has got a class registered"
        for name, was in self._told.items():
            if _told(now, name) != was:
                return f"(class {now.__qualname__}) changed its {name}"
        return None

    def parts(self, now: Any) -> Iterator[tuple[str, Condition, Any]]:
        if self._meta is not None:
            yield "", self._meta, type(now)
        for name, part in self._members.items():
            yield f"={now.__qualname__}.{name}", part, found_on(now, name)
        for (name, base), part in (self._behind or {}).items():
            yield f"={base.__qualname__}.{name}", part, vars(base)[name]
        if self._special:
            tables = [vars(base) for base in _own_bases(now)]
            for name, part in self._special.items():
                yield f"={now.__qualname__}.{name}", part, _special_member(tables, name)

    def changed(self, now: Any, before: Before) -> list[Change]:
        return [Change(f".{name}", None, held) for name, held in self._other(before.own)]

    def _other(self, own: Callable[[Any], Any]) -> list[tuple[str, Any]]:
        """(name, what is there now or MISSING) of the class's own members that are not what they were."""
        held = vars(self._class)
        found = []
        looked_at = self._asked if self._every is None else self._asked | _computable_names(self._class)
        for name in (held.keys() | self._own.keys()) & (looked_at - _NO_METHODS):
            now, was = own(held.get(name, MISSING)), own(self._own.get(name, MISSING))
            if is_another(now, was):
                found.append((name, now))
        return found

    def forget(self) -> None:
        self._own = {}
        self._found = {}

    def restore(self, value: Any, original: Callable[[Condition], Any]) -> None:
        for name, _ in self._other(lambda one: one):
            if name in self._own:
                type.__setattr__(value, name, self._own[name])
            else:
                type.__delattr__(value, name)

    def stored(self) -> tuple[frozenset[str], Any]:
        return self._asked | frozenset(self._told), [
            self._every is not None, self._meta is not None, digest(sorted(self._told.items())),
            digest([full_name(base) for base in self._bases]),
        ]  # fmt: skip

    def look_up(self, now: Any, names: frozenset[str], further: Any, maker: Maker) -> None:
        if names or further[0] or further[1]:  # else nobody has asked for anything
            self.grow(names, further[0], maker.part)
        self.take_special(maker.part)

    def watches(self, now: Any) -> Iterator[Watch]:
        if self.can_change:
            yield "class", now
        for name in _TOLD_APART & self._told.keys():
            yield "attribute", now, name, self._told[name]
        if "__annotations__" in self._told:  # a dict that is written in place
            yield "call", functools.partial(_told, now, "__annotations__"), self._told["__annotations__"]
        if self._registered is not None:
            yield "call", abc.get_cache_token, abc.get_cache_token()


def _registered(kind: type) -> frozenset[int] | None:
    """Which classes were registered with an abstract class or one that derives from it; None for any other class."""
    return _registered_by(kind, abc.get_cache_token()) if isinstance(kind, abc.ABCMeta) else None


@functools.lru_cache(maxsize=1024)
def _registered_by(kind: type, token: object) -> frozenset[int]:
    found: set[int] = set()
    pending, met = [kind], {kind}
    while pending:
        one = pending.pop()
        if isinstance(one, abc.ABCMeta):
            found.update(id(reference()) for reference in abc._get_dump(one)[0])  # type: ignore[attr-defined]
        derived: list[type] = type.__subclasses__(one)
        further = [other for other in derived if other not in met]
        met.update(further)
        pending += further
    return frozenset(found)


def _special_member(tables: Sequence[Mapping[str, Any]], name: str) -> Any:
    """What `_special` finds of this name, in the tables of a class and its bases."""
    for table in tables:
        member = table.get(name, MISSING)
        if member is not MISSING and not isinstance(member, types.GetSetDescriptorType):
            return member
    return MISSING


def _own_bases(kind: type) -> list[type]:
    """The class and its bases, but those that cannot change and opaque ones; operators ask torch.Tensor."""
    own = (base for base in kind.__mro__ if base is torch.Tensor or not is_opaque(base))
    return [base for base in own if base.__flags__ & _HEAP_TYPE]


def _names_behind(kind: type, names: frozenset[str]) -> list[tuple[str, type]]:
    """(name, base) of what bases that can change have under names that a class before them has."""
    met = frozenset[str]()
    found = []
    for base in kind.__mro__:
        own = names & vars(base).keys()
        if base.__flags__ & _HEAP_TYPE:
            found += [(name, base) for name in sorted(own & met)]
        met |= own
    return found


def _told(kind: type, name: str) -> Any:
    told = getattr(kind, name, None)
    return repr(told) if name == "__annotations__" else told


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _every_name(kind: type) -> frozenset[tuple[str, type]]:
    """(name, who has it) of what the class and its bases have, but opaque ones; not what Python and abc keep there."""
    own = (base for base in _own_bases(kind) if base is not torch.Tensor)  # a trace adds to that one
    return frozenset((name, base) for base in own for name in vars(base) if not name.startswith(("__", "_abc_")))


def _computable_names(kind: type) -> frozenset[str]:
    """The same but slots, and of torch's classes functions and classes."""
    return frozenset(
        name
        for base in _own_bases(kind)
        for name, member in vars(base).items()
        if not name.startswith(("__", "_abc_")) and not isinstance(member, _OF_INSTANCES)
        if not isinstance(member, (*_METHODS, type)) or module_of(base).partition(".")[0] != "torch"
    )


def _special(kind: type) -> list[tuple[str, Any]]:
    found: dict[str, Any] = {}
    for base in _own_bases(kind):
        for name, member in vars(base).items():
            if _is_special(name) and name not in _NO_METHODS and name not in found:
                if not isinstance(member, types.GetSetDescriptorType):
                    found[name] = member
    return sorted(found.items())
