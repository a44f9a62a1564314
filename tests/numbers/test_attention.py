"""Attention in training is one node forward and one backward, and no matrix of scores is ever stored."""

from __future__ import annotations

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.support import pair

BATCH, HEADS, LENGTH, SIZE = 1, 4, 1024, 16
SCORES = BATCH * HEADS * LENGTH * LENGTH * 4  # bytes of one matrix of scores in fp32


class SelfAttention(nn.Module):
    def __init__(self, dropout: float, causal: bool = False) -> None:
        super().__init__()
        self.project = nn.Linear(HEADS * SIZE, 3 * HEADS * SIZE)
        self.dropout, self.causal = dropout, causal

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.project(x).view(batch, length, 3, HEADS, SIZE).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, mask, self.dropout if self.training else 0.0, self.causal)
        return y.transpose(1, 2).reshape(batch, length, width)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("causal", [False, True])
def test_memory_grows_with_the_length_not_its_square(dropout: float, causal: bool) -> None:
    model, _ = pair(SelfAttention(dropout, causal))
    x = torch.randn(BATCH, LENGTH, HEADS * SIZE, requires_grad=True)
    model(x).sum().backward()
    (session,) = model.report().sessions
    assert session.saved_bytes < SCORES / 4
    assert session.peak_bytes < SCORES / 2


@pytest.mark.parametrize("causal", [False, True])
def test_dropout_by_counter_keeps_the_mean_of_attention(causal: bool) -> None:
    model, eager = pair(SelfAttention(0.3, causal))
    eager.dropout = 0.0
    x = torch.randn(2, 40, HEADS * SIZE)
    with torch.no_grad():
        want = eager(x)
    got = torch.stack([model(x).detach() for _ in range(200)]).mean(0)
    # 200 draws: the mean's error is a fourteenth of one draw's.
    assert (got - want).abs().mean() < 0.1 * want.abs().mean()


def test_torch_dropout_is_eagers_through_attention() -> None:
    model, eager = pair(SelfAttention(0.3), dropout="torch")
    x = torch.randn(2, 40, HEADS * SIZE)
    torch.manual_seed(5)
    got = model(x)
    torch.manual_seed(5)
    torch.testing.assert_close(got, eager(x), rtol=1e-5, atol=1e-6)


def test_a_learned_bias_gets_its_gradient_without_the_probabilities_being_kept() -> None:
    model, eager = pair(SelfAttention(0.0))
    bias = torch.randn(HEADS, LENGTH, LENGTH)
    x = torch.randn(BATCH, LENGTH, HEADS * SIZE)
    grads = []
    for module in (model, eager):
        leaf = bias.clone().requires_grad_()
        module(x, leaf).square().sum().backward()
        grads.append((leaf.grad, module.project.weight.grad))
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-4)
    assert model.report().sessions[0].saved_bytes < SCORES + SCORES / 4, "the bias is kept, the probabilities are not"


def test_padding_masks_of_booleans() -> None:
    model, eager = pair(SelfAttention(0.0))
    x = torch.randn(3, 50, HEADS * SIZE)
    mask = torch.arange(50) < torch.tensor([50, 20, 1])[:, None, None, None]
    torch.testing.assert_close(model(x, mask), eager(x, mask), rtol=1e-5, atol=1e-5)
