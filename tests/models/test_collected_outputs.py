"""What transformers collects by hooks that it hangs on its layers at the first call that asks for it: one graph."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from ortmodule import Options, ORTModule
from tests import zoo
from tests.support import assert_same_gradients

HIDDEN, ATTENTIONS = {"output_hidden_states": True}, {"output_attentions": True}
CALLS: list[dict[str, bool]] = [{}, HIDDEN, HIDDEN, {**HIDDEN, **ATTENTIONS}, HIDDEN, {}]


def tensors(result: Any) -> list[torch.Tensor]:
    values = [x for held in result.values() for x in (held if isinstance(held, (tuple, list)) else [held])]
    return [x for x in values if isinstance(x, torch.Tensor)]


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_hidden_states_and_attentions_are_results_of_one_graph(name: str) -> None:
    module = zoo.build(name, dropout=0.0).module
    module.config._attn_implementation = "eager"  # the others give no attentions
    eager = copy.deepcopy(module)
    model = ORTModule(module, options=Options(fallback="error"))
    for flags in CALLS:
        inputs = {**zoo.build(name, 2, 9).inputs, **flags}
        ours, theirs = model(**inputs), eager(**inputs)
        assert list(ours.keys()) == list(theirs.keys())
        assert [t.shape for t in tensors(ours)] == [t.shape for t in tensors(theirs)]
        torch.testing.assert_close(tensors(ours), tensors(theirs), rtol=1e-4, atol=1e-4)
        for one, result in ((model, ours), (eager, theirs)):
            one.zero_grad()
            sum(t.float().mean() for t in tensors(result) if t.requires_grad).backward()  # type: ignore[union-attr]
        assert_same_gradients(model, eager, rtol=1e-3, atol=1e-4)
    for one, other in zip(model.module.modules(), eager.modules(), strict=True):
        assert len(one._forward_hooks) == len(other._forward_hooks)
    assert model.report().fallback == "none"
