"""Where the time of a step goes: `with ortmodule.profile(model) as times: ...`, then `print(times)`.

Not here: sizes and stages (report.py), timelines of sessions (sessions/timeline.py), and the ranges that every node is
in PyTorch's own profiler (csrc/runtime/executor.cpp).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator

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
        bytes: of the inputs and outputs of all calls, each whole; None where sizes are not known before the run, and
            of a view, which moves nothing unless it must copy.
        flops: multiplications and additions of all calls, None where the operator has no formula for them (products,
            convolutions and attention have one) or sizes are not known before the run.
        value: the first value that it makes, which no other node of a graph does; "" in a sum of nodes.
    """

    phase: str
    op: str
    name: str
    calls: int
    seconds: float
    bytes: int | None = None
    flops: int | None = None
    value: str = ""

    @property
    def gigabytes_per_second(self) -> float | None:
        """What went through it in a second, in 10^9 bytes; None where that is not known."""
        return None if self.bytes is None or not self.seconds else 1e-9 * self.bytes / self.seconds

    @property
    def gigaflops(self) -> float | None:
        """10^9 multiplications and additions a second; None where that is not known."""
        return None if self.flops is None or not self.seconds else 1e-9 * self.flops / self.seconds


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
            NodeTime(
                phase,
                op,
                f"{len(n)} nodes",
                sum(x.calls for x in n),
                sum(x.seconds for x in n),
                _known_sum(x.bytes for x in n),
                _known_sum(x.flops for x in n),
            )
            for (phase, op), n in groups.items()
        ]
        return sorted(sums, key=lambda n: -n.seconds)

    def table(self, rows: list[NodeTime]) -> str:
        """Rows as text: milliseconds, share of all nodes, calls, microseconds and MiB per call, and what a second did;
        "-" where it is not known."""
        whole = self.seconds or 1.0
        lines = [
            f"{'ms':>10} {'share':>6} {'calls':>7} {'us/call':>9} {'MiB/call':>9} {'GB/s':>7} {'GFLOP/s':>8}  "
            "phase     operator"
        ]
        lines += [
            f"{1e3 * n.seconds:10.3f} {n.seconds / whole:6.1%} {n.calls:7d} {1e6 * n.seconds / n.calls:9.1f} "
            f"{_number(None if n.bytes is None else n.bytes / n.calls / 2**20, 9, 2)} "
            f"{_number(n.gigabytes_per_second, 7, 1)} {_number(n.gigaflops, 8, 1)}  {n.phase:<8}  {n.op} ({n.name})"
            for n in rows
        ]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table(self.by_operator())


def _known_sum(numbers: Iterable[int | None]) -> int | None:
    """None where one of them is."""
    known = list(numbers)
    return None if None in known else sum(n for n in known if n is not None)


def _number(number: float | None, width: int, places: int) -> str:
    return f"{'-':>{width}}" if number is None else f"{number:{width}.{places}f}"


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
