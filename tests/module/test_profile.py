"""`ortmodule.profile` tells the time of every node, and measures nothing outside its block."""

from __future__ import annotations

import pytest
import torch

import ortmodule
from ortmodule import InvalidArgumentError, NodeTime
from tests.support import mlp, pair


def test_every_node_of_forward_and_backward_is_timed() -> None:
    model, _ = pair(mlp())
    x = torch.ones(5, 4)
    with ortmodule.profile(model) as times:
        for _ in range(3):
            model(x).sum().backward()
    model(x).sum().backward()
    report = model.report().sessions[0]
    assert len(times.nodes) == report.forward_nodes + report.backward_nodes
    assert {n.phase for n in times.nodes} == {"forward", "backward"}
    assert all(n.calls == 3 and n.seconds > 0 for n in times.nodes)
    assert times.seconds == pytest.approx(sum(n.seconds for n in times.by_operator()))
    assert "Linear" in str(times) and "us/call" in str(times)


def test_a_second_profile_starts_anew() -> None:
    model, _ = pair(mlp())
    x = torch.ones(5, 4)
    for _ in range(2):
        with ortmodule.profile(model) as times, torch.no_grad():
            model(x)
        assert all(n.calls == 1 and n.phase == "forward" for n in times.nodes)
    with ortmodule.profile(model) as times:
        pass
    assert times.nodes == () and times.seconds == 0


def test_rows_of_a_table_are_nodes() -> None:
    model, _ = pair(mlp())
    with ortmodule.profile(model) as times:
        model(torch.ones(5, 4))
    assert isinstance(times.nodes[0], NodeTime)
    assert len(times.table(list(times.nodes)).splitlines()) == 1 + len(times.nodes)


def test_only_an_ortmodule_can_be_profiled() -> None:
    with pytest.raises(InvalidArgumentError, match="expects an ORTModule"):
        with ortmodule.profile(torch.nn.Linear(2, 2)):
            pass
