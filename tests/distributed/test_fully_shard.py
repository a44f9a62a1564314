"""torch's fully_shard around and inside an ORTModule: losses, gradients and state dicts are those of eager under it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from ortmodule import ORTModule
from tests.distributed.models import GPT, batch
from tests.distributed.spawn import on_ranks, once


def eager(model: GPT) -> nn.Module:
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def around_blocks(model: GPT) -> nn.Module:
    for i, block in enumerate(model.blocks):
        model.blocks[i] = fully_shard(ORTModule(block))
    return fully_shard(model)


def around_the_model(model: GPT) -> nn.Module:
    return fully_shard(ORTModule(model))


def inside(model: GPT) -> nn.Module:
    return ORTModule(eager(model))


WAYS: dict[str, Callable[[GPT], nn.Module]] = {
    "around blocks": around_blocks, "around the model": around_the_model, "inside": inside,
}  # fmt: skip


def trained(rank: int, model: Any) -> tuple[list[float], dict[str, torch.Tensor], list[str]]:
    """Losses of six steps, two micro-batches in each of the last ones; parameters; what runs in PyTorch and why."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-5)
    losses = []
    for step in range(6):
        for part in range(1 if step < 4 else 2):
            if isinstance(model, FSDPModule):
                model.set_requires_gradient_sync(step < 4 or part == 1)
            loss = model(batch(step, rank, part))
            loss.backward()
            losses.append(loss.item())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    whole = {name: value.full_tensor() for name, value in model.state_dict().items()}
    parts = [m for m in (model, *getattr(model, "blocks", ())) if type(m) is ORTModule]
    return losses, whole, [m.report().fallback_reason for m in parts]


def check(rank: int) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    model = GPT(1)
    return {name: trained(rank, shard(copy.deepcopy(model))) for name, shard in {"eager": eager, **WAYS}.items()}


@pytest.mark.parametrize("way", WAYS)
def test_training_is_that_of_eager(way: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    for found in once(tmp_path_factory, "fully-shard", lambda: on_ranks(2, check)):
        losses, parameters, reasons = found[way]
        expected, those, _ = found["eager"]
        assert losses == pytest.approx(expected, rel=1e-5)
        assert parameters.keys() == those.keys()
        for name, value in parameters.items():
            torch.testing.assert_close(value, those[name], rtol=1e-4, atol=1e-6, msg=name)
        assert reasons
        for reason in reasons:
            assert "DTensor" in reason if way == "inside" else reason is None
