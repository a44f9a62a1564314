"""Sharding beside plain training: groups added later, skipped steps, GradScaler, hybrid meshes, surgery, meta devices,
state dicts of whole parameters, plain modules at stage 3."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from ortmodule import Options, ORTModule
from ortmodule.distributed import DistributedError, ZeroPolicy, gathered, zero
from tests.distributed.models import GPT, batch, groups
from tests.distributed.spawn import of_checks, on_ranks, once

SMALL = 1 << 13


def wrapped(module: nn.Module) -> ORTModule:
    return ORTModule(module, options=Options(fallback="error"))


def adam(groups: Any, lr: float = 1e-3) -> torch.optim.AdamW:
    return torch.optim.AdamW(groups, lr=lr, eps=1e-5)


def steps(model: nn.Module, optimizer: Any, count: int, first: int = 0) -> list[float]:
    losses = []
    for step in range(first, first + count):
        optimizer.zero_grad()
        loss = model(batch(step, 0, 0))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check_groups_added_later(rank: int) -> None:
    del rank
    model, eager = GPT(1), GPT(1)
    for one in (model, eager):
        one.blocks[0].requires_grad_(False)
    optimizer, plain = (adam([p for p in one.parameters() if p.requires_grad]) for one in (model, eager))
    _, sharded = zero(model, optimizer, stage=2, policy=ZeroPolicy(bucket_bytes=SMALL))
    before = steps(model, sharded, 2), steps(eager, plain, 2)
    assert before[0] == pytest.approx(before[1], rel=1e-6)
    for one, its in ((model, sharded), (eager, plain)):
        one.blocks[0].requires_grad_(True)
        its.add_param_group({"params": list(one.blocks[0].parameters()), "lr": 5e-3})
    after = steps(model, sharded, 3, 2), steps(eager, plain, 3, 2)
    assert after[0] == pytest.approx(after[1], rel=1e-6)


def check_one_decision_to_skip(rank: int) -> None:
    for stage in (1, 3):
        model = wrapped(GPT(1))
        run, optimizer = zero(model, adam(groups(model)), stage=stage, policy=ZeroPolicy(bucket_bytes=SMALL))
        kept = optimizer.full_parameters()
        for step in range(3):
            optimizer.zero_grad()
            loss = run(batch(step, 0, rank))
            (loss * (float("inf") if step == 1 and rank == 1 else 1.0)).backward()
            norm = optimizer.clip_grad_norm_(1.0)
            assert bool(norm.isfinite()) == (step != 1)
            before = optimizer.full_parameters()
            optimizer.step()
            after = optimizer.full_parameters()
            if rank == 0:
                same = all(torch.equal(before[n], after[n]) for n in kept)
                assert same == (step == 1)
        assert optimizer.skipped_steps == 1


def check_grad_scaler(rank: int) -> None:
    model = GPT(1)
    _, optimizer = zero(model, adam(groups(model)), stage=2, policy=ZeroPolicy(bucket_bytes=SMALL))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scales = []
    for step in range(4):
        optimizer.zero_grad()
        loss = model(batch(step, 0, rank)) * (float("inf") if step == 2 and rank == 0 else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [2.0**10, 2.0**10, 2.0**9, 2.0**9]


def check_full_state(rank: int) -> None:
    """A state goes from one process to shards and back."""
    eager = GPT(1)
    plain = adam(groups(eager))
    steps(eager, plain, 2)
    model = wrapped(copy.deepcopy(eager))
    optimizer = adam(groups(model))
    run, sharded = zero(model, optimizer, stage=3, policy=ZeroPolicy(bucket_bytes=SMALL))
    sharded.load_state_dict(copy.deepcopy(plain.state_dict()))
    assert steps(run, sharded, 2, 2) == pytest.approx(steps(eager, plain, 2, 2), rel=1e-6)
    full, expected = sharded.full_state_dict(), plain.state_dict()
    if rank == 0:
        assert full["state"].keys() == expected["state"].keys()
        for i, state in expected["state"].items():
            assert state.keys() == full["state"][i].keys()
            for key, value in state.items():
                torch.testing.assert_close(full["state"][i][key], value, rtol=1e-4, atol=1e-7)
        adam(groups(GPT(1))).load_state_dict(full)
    own = sharded.state_dict()
    sharded.load_state_dict(own)
    # An optimizer that has a state already keeps it.
    again = wrapped(copy.deepcopy(eager))
    second = adam(groups(again))
    second.load_state_dict(copy.deepcopy(plain.state_dict()))
    run, sharded = zero(again, second, stage=1, policy=ZeroPolicy(bucket_bytes=SMALL))
    assert steps(run, sharded, 2, 4) == pytest.approx(steps(eager, plain, 2, 4), rel=1e-6)


def check_surgery_and_meta(rank: int) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    torch.manual_seed(rank)  # rank 0's values are everybody's
    run, optimizer = zero(wrapped(model), torch.optim.SGD(model.parameters(), 0.1), stage=3)
    assert all(p.untyped_storage().nbytes() == 0 and not p.is_meta for p in model.parameters())
    assert [tuple(p.shape) for p in model.parameters()] == [(16, 8), (16,), (4, 16), (4,)]
    x = torch.ones(2, 8)
    first = run(x)
    with gathered(optimizer, modified_on=1), torch.no_grad():
        if rank == 1:
            model[2].weight.zero_()
            model[2].bias.fill_(3.0)
    assert float(first.detach().abs().sum()) > 0
    assert torch.equal(run(x).detach(), torch.full((2, 4), 3.0))
    with torch.no_grad():
        assert torch.equal(run(x), torch.full((2, 4), 3.0))


def check_plain_module_at_stage_3(rank: int) -> None:
    del rank
    model, eager = GPT(1), GPT(1)
    run, optimizer = zero(model, adam(groups(model)), stage=3)
    assert steps(run, optimizer, 3) == pytest.approx(steps(eager, adam(groups(eager)), 3), rel=1e-5)


def check_a_model_that_is_moved_later(rank: int) -> None:
    """Loops of other libraries call `.to`, which may copy."""
    del rank
    model, eager = GPT(1), GPT(1)
    _, optimizer = zero(model, adam(groups(model)), stage=2, policy=ZeroPolicy(bucket_bytes=SMALL))
    for p in model.parameters():
        p.data = p.data.clone()
    assert steps(model, optimizer, 3) == pytest.approx(steps(eager, adam(groups(eager)), 3), rel=1e-6)
    model.double()
    model(batch(0, 0, 0)).backward()
    with pytest.raises(DistributedError, match="move and convert the model before zero"):
        optimizer.step()


CHECKS = [
    check_a_model_that_is_moved_later,
    check_groups_added_later,
    check_one_decision_to_skip,
    check_grad_scaler,
    check_full_state,
    check_surgery_and_meta,
    check_plain_module_at_stage_3,
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    return once(tmp_path_factory, "more", lambda: on_ranks(2, of_checks, CHECKS))


@pytest.mark.parametrize("i", range(len(CHECKS)), ids=[check.__name__[6:] for check in CHECKS])
def test_sharding_goes_with(found: list[list[str]], i: int) -> None:
    assert [one[i] for one in found] == ["", ""]


def hybrid(rank: int) -> list[float]:
    """Two replicas of two shards each."""
    model = GPT(1)
    mesh = init_device_mesh("cpu", (2, 2))
    run, optimizer = zero(
        wrapped(model), adam(groups(model)), stage=3, policy=ZeroPolicy(bucket_bytes=SMALL, mesh=mesh)
    )
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        loss = run(batch(step, 0, rank))
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss := loss.detach())
        losses.append(loss.item() / 4)
    return losses


def test_two_replicas_of_two_shards_train_as_one_process_does() -> None:
    eager = GPT(1)
    optimizer = adam(groups(eager))
    expected = []
    for step in range(3):
        optimizer.zero_grad()
        losses = [eager(batch(step, 0, rank)) for rank in range(4)]
        loss = sum(losses) / 4
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    for found in on_ranks(4, hybrid):
        assert found == pytest.approx(expected, rel=1e-6)
