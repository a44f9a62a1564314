"""Small differences do not grow: an optimizer over an ORTModule follows eager's loss curve."""

from __future__ import annotations

import copy

import torch

from ortmodule import Options, ORTModule
from tests import zoo


def losses(model: torch.nn.Module, batches: list[dict[str, torch.Tensor]]) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    out = []
    for inputs in batches:
        loss = zoo.loss_of(model(**inputs))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        out.append(loss.item())
    return out


def test_gpt2_follows_eager_for_twenty_steps_of_adamw() -> None:
    module = zoo.build("gpt2").module
    eager = copy.deepcopy(module)
    batches = [zoo.build("gpt2", *size).inputs for size in ((4, 16), (4, 24))] * 10
    got = losses(ORTModule(module, options=Options(fallback="error")), batches)
    expected = losses(eager, batches)
    assert max(abs(a - b) for a, b in zip(got, expected, strict=True)) < 1e-4
    assert expected[-1] < expected[0] - 0.5, "nothing was learned, so the comparison says nothing"
