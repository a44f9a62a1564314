"""The number of intra-op threads changes no result and no random draw."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn as nn

from tests.support import assert_same_gradients, pair


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def net(p: float) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Dropout(p), nn.Linear(512, 64))


def test_a_step_on_several_threads_equals_eagers() -> None:
    torch.set_num_threads(4)
    model, eager = pair(net(0.0))
    x = torch.randn(512, 256)
    for module in (model, eager):
        module(x).square().mean().backward()
    assert_same_gradients(model, eager)


def test_fast_dropout_draws_the_same_on_any_number_of_threads() -> None:
    model, _ = pair(net(0.5))
    x = torch.randn(512, 256)
    losses = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        torch.manual_seed(5)
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        losses.append(loss.detach())
        losses.append(next(model.parameters()).grad.norm())
    for i in (2, 4):
        torch.testing.assert_close(losses[i], losses[0])
        torch.testing.assert_close(losses[i + 1], losses[1])
