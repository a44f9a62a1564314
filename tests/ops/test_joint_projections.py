"""Attention over the parts of one projection, whose gradients come as parts of one buffer: every way to split it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from ortmodule import ORTModule

Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
BATCH, LENGTH, HEADS, SIZE = 2, 9, 4, 8
WIDTH = HEADS * SIZE


def heads_first(t: torch.Tensor) -> torch.Tensor:
    return t.unflatten(-1, (-1, SIZE)).transpose(1, 2)


def by_chunk(t: torch.Tensor) -> Parts:
    q, k, v = t.chunk(3, -1)
    return heads_first(q), heads_first(k), heads_first(v)


def by_unbind(t: torch.Tensor) -> Parts:
    q, k, v = t.unflatten(-1, (3, HEADS, SIZE)).unbind(2)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def by_permute(t: torch.Tensor) -> Parts:
    q, k, v = t.unflatten(-1, (3, HEADS, SIZE)).permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v


def in_another_order(t: torch.Tensor) -> Parts:
    v, q, k = t.chunk(3, -1)
    return heads_first(q), heads_first(k), heads_first(v)


def of_interleaved_heads(t: torch.Tensor) -> Parts:
    q, k, v = t.unflatten(-1, (HEADS, 3, SIZE)).unbind(3)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def with_few_key_heads(t: torch.Tensor) -> Parts:
    q, k, v = t.split([2 * WIDTH, WIDTH // 2, WIDTH // 2], -1)
    return heads_first(q), heads_first(k), heads_first(v)


def of_one_part(t: torch.Tensor) -> Parts:
    q, k, _ = t.chunk(3, -1)
    return heads_first(q), heads_first(k), heads_first(k)


def with_a_detached_part(t: torch.Tensor) -> Parts:
    q, k, v = by_chunk(t)
    return q, k.detach(), v


def with_scaled_parts(t: torch.Tensor) -> Parts:
    q, k, v = by_chunk(t)
    return q * 0.5, k, v + q


class Joint(nn.Module):
    def __init__(self, split: Callable[[torch.Tensor], Parts], causal: bool = False) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.split, self.causal = split, causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(self.project(x))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=q.size(1) != k.size(1))
        return y.transpose(1, 2).flatten(2)


SPLITS = [
    by_chunk, by_unbind, by_permute, in_another_order, of_interleaved_heads, with_few_key_heads, of_one_part,
    with_a_detached_part, with_scaled_parts,
]  # fmt: skip


@pytest.mark.parametrize("batch", [1, BATCH])
@pytest.mark.parametrize("split", SPLITS, ids=lambda split: split.__name__)
def test_gradients_are_those_of_eager(split: Callable[[torch.Tensor], Parts], batch: int) -> None:
    torch.manual_seed(0)
    model = Joint(split, causal=True)
    x = torch.randn(batch, LENGTH, WIDTH, requires_grad=True)
    leaves = [x, *model.parameters()]
    weights = torch.randn_like(model(x))
    expected = torch.autograd.grad((model(x) * weights).sum(), leaves)
    got = torch.autograd.grad((ORTModule(model)(x) * weights).sum(), leaves)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


class Rejoined(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        first, second = y.chunk(2, 1)
        return torch.cat([x[:, :3], x[:, 3:]], 1), torch.cat([first, second], 1)


def test_what_is_joined_again_is_the_callers_own() -> None:
    x = torch.randn(4, 6, requires_grad=True)
    before = x.detach().clone()
    model = ORTModule(Rejoined())
    same, doubled = model(x)
    assert same.is_contiguous() and doubled.is_contiguous()
    with torch.no_grad():
        same.zero_()
    assert torch.equal(x, before) and torch.equal(doubled, 2 * before)
    doubled.sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 2.0))
