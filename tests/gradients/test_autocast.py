"""Autocast around the call computes in bfloat16 what eager computes in bfloat16."""

from __future__ import annotations

import pytest
import torch
import torch.nn as nn

import ortmodule
from tests import zoo
from tests.support import Lambda, assert_same_gradients, exports, mlp, pair


def autocast(enabled: bool = True) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled)


@pytest.mark.parametrize("name", ["mlp", "gpt2", "bert", "resnet18"])
def test_a_step_under_autocast_equals_eagers(name: str) -> None:
    sample = zoo.build(name)
    model, eager = pair(sample.module)
    losses = []
    for module in (model, eager):
        with autocast():
            losses.append(zoo.loss_of(module(**sample.inputs)))
        losses[-1].backward()
    torch.testing.assert_close(*losses, rtol=2e-2, atol=1e-3)
    for (name, p), q in zip(model.named_parameters(), eager.parameters(), strict=True):
        assert p.grad.dtype == torch.float32
        scale = q.grad.abs().max()
        assert (p.grad - q.grad).abs().max() <= 0.05 * scale + 1e-4, name


def test_the_result_is_computed_in_bfloat16() -> None:
    model, eager = pair(nn.Linear(64, 64, bias=False))
    x = torch.randn(8, 64)
    with autocast():
        got, expected = model(x), eager(x)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, expected)
    assert not torch.equal(got.float(), model(x)), "the graph without autocast is another one"


@pytest.mark.parametrize("shape", [(128, 256), (3, 77, 256)])
def test_a_layer_with_a_bias_gives_eagers_bits(shape: tuple[int, ...]) -> None:
    model, eager = pair(nn.Linear(256, 384), matmul="onednn")  # "auto" may sum up in another order
    x = torch.randn(*shape)
    with autocast():
        assert torch.equal(model(x), eager(x))


@pytest.mark.parametrize("shape", [(128, 256), (3, 77, 256)])
def test_a_layer_rounds_once(shape: tuple[int, ...]) -> None:
    model, _ = pair(nn.Linear(256, 384))
    x, w = torch.randn(*shape).bfloat16(), model.weight.detach().bfloat16()
    exact = x.double() @ w.double().T + model.bias.detach().bfloat16().double()
    with autocast():
        torch.testing.assert_close(model(x.float()).double(), exact, rtol=2**-8, atol=1e-5)


def test_backward_outside_the_block_is_the_usual_way() -> None:
    model, eager = pair(mlp())
    for module in (model, eager):
        with autocast():
            loss = module(torch.ones(5, 4)).float().square().mean()
        loss.backward()
    assert_same_gradients(model, eager, rtol=2e-2, atol=1e-3)


def test_backward_multiplies_by_the_copies_that_forward_made() -> None:
    model, eager = pair(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)))
    x = torch.randn(8, 64)
    for module in (model, eager):
        with autocast():
            loss = module(x).float().square().mean()
        module[2].weight.data.mul_(3)
        loss.backward()
    assert_same_gradients(model, eager, rtol=2e-2, atol=1e-3)


def test_a_step_makes_one_copy_of_each_weight() -> None:
    model, _ = pair(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)))
    x = torch.randn(8, 64, requires_grad=True)
    with ortmodule.profile(model) as times, autocast():
        model(x).float().square().mean().backward()
    copies = [n for n in times.nodes if n.op == "Cast" and n.phase == "backward" and "again" in n.name]
    assert not copies


def test_a_disabled_block_inside_stays_in_float32() -> None:
    def forward(m: Lambda, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with autocast(False):
            exact = m.linear(x)
        return exact, m.linear(x)

    model, eager = pair(Lambda(forward))
    with autocast():
        got, expected = model(torch.ones(2, 4)), eager(torch.ones(2, 4))
    assert [t.dtype for t in got] == [t.dtype for t in expected] == [torch.float32, torch.bfloat16]
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_going_in_and_out_of_autocast_keeps_both_graphs() -> None:
    model, _ = pair(mlp())
    for enabled in (True, False, True, False):
        with autocast(enabled):
            assert model(torch.ones(5, 4)).dtype == (torch.bfloat16 if enabled else torch.float32)
    assert exports(model) == 2


def test_the_gradient_scaler_of_the_cpu_works_with_it() -> None:
    model, _ = pair(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    before = [p.clone() for p in model.parameters()]
    with autocast():
        loss = model(torch.ones(5, 4)).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
