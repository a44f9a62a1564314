"""The memory that stays between steps: values never suffer from it, and callers may hold what they like."""

from __future__ import annotations

import copy
import gc
import threading

import pytest
import torch
import torch.nn as nn

import ortmodule
from ortmodule import _C
from tests import zoo
from tests.support import assert_same_gradients, pair

WIDTH = 256  # a batch of 64 rows is 64 KiB: large enough for the arena


def wide() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    return nn.Sequential(*layers)


def step(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out = module(x)
    out.square().mean().backward()
    return out.detach()


def arena_bytes(model: ortmodule.ORTModule) -> int:
    return max(s.arena_bytes for s in model.report().sessions)


def test_steps_give_eagers_numbers_whatever_was_there_before() -> None:
    model, eager = pair(wide())
    for i in range(6):
        x = torch.randn(64, WIDTH)
        model.zero_grad()
        eager.zero_grad()
        torch.testing.assert_close(step(model, x), step(eager, x))
        assert_same_gradients(model, eager)
        assert (arena_bytes(model) > 0) == (i > 0)


def test_accumulated_gradients_are_eagers() -> None:
    model, eager = pair(wide())
    for _ in range(3):
        model.zero_grad()
        eager.zero_grad()
        for _ in range(4):
            x = torch.randn(64, WIDTH)
            step(model, x)
            step(eager, x)
        assert_same_gradients(model, eager)


def test_outputs_and_gradients_that_the_caller_keeps_do_not_change() -> None:
    model, eager = pair(wide())
    kept, expected = [], []
    for _ in range(8):
        x = torch.randn(64, WIDTH)
        kept.append(step(model, x))
        expected.append(step(eager, x))
        kept += [p.grad for p in model.parameters()]
        expected += [p.grad for p in eager.parameters()]
        model.zero_grad()
        eager.zero_grad()
    for a, b in zip(kept, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_many_outstanding_runs_and_backwards_in_any_order() -> None:
    model, eager = pair(wide())
    for _ in range(3):
        model.zero_grad()
        eager.zero_grad()
        xs = [torch.randn(64, WIDTH) for _ in range(4)]
        ours, theirs = [model(x) for x in xs], [eager(x) for x in xs]
        for i in (2, 0, 3, 1):
            ours[i].square().mean().backward()
            theirs[i].square().mean().backward()
        assert_same_gradients(model, eager)


def test_a_kept_graph_runs_backward_again() -> None:
    model, eager = pair(wide())
    for _ in range(3):
        x = torch.randn(64, WIDTH)
        for module in (model, eager):
            module.zero_grad()
            loss = module(x).square().mean()
            loss.backward(retain_graph=True)
            loss.backward()
        assert_same_gradients(model, eager)


def test_changing_sizes_and_evaluation_between_steps() -> None:
    model, eager = pair(wide())
    for rows in (64, 96, 64, 200, 33, 96, 64, 200):
        x = torch.randn(rows, WIDTH)
        model.zero_grad()
        eager.zero_grad()
        step(model, x)
        with torch.no_grad():
            torch.testing.assert_close(model(x), eager(x))
        step(eager, x)
        assert_same_gradients(model, eager)


def test_threads_may_share_a_model() -> None:
    model, eager = pair(wide())
    x = torch.randn(64, WIDTH)
    expected = eager(x)
    step(model, x)
    wrong: list[str] = []

    def work() -> None:
        for _ in range(30):
            with torch.enable_grad():
                out = model(x)
                torch.autograd.grad(out.sum(), model.module[0].weight)
            if not torch.allclose(out, expected, atol=1e-6):
                wrong.append("differs")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_model_that_is_gone_leaves_its_gradients_and_no_pages() -> None:
    model, eager = pair(wide())
    for _ in range(3):
        x = torch.randn(64, WIDTH)
        model.zero_grad()
        eager.zero_grad()
        step(model, x)
        step(eager, x)
    gradients = [p.grad for p in model.parameters()]
    del model
    gc.collect()
    _C.release_memory()
    for ours, p in zip(gradients, eager.parameters(), strict=True):
        torch.testing.assert_close(ours, p.grad)


def test_release_memory_between_steps_changes_no_number() -> None:
    model, eager = pair(wide())
    for _ in range(4):
        x = torch.randn(64, WIDTH)
        model.zero_grad()
        eager.zero_grad()
        step(model, x)
        ortmodule.release_memory()
        step(eager, x)
        assert_same_gradients(model, eager)


def test_gradients_of_an_arena_can_be_copied_resized_and_shared() -> None:
    model, _ = pair(wide())
    for _ in range(2):
        model.zero_grad()
        step(model, torch.randn(64, WIDTH))
    gradient = model.module[0].weight.grad
    before = gradient.clone()
    assert torch.equal(copy.deepcopy(gradient), before)
    gradient.resize_(2 * WIDTH, WIDTH).resize_(WIDTH, WIDTH)
    assert torch.equal(gradient, before)
    gradient.share_memory_()
    assert torch.equal(gradient, before)
    step(model, torch.randn(64, WIDTH) * 0)
    assert torch.isfinite(model.module[0].weight.grad).all()


@pytest.mark.parametrize("name", ["gpt2", "resnet18"])
def test_a_steady_step_takes_every_large_block_from_the_arena(name: str) -> None:
    sample = zoo.build(name)
    model, _ = pair(sample.module)

    def steps(count: int) -> None:
        for _ in range(count):
            model.zero_grad()
            out = model(**sample.inputs)
            zoo.loss_of(out).backward()
            del out

    steps(4)
    sessions = [o for o in gc.get_objects() if type(o) is _C.Session]
    before = [s.statistics()["unplanned_allocations"] for s in sessions]
    steps(5)
    assert [s.statistics()["unplanned_allocations"] for s in sessions] == before
