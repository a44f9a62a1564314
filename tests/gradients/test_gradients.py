"""The gradients of a step: who gets one, who gets none, how often backward may run, and through which doors."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from ortmodule import ORTModule
from tests.support import Lambda, assert_same_gradients, exports, mlp, pair


def loss_of(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x).square().mean()


def test_frozen_parameters_get_no_gradient_and_no_gradient_nodes() -> None:
    x = torch.randn(5, 4)
    full, _ = pair(mlp())
    loss_of(full, x).backward()
    model, eager = pair(mlp().requires_grad_(False))
    for module in (model, eager):
        module.get_parameter("2.bias").requires_grad_(True)
        loss_of(module, x).backward()
    assert_same_gradients(model, eager)
    assert [n for n, p in model.named_parameters() if p.grad is not None] == ["2.bias"]
    (frozen,), (whole,) = model.report().sessions, full.report().sessions
    assert (whole.gradients, frozen.gradients) == (4, 1)
    assert frozen.backward_nodes < whole.backward_nodes
    assert frozen.saved_bytes < whole.saved_bytes


def test_a_module_without_any_trainable_parameter_runs_forward_only() -> None:
    model, eager = pair(mlp().requires_grad_(False))
    x = torch.randn(5, 4)
    got = model(x)
    torch.testing.assert_close(got, eager(x))
    assert not got.requires_grad
    assert model.report().sessions[0].backward_nodes == 0


def test_an_unfrozen_parameter_gets_its_gradient_without_a_new_export() -> None:
    model, eager = pair(mlp())
    x = torch.randn(5, 4)
    for trainable in (False, True, False, True):
        for module in (model, eager):
            module.get_submodule("0").requires_grad_(trainable)
            module.zero_grad()
            loss_of(module, x).backward()
        assert_same_gradients(model, eager)
    assert exports(model) == 1
    assert len(model.report().sessions) == 2


def tied_forward(m: Lambda, ids: torch.Tensor) -> torch.Tensor:
    return F.linear(m.linear(F.embedding(ids, m.linear.weight)), m.linear.weight).square().mean()


def test_tied_weights_get_one_summed_gradient() -> None:
    model, eager = pair(Lambda(tied_forward))
    for module in (model, eager):
        module(torch.tensor([0, 2, 2, 3])).backward()
    assert_same_gradients(model, eager)


def test_a_parameter_under_two_names_is_one_parameter() -> None:
    model, eager = pair(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)))
    for module in (model, eager):
        module.get_submodule("2").weight = module.get_parameter("0.weight")
        loss_of(module, torch.ones(3, 4)).backward()
    assert len(list(model.parameters())) == 3
    assert_same_gradients(model, eager)


def test_two_forwards_before_two_backwards() -> None:
    model, eager = pair(mlp())
    first, second = torch.randn(5, 4), torch.randn(5, 4)
    for module in (model, eager):
        a, b = loss_of(module, first), loss_of(module, second)
        b.backward()
        a.backward()
    assert_same_gradients(model, eager)


def test_a_sum_of_two_calls_goes_backward_once() -> None:
    model, eager = pair(mlp())
    for module in (model, eager):
        (loss_of(module, torch.ones(5, 4)) + 3 * loss_of(module, torch.ones(5, 4) * 2)).backward()
    assert_same_gradients(model, eager)


def test_a_parameter_that_the_loss_also_reads_directly_gets_both_gradients() -> None:
    model, eager = pair(mlp())
    for module in (model, eager):
        penalty = sum(p.square().sum() for p in module.parameters())
        (loss_of(module, torch.ones(5, 4)) + 0.1 * penalty).backward()
    assert_same_gradients(model, eager)


def test_a_parameter_that_only_one_penalty_reads_gets_both_gradients() -> None:
    model, eager = pair(mlp())
    for module in (model, eager):
        (loss_of(module, torch.ones(5, 4)) + module.get_parameter("2.weight").abs().sum()).backward()
    assert_same_gradients(model, eager)


def test_a_call_on_its_own_output_chains() -> None:
    model, eager = pair(nn.Linear(4, 4))
    for module in (model, eager):
        loss_of(module, module(module(torch.ones(5, 4)))).backward()
    assert_same_gradients(model, eager)


def test_a_second_backward_raises_what_eager_raises() -> None:
    texts = []
    for module in pair(mlp()):
        loss = loss_of(module, torch.randn(5, 4))
        loss.backward()
        with pytest.raises(RuntimeError) as caught:
            loss.backward()
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_the_call_itself_refuses_a_second_backward_as_eager_does() -> None:
    texts = []
    for module in pair(mlp()):
        out = module(torch.randn(5, 4))
        out.backward(torch.ones_like(out))
        with pytest.raises(RuntimeError) as caught:
            out.backward(torch.ones_like(out))
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_retain_graph_allows_a_second_backward() -> None:
    model, eager = pair(mlp())
    x = torch.randn(5, 4)
    for module in (model, eager):
        loss = loss_of(module, x)
        loss.backward(retain_graph=True)
        loss.backward()
    assert_same_gradients(model, eager)


@pytest.mark.parametrize("change", ["parameter", "input"])
def test_a_tensor_changed_in_place_before_backward_is_refused(change: str) -> None:
    for module in pair(mlp()):
        x = torch.randn(5, 4)
        loss = loss_of(module, x)
        with torch.no_grad():
            (x if change == "input" else module.get_parameter("2.weight")).add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_step_between_forward_and_backward_of_another_call_is_refused() -> None:
    model, _ = pair(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    early, late = loss_of(model, torch.ones(5, 4)), loss_of(model, torch.ones(5, 4))
    late.backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        early.backward()


def test_a_changed_parameter_that_backward_does_not_read_is_allowed() -> None:
    model, eager = pair(mlp())
    for module in (model, eager):
        loss = loss_of(module, torch.ones(5, 4))
        with torch.no_grad():
            module.get_parameter("0.weight").add_(1)  # no input of the first layer wants a gradient
        loss.backward()
    assert_same_gradients(model, eager)


def test_autograd_grad_returns_gradients_and_leaves_grad_alone() -> None:
    results = []
    model, eager = pair(mlp())
    x = torch.randn(5, 4, requires_grad=True)
    for module in (model, eager):
        results.append(torch.autograd.grad(loss_of(module, x), [x, *module.parameters()]))
        assert x.grad is None and all(p.grad is None for p in module.parameters())
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


def test_autograd_grad_of_one_parameter() -> None:
    model, eager = pair(mlp())
    x = torch.randn(5, 4)
    got, expected = (torch.autograd.grad(loss_of(m, x), [m.get_parameter("0.bias")])[0] for m in (model, eager))
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("kept", [False, True])
def test_many_directions_at_once_are_taken_one_after_another(kept: bool) -> None:
    model, eager = pair(mlp())
    x = torch.randn(5, 4)
    found = []
    for module in (model, eager):
        y = module(x)
        wanted = [module.get_parameter("0.weight"), module.get_parameter("2.bias")]
        directions = torch.eye(15).view(15, 5, 3)
        kind = {"retain_graph": kept}
        found.append(list(torch.autograd.grad(y, wanted, directions, is_grads_batched=True, **kind)))
        if kept:
            found[-1] += torch.func.vmap(lambda v, y=y, w=wanted: torch.autograd.grad(y, w, v))(directions)
        else:
            with pytest.raises(RuntimeError, match="a second time"):
                y.sum().backward()
        jacobian = torch.autograd.functional.jacobian(lambda x, m=module: m(x).sum(0), x, vectorize=True)
        found[-1].append(jacobian)
    torch.testing.assert_close(*found)


def test_backward_with_inputs_touches_only_these() -> None:
    model, eager = pair(mlp())
    for module in (model, eager):
        loss_of(module, torch.ones(5, 4)).backward(inputs=[module.get_parameter("0.weight")])
    assert_same_gradients(model, eager)
    assert model.get_parameter("2.weight").grad is None


def test_an_input_that_requires_grad_gets_its_gradient() -> None:
    x = torch.randn(5, 4)
    gradients = []
    for module in pair(mlp()):
        leaf = x.clone().requires_grad_()
        loss_of(module, leaf).backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients)


def test_gradients_flow_through_the_input_to_what_made_it() -> None:
    model, eager = pair(mlp())
    before = nn.Linear(4, 4), nn.Linear(4, 4)
    before[1].load_state_dict(before[0].state_dict())
    for module, embed in zip((model, eager), before, strict=True):
        loss_of(module, embed(torch.ones(5, 4))).backward()
    assert_same_gradients(*before)
    assert_same_gradients(model, eager)


def test_gradients_accumulate_into_the_existing_tensor() -> None:
    model, eager = pair(mlp())
    for module in (model, eager):
        loss_of(module, torch.ones(5, 4)).backward()
    held = [p.grad for p in model.parameters()]
    for module in (model, eager):
        loss_of(module, torch.ones(7, 4) * 2).backward()
    assert_same_gradients(model, eager)
    assert all(p.grad is g for p, g in zip(model.parameters(), held, strict=True))


def test_a_gradient_that_the_caller_set_is_added_to() -> None:
    model, eager = pair(mlp())
    for module in (model, eager):
        for p in module.parameters():
            p.grad = torch.ones_like(p)
        loss_of(module, torch.ones(5, 4)).backward()
    assert_same_gradients(model, eager)


@pytest.mark.parametrize("inside", [True, False])
def test_a_gradient_without_memory_is_zero(inside: bool) -> None:
    """Autograd gives the gradient of sgn as a tensor that has no memory."""

    def forward(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        h = m.linear(x)
        return F.gelu(h.sgn() * 2 + h if inside else h) * m.linear.bias

    model, eager = pair(Lambda(forward))
    x = torch.randn(5, 4)
    for kept in (0, 1, 1):
        for module in (model, eager):
            module.zero_grad()
            out = module(x)
            (out if inside else out.sgn() + kept * out).sum().backward()
        assert_same_gradients(model, eager)


def test_gradients_of_two_parameters_share_no_memory() -> None:
    model, _ = pair(Lambda(lambda m, x: (m.linear(x) + m.linear.bias).sum()))
    model(torch.ones(2, 4)).backward()
    model.linear.weight.grad.zero_()
    assert torch.equal(model.linear.bias.grad, torch.full((4,), 4.0))


def test_the_loss_gradient_of_the_caller_is_not_written_into() -> None:
    model, _ = pair(Lambda(lambda m, x: x + m.linear.bias))
    dy = torch.ones(4)
    model(torch.ones(4)).backward(dy, retain_graph=True)
    model.linear.bias.grad.mul_(5)
    assert torch.equal(dy, torch.ones(4))


def test_outputs_without_a_gradient_require_none() -> None:
    def forward(m, x):
        y = m.linear(x)
        return y.sum(), y.argmax(-1), y.detach(), x * 2

    model, eager = pair(Lambda(forward))
    x = torch.randn(3, 4)
    got, expected = model(x), eager(x)
    assert [t.requires_grad for t in got] == [t.requires_grad for t in expected] == [True, False, False, False]
    for mine, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, wanted)


def two_outputs(m: Lambda, x: torch.Tensor) -> dict[str, torch.Tensor]:
    h = torch.tanh(m.linear(x))
    return {"loss": h.square().mean(), "states": h * m.linear.bias}


def test_a_loss_may_use_any_of_the_outputs_in_any_call() -> None:
    model, eager = pair(Lambda(two_outputs))
    uses = [
        lambda r: r["loss"],
        lambda r: r["states"].sum(),
        lambda r: r["loss"] + r["states"].square().sum(),
        lambda r: r["loss"],
    ]
    for use in uses:
        for module in (model, eager):
            module.zero_grad()
            use(module(torch.ones(3, 4))).backward()
        assert_same_gradients(model, eager)
    assert exports(model) == 1


def test_each_output_may_have_a_backward_of_its_own() -> None:
    model, eager = pair(Lambda(two_outputs))
    for module in (model, eager):
        result = module(torch.ones(3, 4))
        result["loss"].backward(retain_graph=True)
        result["states"].sum().backward()
    assert_same_gradients(model, eager)


def test_a_mean_over_what_a_mask_leaves_divides_by_how_much_that_is() -> None:
    def forward(m: nn.Module, x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        chosen = m.linear(x)[kept]
        return F.mse_loss(chosen, x[kept]) + chosen.mean(0).square().sum() + torch.einsum("ii->", chosen.T @ chosen)

    model, eager = pair(Lambda(forward))
    for rows in ([0, 2], [1], [0, 1, 2, 3]):
        kept = torch.zeros(4, dtype=torch.bool).index_fill(0, torch.tensor(rows), True)
        for module in (model, eager):
            module.zero_grad()
            x = torch.arange(16.0).reshape(4, 4) / 16
            module(x, kept).backward()
        assert_same_gradients(model, eager)
    assert exports(model) == 1


def test_an_unused_parameter_keeps_none() -> None:
    model, eager = pair(Lambda(lambda m, x: F.linear(x, m.linear.weight).sum()))
    for module in (model, eager):
        module(torch.ones(3, 4)).backward()
    assert_same_gradients(model, eager)
    assert model.linear.bias.grad is None


class TrainedTarget(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 3)
        self.target = nn.Parameter(torch.ones(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.cosine_embedding_loss(self.first(x), self.second(x), self.target.float())


@pytest.mark.parametrize("autocast", [False, True])
def test_an_argument_that_an_operators_derivative_does_not_reach_keeps_none(autocast: bool) -> None:
    model, eager = pair(TrainedTarget())
    x = torch.randn(5, 4)
    for module in (model, eager):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):  # an ATen node under autocast
            loss = module(x)
        loss.backward()
    assert eager.get_parameter("target").grad is None
    assert_same_gradients(model, eager, rtol=2e-2, atol=1e-3)


class Unregistered(nn.Module):
    """Trains a layer that it keeps in a list, and a parameter of its surroundings."""

    def __init__(self, scale: nn.Parameter) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.hidden = nn.Linear(4, 4), [nn.Linear(4, 4)]
        self.function = lambda x: x * scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.linear(self.hidden[0](x)))


def test_parameters_that_no_module_has_registered_are_trained_too() -> None:
    scales = [nn.Parameter(torch.full((4,), 2.0)) for _ in range(2)]
    (model, _), eager = pair(Unregistered(scales[0])), Unregistered(scales[1])
    for batch in (5, 5, 3):
        x = torch.randn(batch, 4)
        results = []
        for module in (model, eager):
            results.append(module(x))
            results[-1].square().mean().backward()
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*(p.grad for p in scales))
        assert_same_gradients(model.hidden[0], eager.hidden[0])
        assert_same_gradients(model, eager)
        for p in (*model.hidden[0].parameters(), *eager.hidden[0].parameters(), *scales):
            with torch.no_grad():
                p -= p.grad


def test_a_forward_that_freezes_a_parameter_freezes_it() -> None:
    def forward(m: Lambda, x: torch.Tensor) -> torch.Tensor:
        m.linear.bias.requires_grad_(False)
        return m.linear(x)

    module = Lambda(forward)
    model, eager = ORTModule(module), copy.deepcopy(module)
    for _ in range(3):
        for one in (model, eager):
            one(torch.ones(3, 4)).sum().backward()
        assert_same_gradients(model, eager)
    assert model.linear.bias.grad is None and not model.linear.bias.requires_grad


def test_double_precision_passes_gradcheck() -> None:
    model, _ = pair(mlp().double())
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: model(x), (x,))


def test_a_deep_copy_of_the_results_of_no_grad_carries_no_history() -> None:
    model, eager = pair(mlp())
    with torch.no_grad():
        out = model(torch.ones(2, 4))
    assert out.grad_fn is None
    torch.testing.assert_close(copy.deepcopy(out), eager(torch.ones(2, 4)).detach())


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_reentrant_checkpoint_without_an_input_that_needs_a_gradient_gives_its_parameters_none() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(checkpoint(self.first, x, use_reentrant=True).relu())

    model, eager = pair(Checkpointed())
    for needed in (False, True, False):
        for module in (model, eager):
            module.zero_grad()
            module(torch.ones(2, 4, requires_grad=needed)).sum().backward()
        assert (eager.first.weight.grad is not None) == needed
        assert_same_gradients(model, eager)
