"""How a forward reads: forms of one step (an attribute, a key, an item), and of a whole expression.

`$h` is what is read from, `$k` the name, key or number there, `$q` the name from its end, so that the forward has to
    put it together, `$d` a value for where it is absent,
    `$e` a whole expression,
`$t` a local name. A form is a prelude, if it needs statements, and the expression that then has the value.
"""

from __future__ import annotations

import dataclasses

__all__ = ["DIRECT", "MATCHED_BY_NAME", "STEPS", "WHOLE", "Reading"]


@dataclasses.dataclass(frozen=True)
class Reading:
    name: str
    expression: str
    prelude: str = ""


# The plain form of each kind of step.
DIRECT = {
    "attr": "$h.$k",
    "slot": "$h.$k",
    "super": "$h.$k",
    "absent": "$h.$k",
    "item": "$h[$k]",
    "key": "$h[$k]",
    "index": "$h[$k]",
    "call": "$h()",
    "only": "max($h)",
    "iter": "[*$h][0]",
}

_ATTRIBUTE = [
    Reading("getattr", "getattr($h, '$k')"),
    Reading("getattr, a default", "getattr($h, '$k', $d)"),
    Reading("getattr, a computed name", "getattr($h, ''.join(['$k']))"),
    Reading("getattr, a computed name and a default", "getattr($h, '%s' % '$k', $d)"),
    Reading("attrgetter", "operator.attrgetter('$k')($h)"),
    Reading("hasattr", "($h.$k if hasattr($h, '$k') else $d)"),
    Reading("try AttributeError", "$t", "try:\n    $t = $h.$k\nexcept AttributeError:\n    $t = $d"),
    Reading("match on an attribute", "$t",
        "match $h:\n    case object($k=found):\n        $t = found\n    case _:\n        $t = $d"),
    Reading("with attributes of names", "$t", "for name in ('$k',):\n    $t = getattr($h, name)"),
    Reading("suppress AttributeError", "$t", "$t = $d\nwith contextlib.suppress(AttributeError):\n    $t = $h.$k"),
    Reading("copied", "copy.copy($h).$k"),
    Reading("getattr of a helper", "(lambda o, name: getattr(o, name, $d))($h, '$k')"),
    Reading("dir", "($h.$k if '$k' in dir($h) else $d)"),
    Reading("getattr, a name put together", "getattr($h, ''.join(reversed('$q')))"),
    Reading("getattr, a name put together and a default", "getattr($h, ''.join(reversed('$q')), $d)"),
    Reading("hasattr, a name put together", "($h.$k if hasattr($h, ''.join(reversed('$q'))) else $d)"),
    Reading("another name of getattr", "by_name($h, ''.join(reversed('$q')), $d)"),
    Reading("another name of hasattr", "(by_name($h, ''.join(reversed('$q'))) if has_name($h, '$k') else $d)"),
    Reading("partial of getattr", "functools.partial(getattr, $h)(''.join(reversed('$q')), $d)"),
    Reading("map of getattr", "list(map(by_name, [$h], [''.join(reversed('$q'))], [$d]))[0]"),
    Reading("reduce by getattr", "functools.reduce(getattr, [''.join(reversed('$q'))], $h)"),
    Reading("getattr given to a helper", "(lambda get, *of: get(*of))(getattr, $h, ''.join(reversed('$q')), $d)"),
    Reading("attrgetter, a name put together", "operator.attrgetter(''.join(reversed('$q')))($h)"),
    Reading("another name of dir", "(by_name($h, '$k') if ''.join(reversed('$q')) in listed($h) else $d)"),
    Reading(
        "names in dir",
        "$t",
        "$t = $d\nfor name in dir($h):\n    if name[::-1] == '$q':\n        $t = getattr($h, name)",
    ),
]  # fmt: skip
_DICT_OF = [
    Reading("vars, a name put together", "vars($h)[''.join(reversed('$q'))]"),
    Reading("another name of vars", "names_of($h).get(''.join(reversed('$q')), $d)"),
    Reading("vars", "vars($h)['$k']"),
    Reading("__dict__", "$h.__dict__['$k']"),
    Reading("vars().get", "vars($h).get('$k', $d)"),
    Reading("in __dict__", "($h.__dict__['$k'] if '$k' in $h.__dict__ else $d)"),
    Reading(
        "loop over vars",
        "$t",
        "$t = $d\nfor name, value in vars($h).items():\n    if name == '$k':\n        $t = value",
    ),
    Reading(
        "comprehension over vars",
        "[value for name, value in sorted(vars($h).items(), key=lambda i: i[0]) if name == '$k'][0]",
    ),
    Reading("object.__getattribute__", "object.__getattribute__($h, '$k')"),
]
_KEY = [
    Reading("get", "$h.get($k)"),
    Reading("get, a default", "$h.get($k, $d)"),
    Reading("in", "($h[$k] if $k in $h else $d)"),
    Reading("try KeyError", "$t", "try:\n    $t = $h[$k]\nexcept KeyError:\n    $t = $d"),
    Reading("itemgetter", "operator.itemgetter($k)($h)"),
    Reading("loop over items", "$t", "for key, value in $h.items():\n    if key == $k:\n        $t = value"),
    Reading("first of values", "next(iter($h.values()))"),
    Reading("last of values", "list($h.values())[-1]"),
    Reading("dict()", "dict($h)[$k]"),
    Reading("unpacked", "{**$h}[$k]"),
    Reading("comprehension", "{key: value for key, value in $h.items()}[$k]"),
    Reading(
        "match on a key", "$t", "match $h:\n    case {$k: found}:\n        $t = found\n    case _:\n        $t = $d"
    ),
    Reading("setdefault", "$h.setdefault($k, $d)"),
    Reading("copied", "copy.copy($h)[$k]"),
    Reading("deepcopied", "copy.deepcopy($h)[$k]"),
    Reading("unpacked keys", "$t", "$t, *_ = $h\n$t = $h[$t]"),
    Reading("merged", "({0: 0} | dict($h))[$k]"),
    Reading("walrus", "(found if (found := $h.get($k)) is not None else $d)"),
    Reading("by position", "[*$h.items()][[*$h].index($k)][1]"),
]
# Instead of "match on a key" where the key is a name, which a pattern would bind, or a tuple.
MATCHED_BY_NAME = Reading(
    "match on a key",
    "$t",
    "match $h:\n    case {**kept} if $k in kept:\n        $t = kept[$k]\n    case _:\n        $t = $d",
)
_INDEX = [
    Reading("unpacked", "$t", "$t = [*$h][$k]"),
    Reading("list()", "list($h)[$k]"),
    Reading("tuple()", "tuple($h)[$k]"),
    Reading("itemgetter", "operator.itemgetter($k)($h)"),
    Reading("slice", "[*$h][$k:][0]"),
    Reading("by length", "$h[len($h) - 1 if $k < 0 else $k]"),
    Reading(
        "enumerate",
        "$t",
        "for i, value in enumerate($h):\n    if i == ($k if $k >= 0 else len($h) + $k):\n        $t = value",
    ),
    Reading("comprehension", "[value for value in $h][$k]"),
    Reading("reversed", "list(reversed($h))[-1 - $k]"),
    Reading("zip", "[a for a, b in zip($h, $h)][$k]"),
    Reading("map", "list(map(ident, $h))[$k]"),
    Reading("if it is long enough", "($h[$k] if len($h) > 1 else $d)"),
    Reading("try IndexError", "$t", "try:\n    $t = $h[$k]\nexcept IndexError:\n    $t = $d"),
    Reading("copied", "copy.copy($h)[$k]"),
    Reading("reduce", "functools.reduce(lambda a, b: [*a, b], $h, [])[$k]"),
    Reading("if not empty", "($h[$k] if $h else $d)"),
    Reading("starred call", "(lambda *given: given[$k])(*$h)"),
]
_FIRST = [
    Reading("unpacked", "$t", "$t, *_ = $h"),
    Reading("next", "next(iter($h))"),
    Reading("match on a sequence", "$t", "match $h:\n    case [$t, *_]:\n        pass\n    case _:\n        $t = $d"),
    Reading("loop", "$t", "for $t in $h:\n    break"),
    Reading("starred first", "first(*$h)"),
    Reading("any element", "next((value for value in $h if value is not None), $d)"),
]
_ONLY = [
    Reading("sorted", "sorted($h, key=str)[0]"),
    Reading("next", "next(iter($h))"),
    Reading("loop", "$t", "for $t in $h:\n    pass"),
    Reading("unpacked", "$t", "$t, = $h"),
    Reading("list", "list($h)[0]"),
    Reading("union", "min($h | set())"),
    Reading("truth", "(min($h) if $h else $d)"),
]
_CALL = [
    Reading("helper", "(lambda f: f())($h)"),
    Reading("map", "next(map(lambda f: f(), [$h]))"),
    Reading("callable", "($h() if callable($h) else $d)"),
    Reading("starred", "$h(*(), **{})"),
    Reading("__call__", "$h.__call__()"),
]
_ITER = [
    Reading("loop", "$t", "for $t in $h:\n    break"),
    Reading("length", "([*$h][len($h) - 1])"),
    Reading("sum", "[v for v in $h][0]"),
]

STEPS = {
    "attr": _ATTRIBUTE + _DICT_OF, "slot": _ATTRIBUTE, "key": _KEY, "index": _INDEX, "first": _INDEX + _FIRST, "only"
        : _ONLY, "call": _CALL,
    "absent": [r for r in _ATTRIBUTE + _DICT_OF if "$d" in r.expression + r.prelude],
    "item": [r for r in _KEY if r.name in ("itemgetter", "try KeyError", "copied", "deepcopied")],
    "iter": _ITER, "super": [r for r in _ATTRIBUTE if r.name in ("getattr", "getattr, a default", "hasattr",
        "try AttributeError")],
}  # fmt: skip

WHOLE = [
    Reading("helper", "ident($e)"),
    Reading("helper of a helper", "through($e)"),
    Reading("comprehension", "[v for v in [$e]][0]"),
    Reading("generator expression", "next(v for v in ($e,))"),
    Reading("generator", "next(produced($e))"),
    Reading("walrus", "($t := $e)"),
    Reading("lambda", "(lambda: $e)()"),
    Reading("context manager", "$t", "with holding($e) as $t:\n    pass"),
    Reading("context manager class", "$t", "with Scope($e) as $t:\n    pass"),
    Reading("copied", "copy.copy($e)"),
    Reading("reduce", "functools.reduce(lambda a, b: b, [$e], None)"),
    Reading("conditional", "($e if len('ab') == 2 else None)"),
    Reading("try finally", "$t", "try:\n    $t = $e\nfinally:\n    pass"),
    Reading("match", "$t", "match $e:\n    case $t:\n        pass"),
    Reading("unpacked", "$t", "$t, _ = $e, 1"),
    Reading("star arguments", "first(*[$e])"),
    Reading("keyword arguments", "ident(**{'v': $e})"),
    Reading("inner function", "$t()", "def $t():\n    return $e"),
    Reading("partial", "functools.partial(ident, $e)()"),
    Reading("map", "list(map(ident, [$e]))[0]"),
    Reading("dict display", "{'v': $e}['v']"),
    Reading("local object", "types.SimpleNamespace(v=$e).v"),
    Reading("decorated helper", "decorated(ident)($e)"),
    Reading("filter", "[v for v in filter(lambda v: True, [$e])].pop()"),
    Reading("chain", "next(itertools.chain([$e]))"),
    Reading("default of an inner function", "(lambda v=$e: v)()"),
    Reading("lambda in a loop", "[f() for f in [lambda: $e]][0]"),
    Reading("local class", "$t.v", "class $t:\n    v = $e"),
    Reading("exit stack", "$t", "with contextlib.ExitStack() as stack:\n    $t = stack.enter_context(holding($e))"),
    Reading("recursion", "(lambda f, i: f(f, i))(lambda f, i: f(f, i - 1) if i else $e, 2)"),
]  # fmt: skip
