"""A piece of state in a program: what it adds to the source, and the changes that it offers.

`composed` makes one from a place, what wraps the value there, the value, and ways of reading; the rows of the other
files make the pieces that fit no such scheme (`Row`).
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable, Sequence

from .containers import CONTAINERS, Container
from .places import NUMBERS, PLACES, Place, Step
from .readings import DIRECT, MATCHED_BY_NAME, STEPS, WHOLE, Reading
from .templates import fill
from .values import Value

__all__ = ["Change", "Piece", "Row", "composed", "from_row"]


@dataclasses.dataclass(frozen=True)
class Change:
    """Something that changes a piece: a statement, given a value's expression, on `model`."""

    label: str
    code: Callable[[str], str]
    inside: bool = True  # whether the forward itself may do it


@dataclasses.dataclass
class Piece:
    """What a piece adds to a program."""

    place: str
    readings: list[str]
    values: tuple[str, ...]
    changes: list[Change]
    forward: str
    top: str = ""
    lib: str = ""
    parent: str = ""
    body: str = ""
    init: str = ""
    parameters: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    globals: tuple[str, ...] = ()
    watchable: bool = True
    read: str = ""  # a plain expression that reads the value
    counts: bool = False


@dataclasses.dataclass(frozen=True)
class Row:
    """A piece that is written out: what it adds to the program, and its changes on `model`.

    `$n` is its number, `$t` a local name, `$o` a further result; `$x` in a change is a number that differs each time.
    """

    name: str
    use: str
    changes: tuple[tuple[str, str], ...]
    top: str = ""
    lib: str = ""
    parent: str = ""
    body: str = ""
    init: str = ""
    parameters: tuple[str, ...] = ()
    watchable: bool = True
    globals: tuple[str, ...] = ()


def from_row(row: Row, n: int) -> Piece:
    names = {"n": n, "t": f"t{n}", "o": f"o{n}", "m": "LIBRARY"}

    def change(label: str, text: str) -> Change:
        return Change(label, lambda value: fill(text, **names, x=value), inside=False)

    def filled(text: str) -> str:
        return fill(text, **names)

    return Piece(
        row.name, ["as written"], ("2.0", "3.0", "0.5", "4.0"), [change(*c) for c in row.changes], filled(row.use),
        filled(row.top),
        filled(row.lib), filled(row.parent), filled(row.body), filled(row.init), tuple(map(filled, row.parameters)),
        (f"o{n}",) if "$o" in row.use else (), tuple(map(filled, row.globals)), row.watchable,
    )  # fmt: skip


# Kinds of values that are tensors.
DATA = (
    "tensor",
    "tensor of another type",
    "tensor with a gradient",
    "parameter",
    "view of a tensor",
    "number in a tensor",
    "index tensor",
    "mask tensor",
)

# -- composed pieces --------------------------------------------------------------------------------------------------


def _chain(rng: random.Random, place: Place, value: Value) -> list[Container]:
    """What wraps the value, from the outside in."""
    if place.bare:
        return []
    depth = rng.choices((0, 1, 2, 3, 4, 6), (30, 40, 14, 8, 5, 3))[0]
    chain: list[Container] = []
    for level in range(depth):
        last = level == depth - 1
        fits = [c for c in CONTAINERS if (last or not c.bare) and (value.hashable or not c.hashed)]
        fits = [c for c in fits if not c.only or (last and value.name in c.only)]
        chain.append(rng.choice(fits))
    return chain


def _build(chain: Sequence[Container], value: str) -> str:
    for container in reversed(chain):
        value = fill(container.build, v=value, d="1.5")
    return value


class _Reader:
    """Builds the expression that reads, with the preludes that it needs."""

    def __init__(self, rng: random.Random, n: int) -> None:
        self.rng, self.n = rng, n
        self.preludes: list[str] = []
        self.used: list[str] = []
        self.locals = 0

    def local(self) -> str:
        self.locals += 1
        return f"t{self.n}_{self.locals}"

    def form(self, reading: Reading, **given: str) -> str:
        values = {"t": self.local(), "n": str(self.n), **given}
        if reading.prelude:
            self.preludes.append(fill(reading.prelude, **values))
        self.used.append(reading.name)
        e = fill(reading.expression, **values)
        if ":=" not in e:
            return e
        name = self.local()
        self.preludes.append(f"{name} = {e}")
        return name

    def step(self, h: str, step: Step, default: str, chance: float) -> str:
        kind, k = step
        if self.rng.random() < chance:
            forms = STEPS["first" if kind == "index" and k == "0" else kind]
            form = self.rng.choice(forms)
            if form.name == MATCHED_BY_NAME.name and not re.fullmatch(r"'\w*'|\d+|\w+\.\w+", k):
                form = MATCHED_BY_NAME
            return self.form(form, h=h, k=k, q=k[::-1], d=default)
        return fill(DIRECT[kind], h=h, k=k)

    def whole(self, e: str) -> str:
        if "super()" in e:
            name = self.local()
            self.preludes.append(f"{name} = {e}")
            e = name
        return self.form(self.rng.choice(WHOLE), e=e)


def _values_of(rng: random.Random, place: Place, values: Sequence[Value]) -> Value:
    fits = [v for v in values if not place.only or v.name in place.only]
    plain = [v for v in fits if v.name in NUMBERS]
    return rng.choice(plain if plain and rng.random() < 0.45 else fits)


def _steps(chain: Sequence[Container], h: str) -> str:
    for container in chain:
        kind, k = container.step
        h = fill(DIRECT[kind], h=h, k=k)
    return h


def _changes(place: Place, chain: Sequence[Container], value: Value, names: dict[str, str]) -> list[Change]:
    """All changes that a composed piece offers."""
    outside = fill(place.outside or _direct(place), **names)
    default = _build(chain, value.values[-1])
    found: list[Change] = []

    def add(label: str, text: str, below: Sequence[Container], inside: bool = True, **given: str) -> None:
        found.append(
            Change(
                label,
                lambda v: fill(text, **names, **given, v=_build(below, value.values[0]), w=_build(below, v), d=default),
                inside,
            )
        )

    for label, text in (*place.assign, *place.further):
        add(f"place: {label}", text, chain, place.leaves)
    for label, text in place.delete:
        add(f"place: {label}", text, chain, place.leaves)
    for i, container in enumerate(chain):
        holder, below = _steps(chain[:i], outside), chain[i + 1 :]
        if container.put:
            add("container: put", container.put, below, h=holder)
        for label, text in container.further:
            add(f"container: {label}", text, below, h=holder)
    for label, text in value.inside:
        add(f"value: {label}", text, [], r=_steps(chain, outside))
    return found


def _direct(place: Place) -> str:
    h = place.base
    for kind, k in place.steps:
        h = fill(DIRECT[kind], h=h, k=k)
    return h.replace("self", "model")


def _watchable(place: Place, value: Value, chain: Sequence[Container], use: str) -> bool:
    """Whether the engine can be asked to run, before a change and after it."""
    if not (place.watchable and value.watchable and all(c.watchable for c in chain)):
        return False
    if value.name in DATA and re.search(r"float\(|int\(|\.item\(|tolist|^if |\.max\(\)", use):
        return False  # it asks what a tensor holds
    holds_tensors = value.name in DATA or "make_layer" in value.values[0] or value.values[0].startswith("nn.")
    made = not place.leaves and "def " in place.top + place.lib + place.body or "lambda: $v" in place.top + place.init
    given = "argument" in place.name or "default of the forward" in place.name
    return not (holds_tensors and (made or (given and bool(chain))))  # new ones each time, or in an unknown class


def composed(rng: random.Random, n: int, values: Sequence[Value], places: Sequence[Place] = PLACES) -> Piece:
    """A piece of a random place, value, containers and readings."""
    place = rng.choice(places)
    value = _values_of(rng, place, values)
    chain = _chain(rng, place, value)
    reader = _Reader(rng, n)
    start, default = _build(chain, value.values[0]), _build(chain, value.values[-1])
    names = {"n": str(n), "m": "LIBRARY"}
    chance = rng.choice((0.0, 0.3, 0.6))
    if place.prelude:
        local = reader.local()
        reader.preludes.append(fill(place.prelude, **names, t=local))
        e = local
    elif place.other and rng.random() < 0.4:
        e = fill(rng.choice(place.other), **names, d=default, v=start)
        reader.used.append("another way to the place")
    else:
        e = fill(place.base, **names, v=start)
        for kind, k in place.steps:
            e = reader.step(e, (kind, fill(k, **names)), default, 1.0 if kind == "absent" else chance)
    for i, container in enumerate(chain):
        e = reader.step(e, container.step, _build(chain[i + 1 :], value.values[-1]), chance)
    if rng.random() < 0.3:
        e = reader.whole(e)
    use = rng.choice(value.uses)
    once = not value.watchable and use.count("$e") > 1  # each reading would take the next
    if once or ":=" in e or "suppress" in use or "f'" in use or rng.random() < 0.2:
        local = reader.local()
        reader.preludes.append(f"{local} = {e}")
        e = local
    result = f"o{n}"
    watchable = _watchable(place, value, chain, use) and "setdefault" not in reader.used
    use = fill(use, e=e, o=result, t=f"t{n}", n=n)
    outside = fill(place.outside or _direct(place), **names)
    given = {**names, "v": start, "d": default}
    parts = {part: fill(getattr(place, part), **given) for part in ("top", "lib", "parent", "body", "init")}
    return Piece(
        place.name, [*(c.name for c in chain), value.name, *reader.used], value.values,
        _changes(place, chain, value, names), "\n".join([*reader.preludes, use]), **parts,
        parameters=(fill(place.parameter, **given),) if place.parameter else (),
        results=(result,) if result in use else (),
        globals=tuple(fill(g, **names) for g in place.globals),
        watchable=watchable, read=_steps(chain, outside).replace("model", "self"), counts=value.counts,
    )  # fmt: skip
