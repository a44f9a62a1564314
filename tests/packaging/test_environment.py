"""Rank and world size from a launcher's variables, and the learning-rate schedule of the examples."""

from __future__ import annotations

import math

import pytest
import torch

from ortmodule.distributed import LaunchEnvironment, is_rank_zero, launch_environment
from ortmodule.optim import warmup_cosine


def test_without_a_launcher_this_is_the_only_process():
    assert launch_environment({}) == LaunchEnvironment(0, 1, 0, 1)


def test_torchruns_variables_are_read():
    environ = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert launch_environment(environ) == LaunchEnvironment(5, 8, 1, 4)
    assert not is_rank_zero(environ)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"RANK": "0"}, "WORLD_SIZE is not"),
        ({"RANK": "two", "WORLD_SIZE": "4"}, "RANK is 'two'"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4"),
        ({"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE=0"),
        ({"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "2"}, "LOCAL_RANK=2"),
    ],
)
def test_contradictions_are_errors_that_name_the_variable(environ, words):
    with pytest.raises(ValueError, match=words):
        launch_environment(environ)
    assert is_rank_zero(environ) in (True, False)


def test_the_schedule_follows_its_formula():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    scheduler = warmup_cosine(optimizer, warmup_steps=3, total_steps=13, floor=0.1)
    rates = []
    for _ in range(16):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert rates[:4] == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert rates[8] == pytest.approx(2 * (0.1 + 0.9 * (1 + math.cos(math.pi / 2)) / 2))
    assert rates[13:] == pytest.approx([0.2] * 3)


@pytest.mark.parametrize("numbers", [(-1, 10, 0.0), (5, 4, 0.0), (0, 0, 0.0), (0, 1, 1.5)])
def test_the_schedule_refuses_impossible_numbers(numbers):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    warmup, total, floor = numbers
    with pytest.raises(ValueError):
        warmup_cosine(optimizer, warmup_steps=warmup, total_steps=total, floor=floor)
