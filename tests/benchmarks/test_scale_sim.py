"""The model of the network behind benchmarks/scale_sim.py: what can be computed by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from scale_sim import Layer, Model, Network, Setting, simulate

NETWORK = Network(per_node=2, inside=100.0, between=10.0, hop_inside=0.0, hop_between=0.0)
MODEL = Model("four", (Layer(10, 1.0),) * 4, 0.0)


def setting(stage: int, world: int, shards: int, window: int = 1) -> Setting:
    return Setting(stage, world, shards, bucket=20, window=window, sequences=1, flops=1.0)


def test_a_ring_moves_all_but_its_own_part_at_the_speed_of_its_slowest_link() -> None:
    assert NETWORK.ring(100, 1) == 0
    assert NETWORK.ring(100, 2) == pytest.approx(0.5)
    assert NETWORK.ring(100, 4) == pytest.approx(7.5)
    assert NETWORK.ring(100, 2, stride=2) == pytest.approx(5.0), "of two nodes"


def test_what_fits_behind_the_computation_costs_the_first_gather_and_the_last_sum() -> None:
    step = simulate(MODEL, NETWORK, setting(3, 2, 2))
    gather, total = 20 / 2 / 100, 40 / 2 / 100
    # Backward's first gather is not ahead of its start; each other one is.
    assert step.total == pytest.approx(12 + 2 * gather + total)
    assert step.link == pytest.approx(4 * (2 * gather + total))


def test_over_a_slow_network_the_link_is_what_a_step_takes() -> None:
    step = simulate(MODEL, NETWORK, setting(2, 4, 4))
    assert step.link == pytest.approx(4 * (0.75 * 20 / 10 + 0.75 * 40 / 10))
    assert step.compute == 12
    assert step.total >= step.link


def test_copies_are_summed_when_backward_is_done() -> None:
    alone, copied = simulate(MODEL, NETWORK, setting(3, 2, 2)), simulate(MODEL, NETWORK, setting(3, 4, 2))
    assert copied.total == pytest.approx(alone.total + 4 * 2 * 0.5 * 20 / 10)
