"""Passes over a graph, written in Python: `@graph_pass`, and the names of the engine's own.

A pass gets the graph (`ortmodule.Graph`) before its gradient is built, or with it, and edits it; what it makes is
differentiated, fused and planned as everything else. Not here: the graph itself (csrc/graph), the engine's passes
(csrc/transforms/passes), and where a pass is given (`Options.passes`, `SessionOptions.register_pass`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, overload

from . import _C
from ._C import Graph
from .errors import InvalidArgumentError, nearest

__all__ = ["Graph", "GraphPass", "checked_names", "checked_passes", "graph_pass", "pass_names", "session_passes"]

_STAGES = ("forward", "joint", "both")


@dataclasses.dataclass(frozen=True)
class GraphPass:
    """A function of a graph and when it runs; made by `graph_pass`.

    Attributes:
        function: called with the graph of the model, and with each body of If, Loop and Scan.
        name: how errors and statistics name it.
        stage: "forward": before the gradient is built, and for inference; what it makes needs a gradient, which each
            operator of the engine's has. "joint": on forward and backward together. "both".
    """

    function: Callable[[Graph], None]
    name: str
    stage: str = "forward"

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidArgumentError(f"a pass is a function of a graph, got {self.function!r}")
        if self.stage not in _STAGES:
            raise InvalidArgumentError(f"the stage of a pass should be one of {_STAGES}, got {self.stage!r}")
        if not self.name or self.name in pass_names():
            raise InvalidArgumentError(f"a pass needs a name that none of the engine's has, got {self.name!r}")

    def __call__(self, graph: Graph) -> None:
        self.function(graph)


@overload
def graph_pass(function: Callable[[Graph], None], /) -> GraphPass: ...


@overload
def graph_pass(
    *, name: str | None = None, stage: str = "forward"
) -> Callable[[Callable[[Graph], None]], GraphPass]: ...


def graph_pass(
    function: Callable[[Graph], None] | None = None, /, *, name: str | None = None, stage: str = "forward"
) -> GraphPass | Callable[[Callable[[Graph], None]], GraphPass]:
    """Makes a function of a graph a pass, for `Options(passes=(...,))` and `SessionOptions.register_pass`.

    The pass runs first in each round of the stage's passes, and again until nothing changes (five rounds at most), so
    it should leave alone what it has made. Its edits are counted: it returns nothing. What it holds of the graph
    (graph, nodes, values) is good until it returns, then each use is an error.

    Args:
        name: the function's where it is not given.
        stage: when it runs (`GraphPass.stage`).

    Raises:
        InvalidArgumentError: no function, no such stage, a name that a pass of the engine has.
    """

    def make(wrapped: Callable[[Graph], None]) -> GraphPass:
        return GraphPass(wrapped, name or str(getattr(wrapped, "__name__", "")), stage)

    return make if function is None else make(function)


def pass_names() -> list[str]:
    """The engine's own passes, in the order in which they run."""
    return _C.pass_names()


def checked_passes(owner: str, passes: Any) -> tuple[GraphPass, ...]:
    """`passes` as a tuple of passes of different names; `owner` is the option's name.

    Raises:
        InvalidArgumentError: no list of passes, or a name twice.
    """
    if not isinstance(passes, list | tuple) or not all(isinstance(p, GraphPass) for p in passes):
        raise InvalidArgumentError(
            f"{owner} should be a tuple of passes (made by ortmodule.graph_pass), got {passes!r}"
        )
    names = [p.name for p in passes]
    if len(set(names)) < len(names):
        raise InvalidArgumentError(f"{owner} has two passes of one name: {names}")
    return tuple(passes)


def checked_names(owner: str, names: Any) -> tuple[str, ...]:
    """`names` (in one text: separated by commas) as a tuple of names of the engine's passes.

    Raises:
        InvalidArgumentError: a name that none of them has; the nearest is named.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()] if isinstance(names, str) else names
    if not isinstance(wanted, list | tuple):
        raise InvalidArgumentError(f"{owner} should be a tuple of names of passes, got {names!r}")
    known = pass_names()
    for name in wanted:
        if name not in known:
            raise InvalidArgumentError(f"{owner}: there is no pass {name!r}{nearest(str(name), known)}")
    return tuple(wanted)


def session_passes(passes: Iterable[GraphPass], disabled: Iterable[str]) -> dict[str, Any]:
    """How `_C.Session` takes them."""
    return {
        "passes": [(p.name, p.stage, p.function) for p in passes],
        "disabled_passes": list(disabled),
    }
