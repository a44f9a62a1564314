"""`debug.plan`: what a step will run and hold, before it runs, against what it then ran and held."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper
from torch import nn

from ortmodule import InferenceSession, InvalidArgumentError, Options, ORTModule, OrtValue, debug
from tests.sessions.models import F, model_of


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm, self.other = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.dropout = heads, dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + nn.functional.dropout(self.down(nn.functional.gelu(self.up(self.other(x)))), self.dropout)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 64)
        self.blocks = nn.Sequential(Block(64), Block(64))
        self.head = nn.Linear(64, 100)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.blocks(self.embedding(tokens)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(32, 10),
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images).square().mean()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(32, 64, batch_first=True), nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0]).square().mean()


CASES = {
    "transformer": (Transformer, [lambda n: torch.randint(100, (n, 48))]),
    "convolutions": (Convolutions, [lambda n: torch.randn(n, 3, 32, 32)]),
    "recurrent": (Recurrent, [lambda n: torch.randn(n, 24, 32)]),
}


def measured(model: ORTModule) -> dict[str, int]:
    (session,) = [ready.session for ready in model._manager.transitions()]
    return session.statistics()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("order", ["default", "memory_efficient", "priority_based"])
def test_memory_is_known_before_the_first_run(name: str, order: str) -> None:
    make, (inputs,) = CASES[name]
    model = ORTModule(make(), options=Options(execution_order=order, fallback="error"))
    x = inputs(8)
    before = debug.plan(model, x).memory
    # Sizes of what kernels keep in a form of their own (attention, batch norm) are known to them alone.
    assert before["complete"] == (name == "recurrent")
    model(x).backward()
    after = measured(model)
    for key in ("peak_forward_bytes", "saved_bytes", "peak_backward_bytes"):
        assert before[key] == pytest.approx(after[key], rel=0.05), (key, before[key], after[key])


def test_orders_give_the_same_numbers() -> None:
    torch.manual_seed(0)
    module, x = Transformer(), torch.randint(100, (4, 16))
    gradients: dict[str, list[Any]] = {}
    for order in ("default", "priority_based", "memory_efficient"):
        model = ORTModule(module, options=Options(execution_order=order))
        for _ in range(2):
            torch.manual_seed(1)
            module.zero_grad()
            model(x).backward()
        gradients[order] = [p.grad.clone() for p in module.parameters()]
    for order in ("priority_based", "memory_efficient"):
        for a, b in zip(gradients["default"], gradients[order], strict=True):
            assert torch.equal(a, b), order


def test_the_plan_is_data() -> None:
    model = ORTModule(Transformer())
    x = torch.randint(100, (2, 16))
    plan = debug.plan(model, {"tokens": x})
    assert [half["name"] for half in plan.halves] == ["forward", "backward"]
    read = json.loads(plan.to_json())
    assert read == {"halves": plan.halves, "memory": plan.memory}
    steps = [step for half in plan.halves for step in half["steps"]]
    products = [step for step in steps if step["op"] == "ai.ortmodule::Linear"]
    assert products and all(step["flops"] > 0 and step["kind"] == "LaunchKernel" for step in products)
    assert all(v["bytes"] is not None for step in products for v in (*step["inputs"], *step["outputs"]))
    lives = plan.memory["blocks"]
    for i, one in enumerate(lives):  # no two that live at once overlap
        for other in lives[:i]:
            apart = one["end"] <= other["first"] or other["end"] <= one["first"]
            above = one["offset"] >= other["offset"] + other["bytes"] or other["offset"] >= one["offset"] + one["bytes"]
            assert apart or above, (one, other)
    assert plan.text in str(plan) and "plan forward" in plan.text
    with torch.no_grad():
        assert [half["name"] for half in debug.plan(model, x).halves] == ["forward"]


def test_a_plan_is_of_an_ortmodule_that_is_captured() -> None:
    with pytest.raises(InvalidArgumentError, match="takes an ORTModule"):
        debug.plan(Transformer(), torch.zeros(1, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
def test_memory_over_time_peaks_where_the_plan_does(name: str) -> None:
    make, (inputs,) = CASES[name]
    plan = debug.plan(ORTModule(make()), inputs(8))
    over_time = plan.memory_over_time()
    assert [s.step for s in over_time.steps] == list(range(sum(len(half["steps"]) for half in plan.halves)))
    for half in ("forward", "backward"):
        most = max(s.live_bytes for s in over_time.steps if s.half == half)
        assert most == plan.memory[f"peak_{half}_bytes"]
    assert over_time.peak is not None and over_time.peak.live_bytes == max(s.live_bytes for s in over_time.steps)
    made, freed = sum(s.made_bytes for s in over_time.steps), sum(s.freed_bytes for s in over_time.steps)
    assert made == freed == sum(block["bytes"] for block in plan.memory["blocks"])
    read = json.loads(over_time.to_json())
    assert read["complete"] == plan.memory["complete"] and len(read["steps"]) == len(over_time.steps)
    assert read["steps"][0] == dataclasses.asdict(over_time.steps[0])
    lines = str(over_time).splitlines()
    assert lines[0].startswith("peak ") and 2 <= len(lines) <= 43
    assert len(over_time.text(4).splitlines()) <= 7


def test_a_session_has_a_plan_for_what_it_is_fed_with() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    session = InferenceSession(
        model_of(nodes, {"x": (F, ["n", 3])}, {"y": (F, ["n", 4])}, {"w": np.ones((3, 4), np.float32)})
    )
    for rows, feed in ((2, np.ones((2, 3))), (5, torch.ones(5, 3)), (7, OrtValue.ortvalue_from_numpy(np.ones((7, 3))))):
        plan = debug.plan(session, {"x": feed})
        product = plan.halves[0]["steps"][0]
        assert product["flops"] == 2 * rows * 3 * 4 and product["bytes"] == 4 * (3 * rows + 12 + 4 * rows)
        assert plan.memory_over_time().steps[0].live_bytes == 16 * rows
    for feeds, answer in (
        ({}, "'x' is missing"),
        ({"y": 1}, "no input 'y'"),
        ({"x": np.ones((2, 4))}, r"should have shape \[n, 3\]"),
        (np.ones((2, 3)), "should be a mapping"),
    ):
        with pytest.raises(InvalidArgumentError, match=answer):
            debug.plan(session, feeds)
