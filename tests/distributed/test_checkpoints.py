"""Checkpoints of sharded training: other world sizes and stages, damage, kills, and what else a run needs."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from ortmodule.distributed import (
    CheckpointError,
    ZeroOptimizer,
    consolidate,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
    verify,
    zero,
)
from tests.distributed.models import batch, groups
from tests.distributed.spawn import in_process, on_ranks, once
from tests.distributed.training import EPSILON, Case, distance

BEFORE, AFTER = 3, 3


def set_up(stage: int, bf16: bool = False, engine: str = "ortmodule") -> tuple[Any, ZeroOptimizer, Any]:
    case = Case(stage=stage, bf16=bf16, engine=engine)
    model = case.wrapped(case.model())
    optimizer = torch.optim.AdamW(groups(model), lr=1e-3, eps=EPSILON)
    model, sharded = zero(model, optimizer, stage=stage, policy=case.zero_policy())
    return model, sharded, torch.optim.lr_scheduler.StepLR(sharded, 2, 0.9)


def train(model: Any, optimizer: ZeroOptimizer, scheduler: Any, first: int, steps: int) -> list[float]:
    """Every rank takes the same batches, so that the world's size makes no difference but rounding."""
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss = model(batch(step, 0, 0))
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def save_and_go_on(rank: int, folder: str, stages: list[tuple[int, bool]]) -> list[Any]:
    out = []
    for stage, bf16 in stages:
        model, optimizer, scheduler = set_up(stage, bf16)
        train(model, optimizer, scheduler, 0, BEFORE)
        torch.manual_seed(100 + rank)
        torch.rand(3)
        path = Path(folder, f"{stage}-{bf16}")
        saved = save_checkpoint(
            path, model, optimizer, scheduler=scheduler, step=BEFORE, data={"at": 7}, asynchronous=stage == 2
        )
        drawn = torch.rand(2).tolist()
        losses = train(model, optimizer, scheduler, BEFORE, AFTER)
        if saved is not None:
            saved.result()
        out.append((losses, optimizer.full_parameters(), drawn))
    return out


def load_and_go_on(rank: int, folder: str, cases: list[tuple[int, bool, int]], again: str = "") -> list[Any]:
    del rank
    out = []
    for stage, bf16, to in cases:
        model, optimizer, scheduler = set_up(to, bf16)
        loaded = load_checkpoint(Path(folder, f"{stage}-{bf16}"), model, optimizer, scheduler=scheduler)
        assert (loaded.step, loaded.data) == (BEFORE, {"at": 7})
        drawn = torch.rand(2).tolist()
        if again:
            save_checkpoint(
                Path(folder, f"{again}{stage}-{bf16}-{to}"), model, optimizer, scheduler=scheduler, step=BEFORE,
                data={"at": 7},
            )  # fmt: skip
        losses = train(model, optimizer, scheduler, BEFORE, AFTER)
        out.append((losses, optimizer.full_parameters(), drawn))
    return out


def close(found: Any, expected: Any, exact: bool, bf16: bool) -> None:
    losses, parameters, _ = found
    if exact:
        assert losses == expected[0]
        assert all(torch.equal(value, expected[1][name]) for name, value in parameters.items())
        return
    assert losses == pytest.approx(expected[0], rel=1e-3 if bf16 else 1e-6)
    assert all(distance(value, expected[1][name]) <= (1e-3 if bf16 else 1e-6) for name, value in parameters.items())


def test_a_run_goes_on_at_another_world_size_and_stage(tmp_path: Path) -> None:
    stages = [(1, False), (3, True)]
    expected = on_ranks(2, save_and_go_on, str(tmp_path), stages)
    same = [(1, False, 1), (3, True, 3), (1, False, 3), (3, True, 2)]
    there = on_ranks(2, load_and_go_on, str(tmp_path), same)
    for rank in range(2):
        for i, (stage, bf16, to) in enumerate(same):
            want = expected[rank][stages.index((stage, bf16))]
            assert there[rank][i][2] == want[2], "the random state of each rank"
            if rank == 0:
                close(there[rank][i], want, exact=stage == to, bf16=bf16)
    other = [(1, False, 2), (3, True, 3)]
    (alone,) = on_ranks(1, load_and_go_on, str(tmp_path), other)
    for i, (stage, bf16, _) in enumerate(other):
        close(alone[i], expected[0][stages.index((stage, bf16))], exact=False, bf16=bf16)
    names = consolidate(tmp_path / "3-True", tmp_path / "whole.safetensors")
    whole = load_file(tmp_path / "whole.safetensors")
    model = Case(bf16=True).model()
    state = model.state_dict()
    state.pop("head.weight")  # tied: once
    assert set(names) == set(whole) == set(state)
    assert all(whole[name].dtype == value.dtype and whole[name].shape == value.shape for name, value in state.items())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make() -> Path:
        path = tmp_path_factory.mktemp("checkpoint") / "step-1"
        on_ranks(2, save_one, str(path))
        return path

    return once(tmp_path_factory, "checkpoint", make)


def save_one(rank: int, path: str) -> None:
    del rank
    model, optimizer, scheduler = set_up(1, engine="eager")
    train(model, optimizer, scheduler, 0, 1)
    save_checkpoint(path, model, optimizer, step=1)


def test_every_flipped_bit_is_found_and_named(checkpoint: Path, tmp_path: Path) -> None:
    assert verify(checkpoint) > 50
    found = flips(checkpoint, tmp_path, 300)
    assert found == 300


def flips(checkpoint: Path, folder: Path, count: int) -> int:
    """How many of `count` single flipped bits are found; each error names a tensor, or the file of names."""
    copy = folder / "copy"
    shutil.copytree(checkpoint, copy)
    files = sorted(copy.iterdir())
    rng, found = random.Random(0), 0
    for _ in range(count):
        file = rng.choice(files)
        data = bytearray(file.read_bytes())
        at, bit = rng.randrange(len(data)), rng.randrange(8)
        data[at] ^= 1 << bit
        file.write_bytes(data)
        try:
            verify(copy)
        except CheckpointError as error:
            found += any(word in str(error) for word in ("model.", "optimizer.", "manifest"))
        data[at] ^= 1 << bit
        file.write_bytes(data)
    return found


def test_a_truncated_or_missing_file_is_found(checkpoint: Path, tmp_path: Path) -> None:
    for name in ("rank-00001.safetensors", "manifest.json"):
        copy = tmp_path / name
        shutil.copytree(checkpoint, copy)
        data = (copy / name).read_bytes()
        for length in (0, 7, len(data) // 2, len(data) - 1):
            (copy / name).write_bytes(data[:length])
            with pytest.raises(CheckpointError):
                verify(copy)
        (copy / name).unlink()
        with pytest.raises(CheckpointError):
            verify(copy)


def test_a_killed_save_leaves_the_last_good_one(tmp_path: Path) -> None:
    kept, died = kills(tmp_path, 4)
    assert kept == died


def kills(folder: Path, count: int) -> tuple[int, int]:
    """Kills a process that saves at random moments `count` times; how often the newest checkpoint was whole."""
    return in_process(kill_savers, str(folder), count), count


def kill_savers(folder: str, count: int) -> int:
    """In a process of its own, which forks one after another."""
    rng, kept = random.Random(0), 0
    for i in range(count):
        where = Path(folder, str(i))
        child = os.fork()
        if child == 0:
            save_for_ever(where)
        while not (where / "step-2").exists():
            time.sleep(0.005)
        time.sleep(rng.random() * 0.1)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        newest = latest_checkpoint(where)
        kept += newest is not None and verify(newest) > 50
        shutil.rmtree(where)
    return kept


def save_for_ever(folder: Path) -> None:
    """One process that writes a checkpoint after another."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model, optimizer, scheduler = set_up(1, engine="eager")
    train(model, optimizer, scheduler, 0, 1)
    for step in range(1, 10**6):
        save_checkpoint(folder / f"step-{step}", model, optimizer, step=step)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        verify(tmp_path)
    torch.save({"a": torch.ones(1)}, tmp_path / "manifest.json")
    with pytest.raises(CheckpointError, match="damaged"):
        verify(tmp_path)
