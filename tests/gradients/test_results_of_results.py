"""Results from which other results are computed: their hooks, retain_grad() and autograd.grad see what eager's see.

Note [Results of results] in csrc/autograd/result_nodes.h.
"""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn

from ortmodule import _C, Options, ORTModule
from ortmodule.errors import UnsupportedError
from tests.support import assert_same_gradients, exports

Tensors = tuple[torch.Tensor, ...]
Heard = list[tuple[str, Any]]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is computed from another one.*")
        warnings.filterwarnings("ignore", message=".*create_graph=True.*")
        yield


class Net(nn.Module):
    def __init__(self, results: Callable[[Net, torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.norm, self.drop = nn.BatchNorm1d(6), nn.Dropout(0.5)
        self.results = results

    def forward(self, x: torch.Tensor) -> Any:
        return self.results(self, x)


def three(m: Net, x: torch.Tensor) -> Tensors:
    return m.third(g := m.second(f := m.first(x).tanh()).sin()), g, f


def diamond(m: Net, x: torch.Tensor) -> Tensors:
    f = m.first(x).tanh()
    left, right = m.second(f).sin(), m.second(f * 2).cos()
    return m.third(left * right) + f.sum(), f, left, right


def loss_and_logits(m: Net, x: torch.Tensor) -> Tensors:
    logits = m.third(m.first(x).tanh())
    return nn.functional.cross_entropy(logits, torch.zeros(5, dtype=torch.long)), logits


def beside(m: Net, x: torch.Tensor) -> Tensors:
    f = m.first(x).tanh()
    return m.third(f.sin()), f, m.second(m.first(x).exp())


def left_behind(m: Net, x: torch.Tensor) -> Tensors:
    m.features = m.first(x).tanh()
    return (m.third(m.features.sin()),)


# The first result is computed from the second one.
NETS: dict[str, Callable[[Net, torch.Tensor], Any]] = {
    "two": lambda m, x: (m.third(f := m.first(x).tanh()), f),
    "three": three,
    "a diamond": diamond,
    "loss and logits": loss_and_logits,
    "one beside them": beside,
    "given twice": lambda m, x: (m.third(f := m.first(x).tanh()), f, f),
    "dropout and norm": lambda m, x: (m.third(f := m.drop(m.norm(m.first(x).tanh()))), f),
    "written in place": lambda m, x: (m.third(f := m.first(x).mul_(2)), f),
    "of the same values": lambda m, x: (m.third(m.first(x).tanh()) + (f := m.first(x).tanh()).sum(), f),
}


def of(module: nn.Module, x: torch.Tensor) -> Tensors:
    out = module(x)
    found = out if isinstance(out, tuple) else (out,)
    return (*found, module.features) if hasattr(module, "features") else found


def loss_of(results: Tensors) -> torch.Tensor:
    return sum(((r * (k + 1)).square().sum() for k, r in enumerate(results)), torch.zeros(()))


def plain(results: Tensors, x: torch.Tensor, heard: Heard) -> None:
    loss_of(results).backward()


def retained(results: Tensors, x: torch.Tensor, heard: Heard) -> None:
    for r in results:
        r.retain_grad()
    results[0].square().sum().backward()
    heard += [("retained", r.grad) for r in results]


def retained_by_all(results: Tensors, x: torch.Tensor, heard: Heard) -> None:
    for r in results:
        r.retain_grad()
    loss_of(results).backward()
    heard += [("retained", r.grad) for r in results]


def listened(results: Tensors, x: torch.Tensor, heard: Heard) -> None:
    for k, r in enumerate(results):
        r.register_hook(lambda g, k=k: heard.append((f"result {k}", g.clone())))
    loss_of(results).backward()


def replaced(results: Tensors, x: torch.Tensor, heard: Heard) -> None:
    for k, r in enumerate(results):
        r.register_hook(lambda g, k=k: heard.append((f"result {k}", g.clone())) or g * (k + 2))
        r.retain_grad()
    loss_of(results).backward()
    heard += [("retained", r.grad) for r in results]


def replaced_in_the_midst(results: Tensors, x: torch.Tensor, heard: Heard) -> None:
    results[1].register_hook(lambda g: g.sign())
    results[0].sum().backward()


def asked_for(results: Tensors, x: torch.Tensor, heard: Heard) -> None:
    (grad,) = torch.autograd.grad(results[0].square().sum(), results[1], retain_graph=True)
    heard.append(("grad", grad))
    results[1].backward(grad)


def asked_for_with_leaves(results: Tensors, x: torch.Tensor, heard: Heard) -> None:
    results[1].register_hook(lambda g: g * 3)
    heard += [("grad", g) for g in torch.autograd.grad(loss_of(results), [*results, x])]


def into_inputs(results: Tensors, x: torch.Tensor, heard: Heard) -> None:
    loss_of(results).backward(inputs=[results[1], x])
    heard.append(("inner", results[1].grad))


def again_and_again(results: Tensors, x: torch.Tensor, heard: Heard) -> None:
    results[1].retain_grad()
    loss = loss_of(results)
    loss.backward(retain_graph=True)
    heard.append(("once", results[1].grad.clone()))
    handle = results[1].register_hook(lambda g: -g)
    results[0].sum().backward(retain_graph=True)
    heard.append(("twice", results[1].grad.clone()))
    handle.remove()
    loss.backward()
    heard.append(("thrice", results[1].grad))


def differentiated_again(results: Tensors, x: torch.Tensor, heard: Heard) -> None:
    inner, outer = torch.autograd.grad(loss_of(results), [results[1], x], create_graph=True)
    (inner.square().sum() + outer.square().sum()).backward()
    heard.append(("outer", outer.detach()))


LOOKS = [
    plain, retained, retained_by_all, listened, replaced, replaced_in_the_midst, asked_for, asked_for_with_leaves,
    into_inputs, again_and_again, differentiated_again,
]  # fmt: skip


def assert_heard_the_same(got: Heard, expected: Heard) -> None:
    assert [name for name, _ in got] == [name for name, _ in expected]
    for (name, one), (_, other) in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def in_both(
    net: Callable[[Net, torch.Tensor], Any], look: Callable[[Tensors, torch.Tensor, Heard], None], **options: Any
) -> tuple[ORTModule, nn.Module]:
    """Looks three times, at calls of the engine, and compares with eager."""
    eager = Net(net)
    model = ORTModule(copy.deepcopy(eager), options=Options(**{"dropout": "torch", **options}))
    for step in range(3):
        heard: list[Heard] = [[], []]
        xs = [torch.linspace(-1, 1, 20).reshape(5, 4).requires_grad_() for _ in range(2)]
        model._manager._higher_order.clear()
        for module, x, log in zip((model, eager), xs, heard, strict=True):
            torch.manual_seed(step)
            look(of(module, x), x, log)
        assert_heard_the_same(*heard)
        torch.testing.assert_close(xs[0].grad, xs[1].grad, rtol=1e-3, atol=1e-4)
        assert_same_gradients(model, eager, rtol=1e-3, atol=1e-4)
        for mine, theirs in zip(model.buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(mine, theirs)
    report = model.report()
    assert exports(model) == 1 and sum(session.runs for session in report.sessions) == 3
    return model, eager


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.__name__)
@pytest.mark.parametrize("net", NETS)
def test_a_look_sees_what_it_sees_in_eager(net: str, look: Callable[[Tensors, torch.Tensor, Heard], None]) -> None:
    in_both(NETS[net], look)


@pytest.mark.parametrize("look", [retained, replaced, asked_for], ids=lambda look: look.__name__)
def test_a_result_left_on_the_module_is_one_as_well(look: Callable[[Tensors, torch.Tensor, Heard], None]) -> None:
    model, _ = in_both(left_behind, look)
    kept = model.features
    assert model(torch.randn(5, 4)) is not None and model.features is not kept


@pytest.mark.parametrize("net", NETS)
def test_a_call_at_which_nobody_looks_stays_in_the_engine(net: str) -> None:
    model, _ = in_both(NETS[net], plain)
    assert model._manager.higher_order is None and model.report().fallback == "none"
    x = torch.randn(5, 4)
    results = of(model, x)
    results[0].register_hook(lambda g: g)  # from the outermost one nothing is computed
    results[0].sum().backward()
    assert model._manager.higher_order is None


@pytest.mark.parametrize("net", NETS)
def test_the_way_through_a_result_changes_no_bit(net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gradients: list[list[torch.Tensor | None]] = []
    for known in (True, False):
        if not known:
            monkeypatch.setattr(_C.Session, "order_results", lambda *_: None)
        model = ORTModule(Net(NETS[net]), options=Options(dropout="torch"))
        gradients.append([])
        for step, loss in enumerate((loss_of, lambda results: results[0].sum(), loss_of)):
            torch.manual_seed(step)
            x = torch.linspace(-1, 1, 20).reshape(5, 4).requires_grad_()
            loss(model(x)).backward()
            gradients[-1] += [x.grad, *(p.grad for p in model.parameters())]
            model.zero_grad()
    for one, other in zip(*gradients, strict=True):
        assert (one is None and other is None) or torch.equal(one, other)  # type: ignore[arg-type]


@pytest.mark.parametrize("dropout", ["fast", "torch"])
def test_a_forward_that_drops_is_repeated_with_its_masks(dropout: str) -> None:
    model = ORTModule(Net(NETS["dropout and norm"]), options=Options(dropout=dropout))
    for _ in range(3):
        model._manager._higher_order.clear()
        logits, features = model(torch.linspace(-1, 1, 20).reshape(5, 4))
        loss, wanted = logits.square().sum(), list(model.get_submodule("first").parameters())
        engine = torch.autograd.grad(loss, wanted, retain_graph=True)
        features.retain_grad()
        looked = torch.autograd.grad(loss, wanted)
        torch.testing.assert_close(looked, engine, rtol=1e-4, atol=1e-5)


def test_the_first_look_says_so_and_later_calls_of_the_kind_run_in_pytorch() -> None:
    model = ORTModule(Net(three))
    for looked in (False, True, True):
        logits, _, features = model(torch.randn(5, 4))
        if looked:
            features.retain_grad()
        if looked and model._manager.higher_order is None:
            with pytest.warns(UserWarning, match=r"calls of Net run in PyTorch.*is computed from another one"):
                logits.sum().backward()
        else:
            logits.sum().backward()
    report = model.report()
    assert report.fallback == "whole" and "is computed from another one" in (report.fallback_reason or "")
    assert [session.runs for session in report.sessions] == [2]


def test_a_hook_is_called_where_a_gradient_arrives_alone() -> None:
    def apart(m: Net, x: torch.Tensor) -> Tensors:
        return m.first(x).tanh(), m.second(m.first(x * 2)), m.third(m.first(x).exp())

    def listened_to_one(results: Tensors, x: torch.Tensor, heard: Heard) -> None:
        for k, r in enumerate(results):
            r.register_hook(lambda g, k=k: heard.append((f"result {k}", g)))
        results[1].sum().backward()

    model, _ = in_both(apart, listened_to_one)
    assert model._manager.higher_order is None  # nobody's gradient goes through another result


def test_what_is_not_computed_from_a_result_has_no_way_to_it() -> None:
    model = ORTModule(Net(beside))
    for _ in range(2):
        logits, features, other = model(torch.randn(5, 4))
        for outer, inner in ((logits, other), (other, features), (features, logits)):
            with pytest.raises(RuntimeError, match="appears to not have been used"):
                torch.autograd.grad(outer.sum(), inner, retain_graph=True)
    assert model._manager.higher_order is None


def test_a_view_from_which_a_result_is_computed_is_looked_at_too() -> None:
    eager = Net(lambda m, x: (h := m.first(x).tanh(), f := h.view(-1, 3), m.second(f.reshape(5, 6))))
    model = ORTModule(copy.deepcopy(eager))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            heard: list[Heard] = [[], []]
            for module, log in zip((model, eager), heard, strict=True):
                x = torch.linspace(-1, 1, 20).reshape(5, 4).requires_grad_()
                listened(of(module, x), x, log)
            assert_heard_the_same(*heard)
            assert_same_gradients(model, eager)


def test_a_graph_from_the_disk_cache_knows_the_way(tmp_path: Path) -> None:
    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> Tensors:
            features = self.first(x).tanh()
            return self.second(features), features

    eager = Features()
    for found in (False, True):
        model = ORTModule(copy.deepcopy(eager), options=Options(cache_dir=str(tmp_path)))
        heard: list[Heard] = [[], []]
        for module, log in zip((model, eager), heard, strict=True):
            x = torch.linspace(-1, 1, 20).reshape(5, 4)
            retained(module(x), x, log)
        assert_heard_the_same(*heard)
        assert [export.cached for export in model.report().exports] == [found]


def test_many_directions_at_once() -> None:
    found = []
    eager = Net(three)
    for module in (ORTModule(copy.deepcopy(eager)), eager):
        logits, middle, features = module(torch.linspace(-1, 1, 20).reshape(5, 4))
        middle.register_hook(lambda g: g * 2)
        basis = torch.eye(15).reshape(15, 5, 3)
        wanted = [features, module.get_parameter("first.weight")]
        found.append(torch.autograd.grad(logits, wanted, basis, is_grads_batched=True))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_the_input_is_kept_for_a_look_and_goes_with_the_step() -> None:
    model = ORTModule(Net(lambda m, x: (m.third(f := m.first(x.floor()).tanh()), f)))
    for _ in range(2):
        model._manager._higher_order.clear()
        x = torch.rand(5, 4)
        logits, features = model(x)
        memory = weakref.ref(x)
        del x
        gc.collect()
        assert torch.autograd.grad(logits.sum(), features)[0].shape == (5, 6)
        del logits, features
        gc.collect()
        assert memory() is None


def test_a_parameter_that_changed_since_the_forward_is_refused() -> None:
    model = ORTModule(Net(three))
    logits, _, features = model(torch.randn(5, 4))
    model.get_parameter("second.bias").data.add_(3)  # unseen by autograd
    features.retain_grad()
    with pytest.raises(UnsupportedError, match="a value was changed after it"):
        logits.square().sum().backward()


def test_a_hook_that_would_not_hear_of_a_second_backward_is_refused_once() -> None:
    eager = Net(three)
    model = ORTModule(copy.deepcopy(eager))

    def step(module: nn.Module) -> None:
        results = module(torch.linspace(-1, 1, 20).reshape(5, 4))
        results[1].register_hook(lambda g: g * g)
        loss_of(results).backward(create_graph=True)
        module.get_parameter("first.bias").grad.sum().backward()

    with pytest.raises(RuntimeError, match=r"would not hear.*model\.module"):
        step(model)
    model.zero_grad()
    for module in (model, eager):
        step(module)
    assert_same_gradients(model, eager)


@pytest.mark.parametrize("net", ["two", "three"])
def test_a_look_after_the_backward_is_a_second_one(net: str) -> None:
    eager = Net(NETS[net])
    for module in (ORTModule(copy.deepcopy(eager)), eager):
        results = module(torch.linspace(-1, 1, 20).reshape(5, 4))
        loss = results[0].square().sum()
        loss.backward(retain_graph=True)
        assert torch.autograd.grad(loss, results[1], retain_graph=True)[0].shape == results[1].shape
        loss.backward()
        with pytest.raises(RuntimeError, match="a second time"):
            torch.autograd.grad(loss, results[1])


def test_without_fallback_the_error_says_what_to_call() -> None:
    model = ORTModule(Net(three), options=Options(fallback="error"))
    logits, _, features = model(torch.randn(5, 4))
    features.retain_grad()
    with pytest.raises(RuntimeError, match=r"through another result.*model\.module"):
        logits.sum().backward()


def test_a_frozen_part_and_a_graph_made_without_gradients() -> None:
    eager = Net(three)
    model = ORTModule(copy.deepcopy(eager))
    x = torch.linspace(-1, 1, 20).reshape(5, 4)
    with torch.no_grad():
        torch.testing.assert_close(model(x), eager(x))
    for frozen in (True, False):
        model._manager._higher_order.clear()
        heard: list[Heard] = [[], []]
        for module, log in zip((model, eager), heard, strict=True):
            module.get_submodule("first").requires_grad_(not frozen)
            results = module(x)
            looked_at = [r for r in results if r.requires_grad]
            assert len(looked_at) == 3 - frozen
            replaced(tuple(looked_at), x, log)
        assert_heard_the_same(*heard)
        assert_same_gradients(model, eager)
