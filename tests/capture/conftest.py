"""What captures are compared by."""

from __future__ import annotations

import collections
from typing import Any

import pytest

from ortmodule.graph_transition.conditions import Condition, NotStorable, reachable
from ortmodule.graph_transition.disk.stored import store
from ortmodule.graph_transition.manager import GraphTransitionManager


def described(watched: tuple[str, Condition, Any]) -> tuple[Any, ...]:
    text, condition, _ = watched
    try:
        names, further = condition.stored()
    except NotStorable:
        return text, type(condition).__name__
    return text, type(condition).__name__, tuple(sorted(names)), repr(further)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Of each capture of the test so far: graph, conditions, which sizes vary, what it leaves behind."""
    found: list[Any] = []
    capture = GraphTransitionManager._captured

    def listening(self: Any, *args: Any) -> Any:
        graph, dynamic, roots, effects = result = capture(self, *args)
        watched = collections.Counter(map(described, reachable(roots, set(), {})))
        try:
            facts: Any = store(graph, self._module)
        except NotStorable as why:
            facts = str(why)
        found.append((facts, watched, dynamic, effects))
        return result

    monkeypatch.setattr(GraphTransitionManager, "_captured", listening)
    return found
