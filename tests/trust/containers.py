"""What wraps a value: containers and objects of every kind, one in the other.

`$v` is what is wrapped, `$h` the container, `$w` what a change puts in its place.
"""

from __future__ import annotations

import dataclasses

from .places import Step

__all__ = ["CONTAINERS", "Container"]


@dataclasses.dataclass(frozen=True)
class Container:
    """A container.

    Attributes:
        build: expression of a new one around $v.
        step: how to get at what it wraps.
        put: statement that replaces that, or nothing if it cannot be.
        further: (label, statement): other changes of it.
        hashed: whether what it wraps must be hashable.
        bare: whether it wraps values only, no containers.
    """

    name: str
    build: str
    step: Step
    put: str = ""
    further: tuple[tuple[str, str], ...] = ()
    hashed: bool = False
    bare: bool = False
    only: tuple[str, ...] = ()
    watchable: bool = True


_LIST = (
    ("insert", "$h.insert(0, $w)"), ("reverse", "$h.reverse()"), ("slice", "$h[:] = [$w, 7.0]"), ("pop", "$h.pop(0)"),
        ("append", "$h.append(7.0)"),
    ("clear", "$h.clear()"), ("extend", "$h.extend([7.0])"),
)  # fmt: skip
_DICT = (
    ("delete", "del $h['k']"), ("order", "$h['k'] = $h.pop('k', $w)"), ("update", "$h.update(k=$w)"), ("add",
        "$h['a'] = 9.0"), ("clear", "$h.clear()"),
    ("setdefault", "$h.setdefault('k', $w)"), ("in front", "old = dict($h)\n$h.clear()\n$h['a'] = $w\n$h.update(old)"),
)  # fmt: skip
_OBJECT = (
    ("delete", "del $h.k"),
    ("add", "$h.other = 3.0"),
    ("__dict__", "$h.__dict__ = {'k': $w}"),
    ("update", "vars($h).update(k=$w)"),
)

CONTAINERS = [
    Container("list", "[$v, 7.0]", ("index", "0"), "$h[0] = $w", _LIST),
    Container("tuple", "($v, 7.0)", ("index", "0")),
    Container("dict", "{'k': $v, 'z': 7.0}", ("key", "'k'"), "$h['k'] = $w", _DICT),
    Container("dict with numbers as keys", "{1: $v, 2: 7.0}", ("key", "1"), "$h[1] = $w", (("equal key",
        "del $h[1]\n$h[True] = $w"), ("delete", "del $h[1]"))),
    Container("dict with tuples as keys", "{('k', 1): $v}", ("key", "('k', 1)"), "$h['k', 1] = $w", (("delete",
        "del $h['k', 1]"),)),
    Container("dict with members as keys", "{Mode.A: $v, Mode.B: 7.0}", ("key", "Mode.A"), "$h[Mode.A] = $w",
        (("delete", "del $h[Mode.A]"),)),
    Container("dict with objects as keys", "{Plain: $v}", ("key", "Plain"), "$h[Plain] = $w"),
    Container("OrderedDict", "collections.OrderedDict(k=$v, z=7.0)", ("key", "'k'"), "$h['k'] = $w", (*_DICT, ("move",
        "$h.move_to_end('k')"), ("popitem", "$h.popitem(last=False)"))),
    Container("defaultdict", "collections.defaultdict(lambda: $d, k=$v)", ("key", "'k'"), "$h['k'] = $w", (("delete",
        "del $h['k']"), ("factory", "del $h['k']\n$h.default_factory = lambda: $w"))),
    Container("Counter", "collections.Counter({'k': $v})", ("key", "'k'"), "$h['k'] = $w", (("add",
        "$h.update({'k': 2})"), ("delete", "del $h['k']"), ("subtract", "$h.subtract(k=1)")), bare=True, only=("float",
        "int", "equal number")),
    Container("deque", "collections.deque([$v, 7.0], maxlen=3)", ("index", "0"), "$h[0] = $w", (("left",
        "$h.appendleft($w)"), ("rotate", "$h.rotate(1)"), ("pop", "$h.popleft()"), ("append", "$h.append($w)"))),
    Container("set", "{$v}", ("only", ""), "$h.clear(); $h.add($w)", (("replace",
        "$h.intersection_update(()); $h.update({$w})"),), hashed=True, bare=True),
    Container("frozenset", "frozenset({$v})", ("only", ""), hashed=True, bare=True),
    Container("attribute dict", "AttrDict(k=$v)", ("slot", "k"), "$h.k = $w", (("delete", "del $h['k']"), ("item",
        "$h['k'] = $w"))),
    Container("subclass of list", "ListSub([$v, 7.0])", ("index", "0"), "$h[0] = $w", _LIST),
    Container("subclass of dict", "DictSub(k=$v, z=7.0)", ("key", "'k'"), "$h['k'] = $w", _DICT),
    Container("subclass of dict with __missing__", "Missing(z=$v)", ("key", "'k'"), "$h['z'] = $w", (("found",
        "$h['k'] = $w"),)),
    Container("subclass of tuple", "TupleSub(($v, 7.0))", ("index", "0")),
    Container("UserDict", "collections.UserDict(k=$v)", ("key", "'k'"), "$h['k'] = $w", (("data", "$h.data['k'] = $w"),
        ("delete", "del $h['k']"))),
    Container("UserList", "collections.UserList([$v, 7.0])", ("index", "0"), "$h[0] = $w", (("data",
        "$h.data.insert(0, $w)"),)),
    Container("ChainMap", "collections.ChainMap({}, {'k': $v})", ("key", "'k'"), "$h.maps[1]['k'] = $w", (("shadow",
        "$h['k'] = $w"), ("maps", "$h.maps.insert(0, {'k': $w})"))),
    Container("mapping proxy", "types.MappingProxyType({'k': $v, 'z': 7.0})", ("key", "'k'")),
    Container("namespace", "types.SimpleNamespace(k=$v, z=7.0)", ("attr", "k"), "$h.k = $w", _OBJECT[:2]),
    Container("argparse namespace", "argparse.Namespace(k=$v)", ("attr", "k"), "$h.k = $w", _OBJECT),
    Container("object", "Plain($v)", ("attr", "k"), "$h.k = $w", (*_OBJECT, ("__class__", "$h.__class__ = Other"))),
    Container("slots", "Slots($v)", ("slot", "k"), "$h.k = $w", (("delete", "del $h.k"),)),
    Container("slots and __dict__", "SlotsToo($v)", ("slot", "k"), "$h.k = $w", (("delete", "del $h.k"), ("add",
        "$h.z = 3.0"))),
    Container("dataclass", "Data($v)", ("attr", "k"), "$h.k = $w", (("delete", "del $h.k"),)),
    Container("slots dataclass", "SlotsData($v)", ("slot", "k"), "$h.k = $w"),
    Container("frozen dataclass", "Frozen($v)", ("attr", "k"), "object.__setattr__($h, 'k', $w)"),
    Container("named tuple", "Pair($v, 7.0)", ("slot", "k")),
    Container("typed named tuple", "Typed($v)", ("slot", "k")),
    Container("object with a property", "Prop($v)", ("slot", "k"), "$h._k = $w", (("property",
        "type($h).k = property(lambda self: $w)"),)),
    Container("object with __getattr__", "Getter({'k': $v})", ("slot", "k"), "$h.kept['k'] = $w", (("found",
        "$h.__dict__['k'] = $w"), ("delete", "del $h.kept['k']"))),
    Container("object with __getattribute__", "Mapped($v)", ("slot", "k"), "object.__setattr__($h, 'real_k', $w)",
        (("map", "type($h).names = {'k': 'other'}"),)),
    Container("object with __getitem__", "Items({'k': $v})", ("item", "'k'"), "$h.kept['k'] = $w", (("method",
        "type($h).__getitem__ = lambda self, key: $w"),)),
    Container("object with __len__ and __iter__", "Series([$v])", ("iter", ""), "$h.kept[0] = $w", (("method",
        "type($h).__iter__ = lambda self: iter([$w])"),)),
    Container("object that equals all", "Same($v)", ("attr", "k"), "$h.k = $w", _OBJECT[:2]),
    Container("module object", "module_of($v)", ("attr", "k"), "$h.k = $w", (("delete", "vars($h).pop('k', None)"),)),
    Container("class", "type('C', (), {'k': $v})", ("attr", "k"), "$h.k = $w", (("delete", "del $h.k"),)),
    Container("partial", "functools.partial(ident, $v)", ("call", "")),
    Container("lambda", "(lambda v: lambda: v)($v)", ("call", ""), "$h.__closure__[0].cell_contents = $w"),
    Container("bound method", "Plain($v).get", ("call", ""), "$h.__self__.k = $w"),
    Container("object with __call__", "Caller($v)", ("call", ""), "$h.k = $w"),
    Container("plain module", "Held($v)", ("attr", "k"), "$h.k = $w", (("delete", "del $h.k"),)),
    Container("array", "array.array('d', [$v, 7.0])", ("index", "0"), "$h[0] = $w", (("insert", "$h.insert(0, $w)"),),
        bare=True, only=("float", "int", "equal number")),
    Container("long list", "[7.0] * 70 + [$v]", ("index", "-1"), "$h[-1] = $w", (("insert", "$h.insert(0, 1.0)"),
        ("append", "$h.append($w)"), ("middle", "$h[35] = 9.0"))),
    Container("long dict", "{**dict.fromkeys(range(80), 7.0), 'k': $v}", ("key", "'k'"), "$h['k'] = $w", (("delete",
        "del $h['k']"), ("other", "$h[40] = 9.0"))),
    Container("very long list", "[7.0] * 5000 + [$v]", ("index", "-1"), "$h[-1] = $w", watchable=False),
    Container("object array", "object_array($v)", ("index", "0"), "$h[0] = $w", bare=True, only=("float", "string",
        "flag", "None"), watchable=False),
]  # fmt: skip
