"""Models of small tensors: views made without the dispatcher, bias gradients, and memory that outlives its run.

Not here: what a step costs (benchmarks/overhead.py), the arena of large tensors (test_step_memory.py).
"""

from __future__ import annotations

import copy
import gc
import io
import threading
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

from ortmodule import ORTModule


class Function(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x * self.scale)


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transpose_reshape": lambda x: x.transpose(1, 2).reshape(x.shape[0], -1),
    "permute": lambda x: x.permute(2, 0, 1) * 2,
    "unsqueeze_many": lambda x: x[None, :, None].unsqueeze(-1) * 3,
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1).exp(),
    "split": lambda x: torch.cat([part.sin() for part in x.transpose(0, 2).split((1, 3), dim=0)], 0),
    "unbind_stack": lambda x: torch.stack([row.tanh() for row in x.unbind(1)], 2),
    "view_minus_one": lambda x: x.reshape(2, -1, 1, 4).flatten(1) * 2,
    "empty": lambda x: x[:0].reshape(0, 12).sum() + x.sum(),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("contiguous", [True, False])
def test_views_are_those_of_eager(name: str, contiguous: bool) -> None:
    base = torch.randn(4, 3, 4)
    given = base if contiguous else base.transpose(0, 2)
    module = Function(VIEWS[name])
    ours = ORTModule(Function(VIEWS[name]))
    for _ in range(2):
        x, y = given.clone().requires_grad_(), given.clone().requires_grad_()
        expected, got = module(x), ours(y)
        assert ours.report().fallback == "none"
        assert got.shape == expected.shape
        torch.testing.assert_close(got, expected)
        expected.pow(2).sum().backward()
        got.pow(2).sum().backward()
        torch.testing.assert_close(y.grad, x.grad)
    torch.testing.assert_close(ours.scale.grad, module.scale.grad)


@pytest.mark.parametrize("rows", [1, 2, 3, 6, 16, 17, 100, 300, 3000])
@pytest.mark.parametrize("features", [1, 2, 7, 16, 31, 40, 100])
def test_a_bias_gradient_is_that_of_eager_to_the_bit(rows: int, features: int) -> None:
    torch.manual_seed(0)
    module = nn.Linear(3, features)
    ours = ORTModule(module)
    x, weights = torch.randn(rows, 3), torch.randn(rows, features)
    (ours(x) * weights).sum().backward()
    assert module.bias.grad is not None
    assert torch.equal(module.bias.grad, weights.sum(0))


def test_small_results_and_gradients_outlive_session_and_thread() -> None:
    kept: list[torch.Tensor] = []

    def work() -> None:
        torch.manual_seed(1)
        module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        ours = ORTModule(module)
        for _ in range(3):
            y = ours(torch.ones(5, 4))
            y.sum().backward()
            kept.append(y.detach())
            kept.extend(p.grad for p in module.parameters() if p.grad is not None)
            for p in module.parameters():
                p.grad = None

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    before = [t.clone() for t in kept]
    gc.collect()
    later = ORTModule(nn.Linear(4, 4))
    for _ in range(20):
        later(torch.randn(5, 4)).sum().backward()
    assert len(kept) == 30
    for now, then in zip(kept, before, strict=True):
        assert torch.equal(now, then)


def small_net() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2))


def test_gradients_of_small_layers_are_ordinary_tensors() -> None:
    module, eager = small_net(), small_net()
    ours, x = ORTModule(module), torch.randn(5, 4)
    for _ in range(4):
        for runner in (ours, eager):
            runner.zero_grad()
            runner(x).sum().backward()
        for p, q in zip(module.parameters(), eager.parameters(), strict=True):
            gradient, expected = p.grad, q.grad
            assert gradient is not None and expected is not None
            assert type(gradient) is torch.Tensor and gradient._version == 0 and gradient._base is None
            assert gradient.untyped_storage().nbytes() == expected.untyped_storage().nbytes()
            torch.testing.assert_close(gradient, expected)
            stored = io.BytesIO()
            torch.save(gradient, stored)
            stored.seek(0)
            for other in (copy.deepcopy(gradient), torch.load(stored), gradient.detach(), gradient.data):
                assert torch.equal(other, gradient)
            weak = weakref.ref(gradient)
            assert weak() is gradient
            assert torch.equal(gradient.clone().share_memory_(), gradient)


def test_what_a_step_gave_away_is_not_written_by_the_next() -> None:
    class TwoOutputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            hidden = self.first(x)
            return hidden, self.second(hidden)

    ours = ORTModule(TwoOutputs())
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for step in range(10):
        hidden, y = ours(torch.full((5, 4), float(step)))
        y.sum().backward()
        assert hidden._version == 0 and y._version == 0
        for t in (hidden, y, *(p.grad for p in ours.parameters() if p.grad is not None)):
            kept.append((t, t.detach().clone()))
        with torch.no_grad():
            for p in ours.parameters():
                p.grad = None
                p.add_(0.1)
    for now, then in kept:
        assert torch.equal(now, then)


def test_results_in_inference_mode_are_inference_tensors() -> None:
    ours = ORTModule(small_net().eval())
    x = torch.randn(5, 4)
    for _ in range(3):
        with torch.no_grad():
            assert not ours(x).is_inference()
        with torch.inference_mode():
            assert ours(x).is_inference()
    ours(x).sum().backward()
