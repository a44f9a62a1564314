"""Which tensors a step holds when it holds most: the product of `ORTModule.memory_report()`; and what it holds step by
step: `StepPlan.memory_over_time()`.

Not here: what the whole process uses (parameters, gradients and the optimizer's state are the caller's).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import _C

__all__ = ["HeldTensor", "MemoryAtStep", "MemoryOverTime", "MemoryReport", "SessionMemory"]

MIB = 2**20


@dataclasses.dataclass(frozen=True)
class HeldTensor:
    """A tensor that is alive at a peak; tensors that share memory are one.

    Attributes:
        name: the value in the graph.
        op: the operator that made it; "" for a gradient that autograd gave.
        node: the node that made it, named after the sub-module that it comes from.
        bytes: its size.
        kind: "saved" (forward keeps it for backward), "gradient" (of a parameter or an input), "output" (of the
            module), "given" (an output's gradient, from autograd) or "temporary".
    """

    name: str
    op: str
    node: str
    bytes: int
    kind: str


@dataclasses.dataclass(frozen=True)
class SessionMemory:
    """One compiled graph, as measured on the first run of each half; empty before.

    Attributes:
        mode: "training" (forward and backward) or "inference" (forward only).
        forward: what forward's peak is made of, the largest first.
        backward: the same of backward.
        saved_bytes: what forward left for backward.
        arena_bytes: memory that the engine keeps for the session's steps, temporaries within kernels included (CPU;
            planned from the second step of a size on).
        unplanned_allocations: large allocations of planned steps that found no place there, since the first step.
    """

    mode: str
    forward: tuple[HeldTensor, ...]
    backward: tuple[HeldTensor, ...]
    saved_bytes: int
    arena_bytes: int
    unplanned_allocations: int

    @classmethod
    def of(cls, session: _C.Session) -> SessionMemory:
        """Asks a session."""
        held: dict[str, list[HeldTensor]] = {"forward": [], "backward": []}
        for half, name, op, node, size, kind in session.memory_at_peak():
            held[half].append(HeldTensor(name, op, node, size, kind))
        for tensors in held.values():
            tensors.sort(key=lambda t: -t.bytes)
        numbers = session.statistics()
        return cls(
            mode="training" if numbers["backward_nodes"] else "inference",
            forward=tuple(held["forward"]),
            backward=tuple(held["backward"]),
            saved_bytes=numbers["saved_bytes"],
            arena_bytes=numbers["arena_bytes"],
            unplanned_allocations=numbers["unplanned_allocations"],
        )


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    """The product of `ORTModule.memory_report()`. Printable: sums by kind, then the largest tensors of each peak.

    Attributes:
        parameter_bytes: of the module's parameters and buffers, tied ones once.
        gradient_bytes: of the parameters' `.grad` as they are now.
        sessions: one per compiled graph.
    """

    parameter_bytes: int
    gradient_bytes: int
    sessions: tuple[SessionMemory, ...]

    def text(self, top: int = 10) -> str:
        """The report with the `top` largest tensors of each peak."""
        lines = [f"parameters and buffers {_mib(self.parameter_bytes)}, gradients {_mib(self.gradient_bytes)}"]
        for i, s in enumerate(self.sessions):
            lines.append(
                f"session {i}: {s.mode}, saved for backward {_mib(s.saved_bytes)}, arena {_mib(s.arena_bytes)}, "
                f"{s.unplanned_allocations} unplanned allocations"
            )
            for half, tensors in (("forward", s.forward), ("backward", s.backward)):
                if not tensors:
                    continue
                lines.append(f"  {half} peak {_mib(sum(t.bytes for t in tensors))}: {_by_kind(tensors)}")
                for t in tensors[:top]:
                    lines.append(f"    {_mib(t.bytes):>12}  {t.kind:<9} {t.op:<24} {t.node or t.name}")
                rest = tensors[top:]
                if rest:
                    lines.append(f"    {_mib(sum(t.bytes for t in rest)):>12}  in {len(rest)} smaller ones")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()


@dataclasses.dataclass(frozen=True)
class MemoryAtStep:
    """What is held while one step of a plan runs.

    Attributes:
        step: its number, counted through both halves.
        half: "forward" or "backward".
        op, node: the operator and the node.
        made_bytes: of the storages that it makes.
        live_bytes: of all that is held while it runs, what it makes included.
        freed_bytes: of the storages that nobody needs when it is over.
    """

    step: int
    half: str
    op: str
    node: str
    made_bytes: int
    live_bytes: int
    freed_bytes: int


@dataclasses.dataclass(frozen=True)
class MemoryOverTime:
    """The bytes that a run holds, step by step, as its plan says. Printable.

    Attributes:
        steps: of forward, then of backward.
        complete: False where sizes are not known before the run; such values count as nothing.
    """

    steps: tuple[MemoryAtStep, ...]
    complete: bool

    @classmethod
    def of(cls, halves: Sequence[Mapping[str, Any]], memory: Mapping[str, Any]) -> MemoryOverTime:
        """From what `StepPlan` has."""
        steps = [(half["name"], step) for half in halves for step in half["steps"]]
        made, freed = [0] * (len(steps) + 1), [0] * (len(steps) + 1)
        for block in memory["blocks"]:
            made[block["first"]] += block["bytes"]
            freed[min(block["end"], len(steps)) - 1] += block["bytes"]
        rows, live = [], 0
        for i, (half, step) in enumerate(steps):
            live += made[i]
            rows.append(MemoryAtStep(i, half, step["op"], step["node"], made[i], live, freed[i]))
            live -= freed[i]
        return cls(tuple(rows), memory["complete"])

    @property
    def peak(self) -> MemoryAtStep | None:
        """The first step while which most is held; None of a plan without steps."""
        return max(self.steps, key=lambda s: s.live_bytes, default=None)

    def to_json(self) -> str:
        """All of it as one JSON object: `complete`, and `steps` with the fields of MemoryAtStep."""
        return json.dumps(dataclasses.asdict(self))

    def text(self, lines: int = 40) -> str:
        """At most about `lines` lines for all steps, each with the step of its range that holds most."""
        peak = self.peak
        if peak is None:
            return "no steps"
        note = "" if self.complete else "; sizes that are not known before the run count as nothing"
        out = [f"peak {_mib(peak.live_bytes)} at step {peak.step} of {len(self.steps)}{note}"]
        size = max(1, -(-len(self.steps) // max(lines, 1)))
        for half in dict.fromkeys(s.half for s in self.steps):
            own = [s for s in self.steps if s.half == half]
            for part in (own[i : i + size] for i in range(0, len(own), size)):
                top = max(part, key=lambda s: s.live_bytes)
                bar = "#" * round(30 * top.live_bytes / (peak.live_bytes or 1))
                out.append(
                    f"{part[0].step:>6}-{part[-1].step:<6} {half:<8} {_mib(top.live_bytes):>13} {bar:<30} "
                    f"{top.op} {top.node!r}"
                )
        return "\n".join(out)

    def __str__(self) -> str:
        return self.text()


def _mib(size: int) -> str:
    return f"{size / MIB:.2f} MiB"


def _by_kind(tensors: Iterable[HeldTensor]) -> str:
    sums: dict[str, int] = {}
    for tensor in tensors:
        sums[tensor.kind] = sums.get(tensor.kind, 0) + tensor.bytes
    return ", ".join(f"{kind} {_mib(size)}" for kind, size in sorted(sums.items(), key=lambda item: -item[1]))
