"""Finds where two recordings part: `ortmodule.debug.diff("runs/a", "runs/b")`.

Steps are matched by their numbers, halves by what ran and how often, values by their labels: another machine or another
version may fuse graphs in another way, and then has some values that the other has not. Such values are said, and
otherwise left out.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections import Counter
from collections.abc import Iterator

from ..errors import InvalidArgumentError
from .recording import Layout, RecordedHalf, RecordedStep, RecordedValue, Recording, label_of, recordings
from .statistics import Statistics

__all__ = ["Divergence", "RecordingDiff", "diff"]

_SHOWN = 5  # names in a sentence


@dataclasses.dataclass(frozen=True)
class Divergence:
    """A value that two recordings have, and that differs.

    Attributes:
        step: its number.
        rank: of the process.
        module: qualified name of the sub-module whose graph ran, "" for the whole.
        half: "forward" or "backward".
        a, b: the value in either recording; both None: one of them ran this half, and the other did not.
        reason: how they differ, in words.
    """

    step: int
    rank: int
    module: str
    half: str
    a: RecordedValue | None
    b: RecordedValue | None
    reason: str

    @property
    def kind(self) -> str:
        """ "input", "weight", "buffer", "constant", "node", "gradient", "gradient of output"; "half"."""
        return self.a.kind if self.a else "half"

    @property
    def name(self) -> str:
        """Of the value."""
        return self.a.label if self.a else ""

    @property
    def node(self) -> str:
        """The node that makes it; "" where none does."""
        return self.a.node if self.a else ""

    @property
    def operator(self) -> str:
        """That node's operator; "" where there is none."""
        return self.a.operator if self.a else ""

    def __str__(self) -> str:
        where = f"step {self.step}, {self.half}" + (f" of '{self.module}'" if self.module else "")
        where += f", rank {self.rank}" if self.rank else ""
        if self.a is None or self.b is None:
            return f"{where}: {self.reason}"
        return f"{where}: {self.a}\n  a: {self.a.statistics}\n  b: {self.b.statistics}\n  {self.reason}"


@dataclasses.dataclass(frozen=True)
class RecordingDiff:
    """The product of `diff`; printable.

    Attributes:
        first: where the recordings part first, in the order of execution; None where nothing that both have differs.
        step: all that differs in that step, in the order of execution; the first one is `first`.
        compared: how many values of that step were compared.
        steps: how many steps were compared, that one included.
        only_a, only_b: labels of values that one recording alone has, in the order of execution.
        notes: what else is to be said: steps of one recording alone, what came before the first difference.
    """

    first: Divergence | None
    step: tuple[Divergence, ...]
    compared: int
    steps: int
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether nothing differs that both have."""
        return self.first is None

    def __str__(self) -> str:
        lines = []
        if self.first is None:
            lines.append(f"the recordings agree in {_count(self.steps, 'step')}")
        else:
            before = _count(self.steps - 1, "step")
            lines += [f"the recordings part after {before} that agree:", str(self.first)]
            lines.append(f"{len(self.step)} of {_count(self.compared, 'value')} of that step differ{self._next_node()}")
        lines += self.notes
        for side, names in (("a", self.only_a), ("b", self.only_b)):
            if names:
                lines.append(f"only {side} has {_count(len(names), 'value')}, not compared: {_some(names)}")
        return "\n".join(lines)

    def _next_node(self) -> str:
        node = next((d for d in self.step if d.kind in ("node", "gradient")), None)
        return f"; the first node is {node.operator} '{node.node}'" if node and node is not self.first else ""


def diff(
    a: str | os.PathLike[str] | Recording,
    b: str | os.PathLike[str] | Recording,
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
) -> RecordingDiff:
    """Finds the first step and the first value, in the order of execution, at which two recordings part.

    Inputs, weights and buffers come before the nodes that read them: a weight that was corrupted is what is found.

    Args:
        a, b: directories that `record` was given, files in them, or Recordings.
        rtol, atol: both 0: values must be equal in every bit. Otherwise values differ where a figure (min, max, mean,
            standard deviation) does by more than `atol + rtol * largest`, `largest` being the largest absolute number
            of either value, or where their counts of NaN or infinite elements do. What moves no figure, such as a low
            bit of one element, is then not seen.

    Raises:
        InvalidArgumentError: there is no recording, it is damaged, or tolerances do not fit.
    """
    for name, value in (("rtol", rtol), ("atol", atol)):
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
            raise InvalidArgumentError(f"{name} should be 0 or more, got {value!r}")
    ones, others = _by_rank(a), _by_rank(b)
    both = [rank for rank in ones if rank in others]
    if not both:
        raise InvalidArgumentError(f"a has ranks {sorted(ones)}, b has {sorted(others)}: there is nothing to compare")
    found = [_Comparison(ones[rank], others[rank], rank, rtol, atol).run() for rank in both]
    whole = min(found, key=lambda one: one.first.step if one.first else math.inf)
    if ones.keys() ^ others.keys():
        alone = f"a has ranks {sorted(ones)}, b has {sorted(others)}; those of both were compared"
        whole = dataclasses.replace(whole, notes=(*whole.notes, alone))
    return whole


def _by_rank(given: str | os.PathLike[str] | Recording) -> dict[int, Recording]:
    if isinstance(given, Recording):
        return {int(given.header.get("rank", 0)): given}
    return recordings(given)


class _Comparison:
    """The comparison of two processes' recordings."""

    def __init__(self, a: Recording, b: Recording, rank: int, rtol: float, atol: float) -> None:
        self._a, self._b, self._rank = a, b, rank
        self._rtol, self._atol = rtol, atol
        self._only_a: dict[str, None] = {}
        self._only_b: dict[str, None] = {}
        self._seen: set[tuple[Layout, Layout]] = set()
        self._compared = 0

    def run(self) -> RecordingDiff:
        common = sorted({*self._a.steps} & {*self._b.steps})
        before: tuple[RecordedStep, RecordedStep] | None = None
        differences: list[Divergence] = []
        steps = 0
        for number in common:
            pair = (self._a.step(number), self._b.step(number))
            self._compared = 0
            differences = list(self._step(*pair))
            steps += 1
            if differences:
                break
            before = pair
        first = differences[0] if differences else None
        notes = [*self._history(first, before), *self._alone()]
        return RecordingDiff(
            first, tuple(differences), self._compared, steps, tuple(self._only_a), tuple(self._only_b), tuple(notes)
        )

    def _step(self, a: RecordedStep, b: RecordedStep) -> Iterator[Divergence]:
        left = dict(_numbered(b))
        for key, half in _numbered(a):
            other = left.pop(key, None)
            if other is not None:
                yield from self._half(a.number, half, other)
            elif not self._is_cut(self._b, b.number):
                yield self._missing(a.number, half, "a")
        if not self._is_cut(self._a, a.number):
            yield from (self._missing(b.number, half, "b") for half in left.values())

    def _half(self, step: int, a: RecordedHalf, b: RecordedHalf) -> Iterator[Divergence]:
        self._note_alone(a.layout, b.layout)
        if a.layout.values == b.layout.values and a.numbers == b.numbers and a.forms == b.forms:
            self._compared += len(a.layout.values)
            return
        others = {value.label: value for value in b.values}
        for value in a.values:
            other = others.get(value.label)
            if other is None:
                continue
            self._compared += 1
            if reason := self._difference(value.statistics, other.statistics):
                yield Divergence(step, self._rank, a.module, a.half, value, other, reason)
        if a.whole != b.whole:
            ended = "b" if a.whole else "a"
            yield Divergence(step, self._rank, a.module, a.half, None, None, f"in {ended} it did not come to its end")

    def _missing(self, step: int, half: RecordedHalf, side: str) -> Divergence:
        return Divergence(step, self._rank, half.module, half.half, None, None, f"only {side} ran this half")

    def _difference(self, a: Statistics, b: Statistics) -> str:
        """How two values differ; "" where they do not."""
        if a.fingerprint == b.fingerprint and a.kind() == b.kind():
            return ""
        if a.kind() != b.kind():
            return f"{a.kind()} in a, {b.kind()} in b"
        figures = {"min": (a.min, b.min), "max": (a.max, b.max), "mean": (a.mean, b.mean)}
        figures["std"] = (a.deviation, b.deviation)
        apart = {name: abs(x - y) for name, (x, y) in figures.items() if not (x == y or x != x and y != y)}
        counts = (a.nans, a.infinities) != (b.nans, b.infinities)
        if not self._rtol and not self._atol:
            told = ", ".join(f"{name} by {number:.3g}" for name, number in apart.items())
            return f"bits differ: {told}" if told else "bits differ, and no figure"
        numbers = [abs(x) for x in (a.min, a.max, b.min, b.max) if x == x]
        allowed = self._atol + self._rtol * max(numbers, default=0.0)
        far = {name: number for name, number in apart.items() if not number <= allowed}
        if counts:
            return f"{a.nans} nan and {a.infinities} inf in a, {b.nans} and {b.infinities} in b"
        return ", ".join(f"{name} differs by {number:.3g} > {allowed:.3g}" for name, number in far.items())

    def _note_alone(self, a: Layout, b: Layout) -> None:
        if (a, b) in self._seen or a.values == b.values:
            return
        self._seen.add((a, b))
        of_a, of_b = ([label_of(kind, name) for kind, name, _, _ in one.values] for one in (a, b))
        self._only_a.update(dict.fromkeys(name for name in of_a if name not in {*of_b}))
        self._only_b.update(dict.fromkeys(name for name in of_b if name not in {*of_a}))

    def _history(self, first: Divergence | None, before: tuple[RecordedStep, RecordedStep] | None) -> Iterator[str]:
        """What the step before says of a weight that parts."""
        if first is None or first.a is None or first.kind != "weight" or before is None:
            return
        gradient = label_of("gradient", first.a.name)
        pairs = [[v.statistics for v in step.values() if v.label == gradient] for step in before]
        if not pairs[0] or not pairs[1]:
            return
        same = [s.fingerprint for s in pairs[0]] == [s.fingerprint for s in pairs[1]]
        number = before[0].number
        if same and number == first.step - 1:
            yield (
                f"at step {number} the weight and its gradient were equal in every bit: the optimizer's step differs, "
                "or something else wrote the weight"
            )
        elif same:
            yield f"the last step recorded before is {number}, where the weight's gradient was equal in every bit"

    def _alone(self) -> Iterator[str]:
        ones, others = {*self._a.steps}, {*self._b.steps}
        for side, alone in (("a", sorted(ones - others)), ("b", sorted(others - ones))):
            if alone:
                yield f"only {side} has {_count(len(alone), 'step')} ({_some([str(n) for n in alone])}), not compared"

    def _is_cut(self, recording: Recording, step: int) -> bool:
        """Whether a step may lack halves that ran: the process had ended by then, or writes still."""
        return not recording.closed and step == recording.steps[-1]


def _numbered(step: RecordedStep) -> Iterator[tuple[tuple[str, str, str, int], RecordedHalf]]:
    """Halves by what ran and for which time in this step."""
    seen: Counter[tuple[str, str, str]] = Counter()
    for half in step.halves:
        key = (half.module, half.layout.mode, half.half)
        yield (*key, seen[key]), half
        seen[key] += 1


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _some(names: tuple[str, ...] | list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown}, ... {names[-1]}"
