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


def test_bytes_and_operations_are_those_of_the_sizes_that_ran() -> None:
    model, _ = pair(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Flatten(), torch.nn.Linear(8, 2)))
    with ortmodule.profile(model) as times:
        for rows in (5, 3, 3, 7):  # the sizes are symbols from the second on
            model(torch.ones(rows, 4)).sum().backward()
    products = [n for n in times.nodes if n.op == "Linear"]
    assert sum(n.flops for n in products) == 2 * (5 + 3 + 3 + 7) * (4 * 8 + 8 * 2)
    assert sum(n.bytes for n in products) == sum(4 * (4 * r + 40 + 8 * r + 8 * r + 18 + 2 * r) for r in (5, 3, 3, 7))
    gradients = [n for n in times.nodes if n.op == "LinearGrad"]
    assert sum(n.flops for n in gradients) == 2 * (5 + 3 + 3 + 7) * (4 * 8 + 2 * 8 * 2)
    assert all(n.gigaflops > 0 and n.gigabytes_per_second > 0 for n in products)
    assert len({(n.phase, n.value) for n in times.nodes if n.value}) >= len(times.nodes) // 2
    (row,) = [n for n in times.by_operator() if n.op == "Linear"]
    assert row.flops == sum(n.flops for n in products) and row.value == ""
    assert "GFLOP/s" in str(times) and "MiB/call" in str(times)


def test_what_is_not_known_is_none() -> None:
    model, _ = pair(torch.nn.Sequential(torch.nn.Unflatten(1, (2, 2)), torch.nn.GELU()))
    with ortmodule.profile(model) as times:
        model(torch.ones(5, 4))
    by_name = {n.op: n for n in times.nodes}
    assert by_name["Reshape"].bytes is None and by_name["Reshape"].gigabytes_per_second is None  # a view moves nothing
    assert by_name["Gelu"].flops is None and by_name["Gelu"].bytes == 2 * 4 * 20
    assert "-" in times.table([by_name["Reshape"]]).splitlines()[1].split()


def test_only_an_ortmodule_can_be_profiled() -> None:
    with pytest.raises(InvalidArgumentError, match="expects an ORTModule"):
        with ortmodule.profile(torch.nn.Linear(2, 2)):
            pass
