"""Communication runs while the model computes: over a slow link most of it costs a step nothing."""

from __future__ import annotations

import pytest

from tests.distributed import overlap
from tests.distributed.overlap import Exposed, all_cases
from tests.distributed.spawn import on_ranks, once

STAGES = [1, 2, 3]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[list[Exposed]]:
    """By rank and stage, where collectives take half of the time that a step computes."""
    cases = [(stage, 0.5, True) for stage in STAGES]
    return once(tmp_path_factory, "overlap", lambda: on_ranks(2, all_cases, cases))


@pytest.mark.parametrize("stage", STAGES)
def test_a_step_waits_for_a_small_part_of_its_communication(found: list[list[Exposed]], stage: int) -> None:
    for rank in found:
        assert rank[stage - 1].share <= 0.3, rank[stage - 1]


@pytest.mark.parametrize("stage", STAGES)
def test_the_first_bucket_is_sent_while_backward_has_most_of_its_work_ahead(
    found: list[list[Exposed]], stage: int
) -> None:
    for rank in found:
        assert rank[stage - 1].first > 0.5 * overlap.LAYERS * overlap.BACKWARD


@pytest.mark.parametrize("stage", STAGES)
def test_no_layer_reads_parameters_that_are_still_on_their_way(found: list[list[Exposed]], stage: int) -> None:
    for rank in found:
        losses = rank[stage - 1].losses
        assert losses == pytest.approx(overlap.losses_of_one_process(len(losses)), rel=1e-6)
