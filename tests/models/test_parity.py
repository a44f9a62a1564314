"""Every model family trains as in eager PyTorch: loss, gradients and buffers, at three sizes, without a fallback."""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Any

import pytest
import torch

from ortmodule import Options, ORTModule
from ortmodule.report import Report
from tests import zoo

SIZES = ((3, 16), (5, 23), (1, 40))
WITH_DROPOUT = ("mlp", "lstm", "bert", "gpt2", "llama", "t5", "vit", "mixtral", "whisper")


@dataclasses.dataclass
class Step:
    """One training step of both modules at one size."""

    size: tuple[int, int]
    loss: torch.Tensor
    gradients: dict[str, torch.Tensor | None]
    buffers: dict[str, torch.Tensor]
    random_state: torch.Tensor


def step(module: torch.nn.Module, inputs: dict[str, torch.Tensor], size: tuple[int, int]) -> Step:
    module.zero_grad()
    torch.manual_seed(11)
    loss = zoo.loss_of(module(**inputs))
    state = torch.get_rng_state()
    loss.backward()
    gradients = {n: None if p.grad is None else p.grad.clone() for n, p in module.named_parameters()}
    buffers = {n: b.clone() for n, b in module.named_buffers()}
    return Step(size, loss.detach(), gradients, buffers, state)


@dataclasses.dataclass
class Outcome:
    pairs: list[tuple[Step, Step]]
    report: Report


@functools.cache
def outcome(name: str, dropout: float = 0.0) -> Outcome:
    """One step of ORTModule and of eager at each size; buffers go on from size to size."""
    module = zoo.build(name, dropout=dropout).module
    eager = copy.deepcopy(module)
    model = ORTModule(module, options=Options(dropout="torch", fallback="error"))
    pairs = []
    for size in SIZES:
        inputs = zoo.build(name, *size).inputs
        pairs.append((step(model, inputs, size), step(eager, inputs, size)))
    return Outcome(pairs, model.report())


def assert_same(got: Step, expected: Step) -> None:
    where = f"at size {got.size}"
    torch.testing.assert_close(got.loss, expected.loss, rtol=1e-5, atol=0, msg=lambda m: f"loss {where}: {m}")
    for name, wanted in expected.gradients.items():
        mine = got.gradients[name]
        assert (mine is None) == (wanted is None), f"gradient of {name} {where} is None in one of the two only"
        if mine is not None:
            text = f"gradient of {name} {where}"
            torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5, msg=lambda m, t=text: f"{t}: {m}")
    for name, wanted in expected.buffers.items():
        text = f"buffer {name} {where}"
        torch.testing.assert_close(got.buffers[name], wanted, rtol=1e-5, atol=1e-6, msg=lambda m, t=text: f"{t}: {m}")


@pytest.mark.parametrize("name", zoo.ALL)
class TestFamily:
    def test_loss_gradients_and_buffers_equal_eager(self, name: str) -> None:
        for got, expected in outcome(name).pairs:
            assert_same(got, expected)

    def test_runs_in_the_engine_with_at_most_two_exports(self, name: str) -> None:
        report = outcome(name).report
        assert report.fallback == "none"
        assert all(s.runs > 0 for s in report.sessions)
        if name in zoo.STATIC_SEQUENCE:
            assert any("size" in sentence for e in report.exports for sentence in e.specialized), report
        else:
            assert len(report.exports) <= 2, report

    def test_no_operator_is_left_to_aten(self, name: str) -> None:
        assert outcome(name).report.aten_nodes == {}


@pytest.mark.parametrize("name", WITH_DROPOUT)
def test_torch_dropout_draws_what_eager_draws(name: str) -> None:
    for got, expected in outcome(name, 0.1).pairs:
        assert torch.equal(got.random_state, expected.random_state), "the generator went on by another amount"
        assert_same(got, expected)
    plain = outcome(name, 0.0).pairs[0][0]
    assert not torch.equal(got.loss, plain.loss), "no dropout took place"


def tensors_of(result: Any) -> list[torch.Tensor]:
    values = [result] if isinstance(result, torch.Tensor) else list(result.values())
    return [v for v in values if isinstance(v, torch.Tensor)]


@pytest.mark.parametrize("name", zoo.ALL)
def test_evaluation_runs_a_forward_only_graph(name: str) -> None:
    sample = zoo.build(name, dropout=0.1)
    eager = copy.deepcopy(sample.module).eval()
    model = ORTModule(sample.module, options=Options(fallback="error")).eval()
    with torch.no_grad():
        got, expected = model(**sample.inputs), eager(**sample.inputs)
    assert type(got) is type(expected)
    for mine, wanted in zip(tensors_of(got), tensors_of(expected), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)
        assert not mine.requires_grad
    (session,) = model.report().sessions
    assert (session.mode, session.backward_nodes, session.gradients) == ("inference", 0, 0)
