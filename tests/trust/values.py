"""What a piece of state is: numbers, strings, and what else Python's own types offer.

Tensors, layers, functions and arrays are in values_of_torch.py. A row's first value is where a program starts, the
others are what it changes to; the last stands in where the state is absent. Values that are equal but not the same
(`1`, `True`, `1.0`) share a row on purpose. A branch takes softsign: one rounding of a tanh near 1 is the whole of its
derivative there, and what stands before and behind it multiplies.
"""

from __future__ import annotations

import dataclasses

__all__ = ["PLAIN_VALUES", "Value"]


@dataclasses.dataclass(frozen=True)
class Value:
    """A kind of value.

    Attributes:
        name: the kind, as the table calls it.
        values: expressions; the first one at the start, the last one as a default.
        uses: statements that make `y` (or `$o`, a further result) from `$e`.
        inside: statements that change the value at `$r` in place: (label, statement).
        hashable: whether it may be an element of a set.
        watchable: whether a change of it can be noticed at all, so that the engine may run before and after.
        counts: whether `+= 1` makes sense.
    """

    name: str
    values: tuple[str, ...]
    uses: tuple[str, ...]
    inside: tuple[tuple[str, str], ...] = ()
    hashable: bool = True
    watchable: bool = True
    counts: bool = False


_NUMBER = (
    "y = y * $e",
    "y = y + $e",
    "if $e > 2.5:\n    y = F.softsign(y)",
    "y = y.clamp(max=$e / 10)",
    "y = y + torch.tensor($e)",
    "y = y * torch.full_like(y, $e)",
    "$o = torch.tensor($e)",
    "$o = $e",
    "y = torch.add(y, y, alpha=$e)",
    "y = (y.abs() + 1) ** $e",
    "y = F.leaky_relu(y, $e)",
    "y = y * (1.0 if $e == 2 else 4.0)",
    "y = y * float(f'{$e:.2f}')",
    "y = y + sum([$e, 1.0])",
    "y = y * max(0.1, $e)",
    "y = y / math.sqrt($e)",
    "y = y - round($e, 1)",
    "y = y.mul($e).sub_($e)",
    "$o = {'value': $e, 'y': y.detach()}",
    "$t = abs($e)\nwhile $t > 1:\n    y, $t = y * 1.5, $t - 1",
    "assert $e < 2.5\ny = y * $e",
    "if not $e < 2.5:\n    raise RuntimeError(f'too large: {$e}')\ny = y + 1",
)
_EXACT = (
    "$o = torch.tensor($e)",
    "if isinstance($e, bool):\n    y = F.softsign(y)",
    "if type($e) is float:\n    y = y * 3",
    "y = y * len(repr($e))",
    "y = y * len(f'{$e}')",
    "$o = torch.full((2,), $e)",
    "$o = $e",
    "y = y * {bool: 2.0, int: 3.0, float: 4.0}.get(type($e), 5.0)",
    "match $e:\n    case bool():\n        y = y * 2\n    case int():\n        y = y * 3\n    case _:\n        y = y "
    "* 4",
    "$o = torch.arange(3) * $e",
    "y = y * (2.0 if $e is True else 3.0)",
    "$o = [$e, ($e,)]",
    "$o = torch.ones(2, dtype=torch.int64) + $e",
    "y = y * len(str(($e, 1)))",
)
_ZERO = (
    "y = y * math.copysign(2.0, $e)",
    "$o = torch.ones(2) / $e",
    "if f'{$e}'.startswith('-'):\n    y = F.softsign(y)",
    "$o = torch.atan2(torch.zeros(2), torch.full((2,), float($e)) - 0.0)",
    "$o = torch.tensor(float($e)).reciprocal()",
    "$o = $e",
    "$o = 1.0 / torch.full((2,), $e)",
    "y = y * len(repr($e))",
)
_WORD = (
    "y = getattr(torch, $e)(y)",
    "y = {'tanh': torch.tanh, 'relu': torch.relu}.get($e, torch.sigmoid)(y)",
    "if $e == 'tanh':\n    y = y * 2",
    "match $e:\n    case 'tanh':\n        y = y * 2\n    case 'relu':\n        y = y * 3\n    case _:\n        y = y "
    "* 4",
    "y = y * len($e)",
    "y = y * (2 if $e.startswith('t') else 3)",
    "y = y * (2 if $e in ('relu', 'sigmoid') else 3)",
    "y = getattr(y, $e)()",
    "$o = $e",
    "y = y * ord($e[0])",
    "y = y * (2 if 'tan' in $e else 3)",
    "y = y * len('{}-{}'.format($e, 1))",
    "y = y * len(f'{$e!r:>8}'.strip())",
    "y = y * (2 if $e < 'sa' else 3)",
    "y = y * len('_'.join([$e, 'x']))",
    "y = y * $e.count('t') + len($e.upper().split('A'))",
    "y = getattr(F, $e)(y)",
    "y = y * (2 if $e is not None and hash($e) == hash('tanh') else 3)",
)
_FLAG = (
    "if $e:\n    y = F.softsign(y)",
    "if not $e:\n    y = y * 2",
    "y = y * (2 if $e else 3)",
    "y = torch.relu(y) if $e else torch.sigmoid(y)",
    "$o = bool($e)",
    "y = y * (2 + int($e))",
    "y = F.dropout(y, 0.5, training=bool($e))",
    "if all([$e, True]):\n    y = y * 2",
    "if any([$e]) and y.shape[1] == 4:\n    y = y * 2",
    "$o = torch.tensor($e)",
    "y = y * 2 if $e and y is not None else y",
)

PLAIN_VALUES = [
    Value("float", ("2.0", "3.0", "0.5", "1.5"), _NUMBER, counts=True),
    Value(
        "int", ("2", "3", "1", "2"),
        (*_NUMBER, "for _ in range($e):\n    y = y + 0.5", "y = y + y[:, $e:$e + 1]", "y = torch.roll(y, $e, 1)",
         "$o = y.repeat($e, 1)", "y = y * torch.arange(4.0)[$e]", "y = y * (torch.arange(4) % $e)",
         "y = y + torch.zeros($e).numel()", "$o = torch.split(y, $e, dim=1)", "$o = [y * i for i in range($e)]",
         "$o = y[:, :$e]", "y = y + F.pad(y, (0, $e)).sum()", "$o = y.unsqueeze(0).expand($e, -1, -1)"),
        counts=True,
    ),
    Value("equal number", ("1", "True", "1.0", "1"), _EXACT),
    Value("zero", ("0.0", "-0.0", "0.0", "0.0"), _ZERO),
    Value(
        "nan", ("math.nan", "2.0", "math.inf", "math.nan"),
        ("y = y * 2 if $e != $e else y", "if math.isnan($e):\n    y = F.softsign(y)", "y = y + $e",
            "$o = torch.tensor($e)",
         "y = y.clamp(max=$e)", "$o = $e", "y = y * (2 if $e > 1 else 3)"),
    ),
    Value(
        "big int", ("2**70", "2**70 + 1", "2**70 + 5", "3"),
        ("y = y * float($e % 7)", "if $e > 2**70:\n    y = F.softsign(y)", "y = y * len(str($e))", "$o = $e",
         "y = y + ($e & 7)", "y = y + ($e - 2**70)"),
    ),
    Value("string", ("'tanh'", "'relu'", "'sigmoid'", "'relu'"), _WORD),
    Value("flag", ("True", "False", "True", "False"), _FLAG),
    Value("flag or number", ("1", "0", "True", "0.0"), _FLAG),
    Value(
        "None", ("None", "2.0", "0.0", "None"),
        ("if $e is not None:\n    y = y * ($e + 1)", "y = y * ($e or 3.0)", "$o = $e",
            "y = y * (1 if $e is None else 2 + $e)",
         "if $e:\n    y = y + 1", "match $e:\n    case None:\n        y = y * 2\n    case 0.0:\n        y = y * 3"),
    ),
    Value(
        "bytes", ("b'\\x02a'", "b'\\x03a'", "b'\\x04'", "b'\\x05b'"),
        ("y = y * $e[0]", "y = y * int.from_bytes($e[:1], 'big')", "y = y * len($e)", "y = y + sum($e) / 100",
            "$o = $e"),
    ),
    Value("bytearray", ("bytearray(b'\\x02a')", "bytearray(b'\\x03a')", "bytearray(b'\\x02')"), ("y = y * $e[0]",
        "y = y * len($e)"),
          (("item", "$r[0] = 7"), ("append", "$r.append(3)")), hashable=False),
    Value("fraction", ("Fraction(2, 3)", "Fraction(5, 3)", "Fraction(1, 3)"), ("y = y * float($e)",
        "y = y * $e.numerator", "$o = $e")),
    Value("decimal", ("Decimal('2')", "Decimal('3')", "Decimal('2.0')"), ("y = y * float($e)", "y = y * len(str($e))",
        "$o = $e")),
    Value("complex", ("2 + 1j", "3 + 1j", "2 - 1j"), ("y = y * $e.real + $e.imag", "y = y * abs($e)", "$o = $e")),
    Value(
        "slice", ("slice(0, 2)", "slice(1, 3)", "slice(0, None, 2)"),
        ("y = y + y[:, $e].sum()", "y = y * (1 + $e.start)", "$o = y[:, $e]", "$o = list(range(9))[$e]"),
            hashable=False,
    ),
    Value("range", ("range(2)", "range(3)", "range(1, 3)"), ("for $t in $e:\n    y = y + $t + 1",
        "y = y * (1 + len($e))", "y = y + sum($e)", "$o = y[:, list($e)]")),
    Value(
        "tuple", ("(2, 3)", "(3, 2)", "(2.0, 3)", "(1, 1)"),
        ("$t, _ = $e\ny = y * $t", "y = y * $e[0] + $e[1]", "$o = $e", "y = y + torch.tensor($e)[0]",
            "y = y * (2 if $e == (2, 3) else 3)",
         "$o = torch.tensor($e)", "match $e:\n    case (2, 3):\n        y = y * 2\n    case _:\n        y = y * 3",
         "y = y * max($e)  + len(f'{$e}')"),
    ),
    Value(
        "dict order", ("{'a': 2.0, 'b': 3.0}", "{'b': 3.0, 'a': 2.0}", "{'a': 2.0, 'b': 3.0, 'c': 1.0}", "{'b': 3.0}"),
        ("y = y * next(iter($e.values()))", "for $t in $e.values():\n    y = y * 2 + $t", "$o = list($e)",
            "$o = dict($e)",
         "y = y * len('{}'.format($e)) + ord(list($e)[-1])", "$o = torch.tensor([*$e.values()])",
             "y = y * max($e, key=$e.get).count('b') + [*$e.values()][0]",
         "for $t in sorted($e):\n    y = y * $e[$t]", "for $t, _ in enumerate($e.items()):\n    y = y * 2 + _[1]"),
        (("swap", "$r['a'] = $r.pop('a', 1.0)"), ("add", "$r['z'] = 4.0"), ("clear", "$r.clear(); $r.update(q=5.0)"),
            ("popitem", "$r.popitem()")),
        hashable=False,
    ),
    Value(
        "nested", ("[1, [2, (3,)]]", "[1, [2.0, (3,)]]", "[True, [2, (3,)]]", "[1, [2]]"),
        ("y = y * len(str($e))", "$o = $e", "y = y * (2 if type($e[1][0]) is int else 3) + len(repr($e[0]))",
            "$o = torch.tensor($e[1][0])",
         "$o = copy.deepcopy($e)"),
        (("deep item", "$r[1][0] = 7"), ("deep equal", "$r[1][0] = float($r[1][0])"), ("append", "$r[1].append(3)")),
            hashable=False,
    ),
    Value(
        "set", ("{2, 3}", "{2, 3, 5}", "{5}", "set()"),
        ("y = y * (2 if 5 in $e else 3)", "y = y * (1 + len($e))", "y = y + sum(sorted($e))",
            "for $t in sorted($e):\n    y = y + $t", "$o = sorted($e)",
         "if $e & {5}:\n    y = F.softsign(y)", "y = y * (2 if $e <= {2, 3} else 3)", "$o = set($e)"),
        (("add", "$r.add(5)"), ("discard", "$r.discard(2)"), ("update", "$r.update({7, 9})"), ("clear", "$r.clear()")),
            hashable=False,
    ),
    Value("frozenset", ("frozenset({2, 3})", "frozenset({2, 5})", "frozenset()"), ("y = y * (2 if 5 in $e else 3)",
        "y = y + sum(sorted($e))", "y = y * (1 + len($e))", "$o = $e")),
    Value("float subclass", ("FloatSub(2.0)", "FloatSub(3.0)", "2.0"), ("y = y * $e",
        "y = y * (2 if type($e) is float else 3)", "if $e > 2.5:\n    y = F.softsign(y)")),
    Value("string subclass", ("StrSub('tanh')", "StrSub('relu')", "'tanh'"), ("y = getattr(torch, $e)(y)",
        "y = y * (2 if type($e) is str else 3)", "y = y * (2 if $e == 'tanh' else 3)")),
    Value("equal to all", ("Same(2.0)", "Same(3.0)", "Same(0.5)"), ("y = y * $e.k", "y = y * (1 + vars($e)['k'])"),
        (("attribute", "$r.k = 5.0"),)),
    Value("enum", ("Mode.A", "Mode.B", "Mode.C"), ("y = y * $e.value", "if $e is Mode.A:\n    y = F.softsign(y)",
        "if $e == Mode.B:\n    y = F.softsign(y)", "y = y * ord($e.name)",
          "match $e:\n    case Mode.A:\n        y = y * 2\n    case _:\n        y = y * 3",
              "y = y * {Mode.A: 2.0, Mode.B: 3.0}.get($e, 4.0)", "$o = $e", "y = y * [*Mode].index($e)"),
          (("value", "$r._value_ = 7.0"),)),
    Value("flags", ("Bits.A", "Bits.A | Bits.B", "Bits.B"), ("if Bits.B in $e:\n    y = F.softsign(y)",
        "y = y * int($e)", "if $e & Bits.A:\n    y = y * 2")),
    Value("date", ("datetime.timedelta(seconds=2)", "datetime.timedelta(seconds=3)", "datetime.timedelta(seconds=1)"),
        ("y = y * $e.total_seconds()", "y = y * (2 if $e > datetime.timedelta(seconds=2) else 3)")),
    Value("path", ("pathlib.PurePath('a/bc')", "pathlib.PurePath('a/bcd')", "pathlib.PurePath('a')"),
        ("y = y * len($e.name)", "y = y * len(str($e))", "y = y * len($e.parts)")),
    Value("pattern", ("re.compile('a.c')", "re.compile('a.d')", "re.compile('x')"),
        ("y = y * 2 if $e.match('abc') else y", "y = y * (2 if $e.pattern == 'a.c' else 3)")),
    Value("iterator", ("iter([2.0, 3.0, 4.0, 5.0] * 9)", "iter([6.0, 7.0, 8.0] * 9)", "iter([1.0] * 9)"),
        ("y = y * next($e)", "y = y * next($e, 9.0)", "for $t in $e:\n    y = y * $t\n    break"), (("step",
        "next($r)"),), watchable=False),
    Value("count", ("itertools.count(2)", "itertools.count(5)", "itertools.count(1)"), ("y = y * next($e)",
        "y = y + next($e)", "$o = next($e)"), (("step", "next($r)"),), watchable=False),
    Value("generator", ("(v + 1.0 for v in range(50))", "(v + 2.0 for v in range(50))", "(v for v in (1.0,) * 50)"),
        ("y = y * next($e)", "y = y * $e.send(None)"), (("step", "next($r)"),), watchable=False),
    Value("cycle", ("itertools.cycle([2.0, 3.0])", "itertools.cycle([4.0])", "itertools.cycle([1.0])"),
        ("y = y * next($e)",), (("step", "next($r)"),), watchable=False),
    Value("exception class", ("KeyError", "ValueError", "LookupError"),
        ("try:\n    {}['x']\nexcept $e:\n    y = y * 2\nexcept Exception:\n    y = y * 3", "y = y * len($e.__name__)")),
    Value("raised", ("False", "ValueError", "KeyError", "False"), ("if $e:\n    raise $e('as asked')\ny = y * 2",)),
]  # fmt: skip
