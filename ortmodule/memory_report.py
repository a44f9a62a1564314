"""Which tensors a step holds when it holds most: the product of `ORTModule.memory_report()`.

Not here: what the whole process uses (parameters, gradients and the optimizer's state are the caller's).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from . import _C

__all__ = ["HeldTensor", "MemoryReport", "SessionMemory"]

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


def _mib(size: int) -> str:
    return f"{size / MIB:.2f} MiB"


def _by_kind(tensors: Iterable[HeldTensor]) -> str:
    sums: dict[str, int] = {}
    for tensor in tensors:
        sums[tensor.kind] = sums.get(tensor.kind, 0) + tensor.bytes
    return ", ".join(f"{kind} {_mib(size)}" for kind, size in sorted(sums.items(), key=lambda item: -item[1]))
