"""Gradients that are differentiated again (create_graph=True): right from the first call, in the engine if it can."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn as nn

from ortmodule import Options, ORTModule
from ortmodule.errors import UnsupportedError
from tests.support import Lambda, assert_same_gradients, pair

Step = Callable[[nn.Module], torch.Tensor]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*create_graph=True.*")
        yield


def smooth(*between: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), *between, nn.Tanh(), nn.Linear(8, 1))


def penalty(module: nn.Module) -> torch.Tensor:
    """A critic's loss with a penalty on the gradient of its input."""
    torch.manual_seed(1)
    real, mixed = torch.randn(5, 4), torch.randn(5, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(module(mixed).sum(), mixed, create_graph=True)
    return module(real).mean() + (slope.norm(dim=1) - 1).square().mean()


def equation(module: nn.Module) -> torch.Tensor:
    """The residual of a differential equation; the network's input is a temporary that nobody else holds."""
    torch.manual_seed(1)
    x, t = (torch.rand(6, 2, requires_grad=True) for _ in range(2))
    u = module(torch.cat([x, t], 1))
    du_dx, du_dt = torch.autograd.grad(u.sum(), [x, t], create_graph=True)
    (bend,) = torch.autograd.grad(du_dx.sum(), x, create_graph=True)
    return (du_dt.sum(1) - bend.sum(1)).square().mean()


def curvature(module: nn.Module) -> torch.Tensor:
    """A product of the Hessian of the parameters, which no input's gradient is needed for."""
    torch.manual_seed(1)
    x = torch.randn(5, 4)
    loss = module(x).square().mean()
    slopes = torch.autograd.grad(loss, list(module.parameters()), create_graph=True)
    return sum((slope * torch.ones_like(slope)).sum() for slope in slopes)  # type: ignore[return-value]


@pytest.mark.parametrize("step", [penalty, equation, curvature])
def test_training_on_second_derivatives_is_as_in_eager(step: Step) -> None:
    model, eager = pair(smooth(), fallback="eager")
    optimizers = [torch.optim.SGD(module.parameters(), 0.1) for module in (model, eager)]
    for _ in range(3):
        losses = []
        for module, optimizer in zip((model, eager), optimizers, strict=True):
            optimizer.zero_grad()
            loss = step(module)
            loss.backward()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses)
        assert_same_gradients(model, eager)
        for optimizer in optimizers:
            optimizer.step()


def test_backward_with_create_graph_accumulates_gradients_with_history() -> None:
    model, eager = pair(smooth(), fallback="eager")
    for module in (model, eager):
        torch.manual_seed(1)
        module(torch.randn(3, 4)).square().sum().backward(create_graph=True)
        loss = sum(p.grad.square().sum() for p in module.parameters())  # type: ignore[union-attr]
        second = torch.autograd.grad(loss, list(module.parameters()))
        for p, grad in zip(module.parameters(), second, strict=True):
            p.grad = grad
    assert_same_gradients(model, eager)


def test_a_hessian_is_that_of_eager() -> None:
    model, eager = pair(smooth(), fallback="eager")
    x = torch.randn(4)
    found = [torch.autograd.functional.hessian(lambda v, m=m: m(v[None]).sum(), x) for m in (model, eager)]
    torch.testing.assert_close(*found)


def test_the_first_call_says_why_and_later_ones_of_its_kind_alone_run_in_pytorch() -> None:
    model, _ = pair(smooth(nn.Dropout(0.2)), fallback="eager")
    with pytest.warns(UserWarning, match=r"calls of Sequential run in PyTorch.*create_graph=True"):
        penalty(model)
    report = model.report()
    assert report.fallback == "whole" and "create_graph=True" in (report.fallback_reason or "")
    runs = [session.runs for session in report.sessions]
    penalty(model)
    after = [session.runs for session in model.report().sessions]
    assert sum(after) - sum(runs) == 1  # the call whose input wants no gradient
    with torch.no_grad():
        model(torch.randn(5, 4, requires_grad=True))


@pytest.mark.parametrize("step", [penalty, equation, curvature])
def test_what_has_second_derivatives_stays_in_the_engine(step: Step) -> None:
    model, _ = pair(smooth(nn.LayerNorm(8)), fallback="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            step(model).backward()
    report = model.report()
    assert report.fallback == "none" and len(report.exports) == 1
    assert sum(session.runs for session in report.sessions) >= 3


class Detaching(nn.Module):
    """A gate that no gradient reaches, and a scale that is measured without one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gate = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = self.layer.weight.norm()
        return torch.tanh(self.layer(x)) * self.gate(x).detach() * scale


@pytest.mark.parametrize("layer", [Detaching, lambda: nn.BatchNorm1d(4)], ids=["detach", "batch norm"])
def test_what_is_meant_to_have_no_gradient_has_none_of_second_order(layer: Callable[[], nn.Module]) -> None:
    model, eager = pair(nn.Sequential(nn.Linear(4, 4), layer(), nn.Tanh(), nn.Linear(4, 2)), fallback="eager")
    for _ in range(2):
        for module in (model, eager):
            module.zero_grad()
            penalty(module).backward()
        assert_same_gradients(model, eager)
    assert model.report().fallback == "none"


def test_functional_calls_are_differentiated_through_their_parameters() -> None:
    model, eager = pair(smooth(), fallback="eager")
    x = torch.randn(5, 4)
    for module in (model, eager):
        fast = dict(module.named_parameters())
        for _ in range(2):
            loss = torch.func.functional_call(module, fast, x).square().mean()
            slopes = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            fast = {name: p - 0.1 * slope for (name, p), slope in zip(fast.items(), slopes, strict=True)}
        torch.func.functional_call(module, fast, x).square().mean().backward()
    assert_same_gradients(model, eager)
    assert model.report().fallback == "none"


def test_a_parameter_that_changes_between_forward_and_gradient_is_no_wrong_number() -> None:
    """Its forward is computed again: with the values that it saw, or not at all."""
    model, _ = pair(smooth(), fallback="eager")
    penalty(model)
    for _ in range(2):  # as a later call of its kind, and as the first one
        x = torch.randn(5, 4, requires_grad=True)
        y = model(x)
        with torch.no_grad():
            model[0].bias.add_(1.0)
        with pytest.raises((UnsupportedError, RuntimeError), match="gives other gradients|modified by an inplace"):
            torch.autograd.grad(y.sum(), x, create_graph=True)
        model, _ = pair(smooth(), fallback="eager")


def test_buffers_are_updated_once_a_call() -> None:
    model, eager = pair(smooth(nn.BatchNorm1d(8)), fallback="eager")
    for _ in range(2):
        for module in (model, eager):
            module.zero_grad()
            penalty(module).backward()
        assert_same_gradients(model, eager)
        for (name, mine), (_, theirs) in zip(model.named_buffers(), eager.named_buffers(), strict=True):
            torch.testing.assert_close(mine, theirs, msg=lambda text, name=name: f"{name}: {text}")


def test_autocast_is_that_of_the_forward() -> None:
    model, eager = pair(smooth(), fallback="eager")
    for module in (model, eager):
        torch.manual_seed(1)
        x = torch.randn(5, 4, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            loss = module(x).float().sum()
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        slope.square().sum().backward()
    assert_same_gradients(model, eager, rtol=0.05, atol=0.02)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads, self.drop, self.last = nn.Linear(8, 24), nn.Dropout(0.3), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.heads(x).view(2, 10, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.25)
        return self.last(self.drop(y.transpose(1, 2).reshape(2, 10, 8)))


class AttendingByHand(Attending):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.heads(x).view(2, 10, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = self.drop((q @ k.transpose(-1, -2)).softmax(-1)) @ v
        return self.last(self.drop(y.transpose(1, 2).reshape(2, 10, 8)))


class DroppingInManyWays(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.plain, self.channels = nn.Linear(8, 8), nn.Dropout(0.3), nn.Dropout1d(0.5)
        self.alpha, self.inplace = nn.AlphaDropout(0.3), nn.Dropout(0.3, inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.alpha(self.channels(self.plain(self.layer(x)).tanh()))
        return self.plain(y) + torch.rand_like(x) * self.inplace(x * 2).transpose(0, 1).transpose(0, 1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(8, 8, 2, dropout=0.5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)[0]


DROPPING = [
    Attending, AttendingByHand, DroppingInManyWays, Recurrent, lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.2)
]  # fmt: skip


@pytest.mark.parametrize("dropout", ["fast", "torch"])
@pytest.mark.parametrize("make", DROPPING)
def test_a_forward_that_drops_is_repeated_with_its_masks(make: Callable[[], nn.Module], dropout: str) -> None:
    torch.manual_seed(3)
    model = ORTModule(make(), options=Options(dropout=dropout))
    x = torch.randn(2, 10, 8, requires_grad=True)
    for _ in range(3):  # the steady call as well as the first one
        model._manager._higher_order.clear()
        y = model(x)
        loss = (y * torch.arange(1.0, y.shape[-1] + 1)).square().sum()
        (engine,) = torch.autograd.grad(loss, x, retain_graph=True)
        state = torch.get_rng_state()
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        assert torch.equal(torch.get_rng_state(), state)
        # A rounding is one of the sums that it comes from: some 1e-7 of the largest gradient.
        torch.testing.assert_close(slope, engine, rtol=1e-4, atol=1e-6 * float(engine.abs().max()))
        slope.square().sum().backward()


def test_a_hook_hears_once_of_a_gradient_that_is_differentiated_again() -> None:
    heard: list[list[torch.Tensor]] = []
    for module in pair(smooth(nn.Dropout(0.5)), fallback="eager", dropout="torch"):
        torch.manual_seed(1)
        heard.append([])
        leaf = torch.randn(5, 4, requires_grad=True)
        x = leaf * 1
        for tensor in (x, *module.parameters()):
            tensor.register_hook(lambda g, log=heard[-1]: log.append(g.detach()) or g * 2)
        x.retain_grad()
        module(x).square().sum().backward(create_graph=True)
        assert x.grad is not None
        heard[-1] += [x.grad, leaf.grad, *(p.grad for p in module.parameters())]
    torch.testing.assert_close(*heard)


def test_a_parameter_that_changed_since_the_forward_is_refused() -> None:
    model, _ = pair(smooth(), fallback="eager")
    x = torch.randn(5, 4, requires_grad=True)
    loss = model(x).sum()
    model.get_parameter("0.bias").data.add_(3)  # unseen by autograd
    with pytest.raises(UnsupportedError, match="a value was changed after it"):
        torch.autograd.grad(loss, x, create_graph=True)


def test_an_input_that_is_gone_is_named() -> None:
    model = ORTModule(Lambda(lambda m, x: m.linear(m.table) + x.sum()))
    loss = model(torch.randn(3, 4)).sum()
    gc.collect()  # of what the capture leaves
    with pytest.raises(UnsupportedError, match="is gone"):
        torch.autograd.grad(loss, list(model.parameters()), create_graph=True)


def test_without_fallback_the_error_says_what_to_call() -> None:
    model = ORTModule(smooth(), options=Options(fallback="error"))
    with pytest.raises(RuntimeError, match=r"cannot be differentiated again.*model\.module"):
        penalty(model)


def test_parts_of_a_module_that_falls_back_are_differentiated_again() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.calls = smooth(), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.net(x)

    eager = Counts()
    model = ORTModule(copy.deepcopy(eager))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            for module in (model, eager):
                module.zero_grad()
                penalty(module).backward()
            assert_same_gradients(model, eager)
