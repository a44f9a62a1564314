"""Where the time of a step goes: `with ortmodule.profile(model) as times: ...`, then `print(times)`.

Not here: sizes and stages (report.py), timelines of sessions (sessions/timeline.py), and the ranges that every node is
in PyTorch's own profiler (csrc/runtime/executor.cpp).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from . import _C
from .errors import InvalidArgumentError
from .ortmodule import ORTModule
from .sessions import InferenceSession

__all__ = ["NodeTime", "Profile", "profile"]


@dataclasses.dataclass(frozen=True)
class NodeTime:
    """What one node of a graph took.

    Attributes:
        phase: "forward" or "backward".
        op: the operator.
        name: the node, named after the sub-module that it comes from.
        calls: how often it ran.
        seconds: wall seconds of all calls. On a GPU, where kernels are queued: the seconds to queue them.
    """

    phase: str
    op: str
    name: str
    calls: int
    seconds: float


@dataclasses.dataclass
class Profile:
    """The product of `profile`, filled when its block ends. Printable.

    Attributes:
        nodes: every node that ran, in the order of the graphs.
    """

    nodes: tuple[NodeTime, ...] = ()

    @property
    def seconds(self) -> float:
        """Of all nodes together; what Python, autograd and the optimizer took is not in it."""
        return sum(n.seconds for n in self.nodes)

    def by_operator(self) -> list[NodeTime]:
        """Nodes summed by phase and operator, the most expensive first; `name` tells how many nodes."""
        groups: dict[tuple[str, str], list[NodeTime]] = {}
        for node in self.nodes:
            groups.setdefault((node.phase, node.op), []).append(node)
        sums = [
            NodeTime(phase, op, f"{len(n)} nodes", sum(x.calls for x in n), sum(x.seconds for x in n))
            for (phase, op), n in groups.items()
        ]
        return sorted(sums, key=lambda n: -n.seconds)

    def table(self, rows: list[NodeTime]) -> str:
        """Rows as text: milliseconds, share of all nodes, calls, microseconds per call."""
        whole = self.seconds or 1.0
        lines = [f"{'ms':>10} {'share':>6} {'calls':>7} {'us/call':>9}  phase     operator"]
        lines += [
            f"{1e3 * n.seconds:10.3f} {n.seconds / whole:6.1%} {n.calls:7d} {1e6 * n.seconds / n.calls:9.1f}  "
            f"{n.phase:<8}  {n.op} ({n.name})"
            for n in rows
        ]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table(self.by_operator())


@contextlib.contextmanager
def profile(model: ORTModule | InferenceSession) -> Iterator[Profile]:
    """Times every node that `model` runs within the block; outside of it nothing is measured.

    Args:
        model: what to look at; of an ORTModule, sub-modules that run in the engine on their own (partial fallback)
            count.

    Yields:
        A Profile that is filled when the block ends.

    Raises:
        InvalidArgumentError: `model` is neither an ORTModule nor an InferenceSession.
    """
    if not isinstance(model, ORTModule | InferenceSession):
        raise InvalidArgumentError(f"profile expects an ORTModule or InferenceSession, got {type(model).__name__}")
    result = Profile()
    for session in model._sessions():
        session.take_times()
    _C.profile(True)
    try:
        yield result
    finally:
        _C.profile(False)
        result.nodes = tuple(NodeTime(*row) for session in model._sessions() for row in session.take_times())
