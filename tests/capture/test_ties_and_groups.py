"""Mixtures of experts: a router that starts at zero picks by torch's choice among ties, and the experts' products over
runs of rows need no ATen node.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from ortmodule import Options, ORTModule


class Experts(nn.Module):
    """Top-2 of 4 experts, grouped by a sort as models for several devices do it."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4, bias=False)
        nn.init.zeros_(self.router.weight)
        self.up = nn.Parameter(torch.randn(4, 8, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score, expert = torch.topk(self.router(x).sigmoid(), 2, dim=-1)
        order, where = torch.sort(expert.reshape(-1))
        tokens = x[where // 2]
        counts = torch.histc(order.float(), bins=4, min=0, max=3)
        member = torch.arange(4) == order[:, None]
        y = torch.einsum("te,tef->tf", member.to(x.dtype), torch.einsum("ti,eif->tef", tokens, self.up))
        back = torch.empty_like(where)
        back[where] = torch.arange(where.shape[0])
        y = (y * score.reshape(-1)[where, None])[back]
        return y.view(-1, 2, 6).sum(1).pow(2).mean() + counts.mean() * 0


def test_experts_are_chosen_as_in_eager_when_all_scores_are_equal() -> None:
    torch.manual_seed(0)
    module = Experts()
    eager = copy.deepcopy(module)
    model = ORTModule(module, options=Options(fallback="error"))
    for tokens in (6, 9, 40):
        x = torch.randn(tokens, 8)
        module.zero_grad()
        eager.zero_grad()
        loss, expected = model(x), eager(x)
        loss.backward()
        expected.backward()
        torch.testing.assert_close(loss, expected)
        for p, q in zip(module.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
    assert model.report().aten_nodes == {}
    assert len(model.report().exports) == 2
