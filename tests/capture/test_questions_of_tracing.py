"""A forward that asks whether it is traced: it goes the way that it goes in PyTorch, where that can be captured."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn as nn
from torch._dynamo.external_utils import is_compiling as bound_elsewhere
from torch.compiler import is_compiling as bound_early

from ortmodule import ORTModule
from ortmodule.capture import capture

from .parity import assert_same_training, operators
from .test_autograd_semantics import Module

QUESTIONS: dict[str, Callable[[], bool]] = {
    "is_compiling": lambda: torch.compiler.is_compiling(),
    "is_exporting": lambda: torch.compiler.is_exporting(),
    "is_dynamo_compiling": lambda: torch.compiler.is_dynamo_compiling(),
    "bound before": bound_early,
    "bound elsewhere": lambda: bound_elsewhere(),
    "torch._dynamo": lambda: torch._dynamo.is_compiling(),
    "torch.fx": lambda: torch.fx._symbolic_trace.is_fx_tracing(),
    "torch.fx, symbolic": lambda: torch.fx._symbolic_trace.is_fx_symbolic_tracing(),
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_the_way_is_that_of_pytorch(question: Callable[[], bool]) -> None:
    module = Module(lambda m, x: (m.linear(x).relu() if question() else m.linear(x).tanh()).sum())
    captured = capture(module, (torch.randn(4, 8),))
    assert "Tanh" in operators(captured) and "Relu" not in operators(captured)
    assert_same_training(captured, module, (torch.randn(4, 8),))


def test_what_cannot_be_captured_so_is_as_it_is_written_for_a_trace() -> None:
    def forward(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling() and bool((x != x).any()):
            raise ValueError("not a number")
        return m.linear(x).tanh().sum()

    module = Module(forward)
    captured = capture(module, (torch.randn(4, 8),))
    assert "Tanh" in operators(captured) and not captured.branches
    assert_same_training(captured, module, (torch.randn(4, 8),))


def test_the_reason_is_that_of_the_way_in_pytorch_alone_where_nothing_was_asked() -> None:
    traces = []

    def forward(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        traces.append(0)
        return m.linear(x).sum() * float(x.sum())

    with pytest.raises(Exception, match="data"):
        capture(Module(forward), (torch.randn(4, 8),))
    assert len(traces) == 1


def test_a_module_trains_as_in_pytorch_and_the_answer_comes_back() -> None:
    def forward(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (m.linear(x) * (0.5 if torch.compiler.is_compiling() else 2.0)).sum()

    module = Module(forward)
    eager, model = copy.deepcopy(module), ORTModule(module)
    for rows in (3, 5, 4):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(model(x), eager(x))
    assert not model.report().fallback_reason
    assert not torch.compiler.is_compiling()
    assert bound_early.__code__.co_name == "is_compiling"
