"""An ORTModule is the module it wraps: names, state, modes, attributes, methods, copies."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import threading
from typing import Any

import pytest
import torch
import torch.nn as nn

from ortmodule import InvalidArgumentError, Options, ORTModule
from ortmodule.calls.engine_call import FIRST_IN_PYTORCH
from tests.support import assert_same_gradients, exports, mlp, pair


class Net(nn.Module):
    """A module with methods, attributes, a property and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("scratch", torch.ones(2), persistent=False)
        self.kind = "net"

    @property
    def width(self) -> int:
        return self.first.out_features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.first(x))

    def describe(self, greeting: str) -> str:
        return f"{greeting} {self.kind} of {self.width}"

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x)


X = torch.linspace(-1, 1, 20).reshape(5, 4)


def test_names_are_the_wrapped_modules() -> None:
    model, eager = pair(Net())
    for method in ("named_parameters", "named_buffers", "named_modules", "named_children", "state_dict"):
        got, expected = dict(getattr(model, method)()), dict(getattr(eager, method)())
        assert list(got) == list(expected), method
    assert list(model.state_dict(prefix="a.")) == list(eager.state_dict(prefix="a."))
    assert [type(m) for m in model.modules()] == [type(m) for m in eager.modules()]
    assert [type(m) for m in model.children()] == [type(m) for m in eager.children()]
    assert len(list(model.buffers())) == len(list(eager.buffers()))


def test_state_goes_from_eager_to_ortmodule_and_back() -> None:
    model, eager = pair(Net())
    for p in eager.parameters():
        nn.init.normal_(p)
    model(X)
    assert str(model.load_state_dict(eager.state_dict())) == "<All keys matched successfully>"
    torch.testing.assert_close(model(X), eager(X))
    fresh = Net()
    fresh.load_state_dict(model.state_dict())
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict({})
    assert model.load_state_dict({}, strict=False).missing_keys


def test_a_checkpoint_file_loads_in_either() -> None:
    model, eager = pair(Net())
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    eager.load_state_dict(torch.load(file))


def test_train_and_eval_reach_every_sub_module() -> None:
    model, _ = pair(Net())
    assert model.eval() is model and not model.training and not model.norm.training
    assert model.train() is model and model.training and model.norm.training


def test_conversion_to_double_takes_place() -> None:
    model, eager = pair(Net())
    model(X)
    assert model.to(torch.float64) is model
    eager.double()
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    out = model(X.double())
    torch.testing.assert_close(out, eager(X.double()))
    out.sum().backward()
    assert model.first.weight.grad.dtype == torch.float64


def test_attributes_and_methods_are_the_wrapped_modules() -> None:
    model, _ = pair(Net())
    assert model.kind == "net" and model.width == 8
    assert model.describe("a") == "a net of 8"
    torch.testing.assert_close(model.features(X), model.module.first(X))
    assert {"kind", "describe", "first", "report"} <= set(dir(model))
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        _ = model.nothing_of_this_name


class Trained(nn.Module):
    """Its training step is a method that calls the module itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x).tanh()

    def training_step(self, x: torch.Tensor) -> torch.Tensor:
        assert type(self) is Trained
        return self(x).square().mean()

    def smoothed(self) -> Trained:
        return copy.deepcopy(self)

    def failing(self) -> None:
        raise KeyError("failing")


def test_a_method_that_calls_the_module_itself_runs_in_the_engine() -> None:
    model, eager = pair(Trained())
    for _ in range(2):
        model.training_step(X).backward()
        eager.training_step(X).backward()
    assert_same_gradients(model, eager)
    assert model.report().sessions[0].runs == 2
    model(X)
    assert exports(model) == 1 and model.report().sessions[0].runs == 3, "the graph of model(X) is the same one"


def test_a_method_that_records_no_gradients_runs_in_the_engine() -> None:
    model, eager = pair(Trained(), fallback="eager")
    with torch.no_grad():
        for _ in range(FIRST_IN_PYTORCH):
            torch.testing.assert_close(model.training_step(X), eager.training_step(X))
        assert exports(model) == 0, "a short loop is done before its graph would be"
        torch.testing.assert_close(model.training_step(X), eager.training_step(X))
    assert exports(model) == 1 and model.report().sessions[0].mode == "inference"


def test_a_method_leaves_the_wrapped_module_as_it_was() -> None:
    model, _ = pair(Trained())
    before = set(vars(model.module))
    copied = model.smoothed()
    with pytest.raises(KeyError, match="failing"):
        model.failing()
    assert set(vars(model.module)) == before and set(vars(copied)) == before
    copied(X)
    model.module(X)
    model.module.training_step(X)
    assert exports(model) == 0


def test_another_thread_calls_the_model_beside_a_method_of_it() -> None:
    class Waits(Trained):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if float(self.first(x).sum()) > 100 else self.first(x)  # no graph holds this

        def training_step(self, x: torch.Tensor) -> torch.Tensor:
            other = threading.Thread(target=lambda: results.append(model(x)))
            other.start()
            other.join()
            return self(x)

    results: list[torch.Tensor] = []
    model, eager = ORTModule(Waits()), Trained()
    with pytest.warns(UserWarning, match="in PyTorch") as said:
        results.append(model.training_step(X))
    ours = [warning for warning in said if "ORTModule" in str(warning.message)]
    assert len(ours) == 1, "torch says of `float`, once for the process, what it says in eager"
    torch.testing.assert_close(results, [eager.first(X)] * 2)


def test_a_compiled_modules_call_stays_its_own() -> None:
    model = ORTModule(Trained())
    calls: list[torch.Tensor] = []

    def compiled(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return x

    vars(model.module)["_compiled_call_impl"] = compiled  # what nn.Module.compile sets
    model.training_step(X)
    assert len(calls) == 1 and vars(model.module)["_compiled_call_impl"] is compiled


def test_a_method_is_bound_to_the_wrapper_and_equals_itself() -> None:
    model, _ = pair(Trained())
    assert model.training_step == model.training_step and model.training_step.__self__ is model
    assert inspect.signature(model.training_step) == inspect.signature(model.module.training_step)
    twin = pickle.loads(pickle.dumps(model))
    assert twin.training_step.__self__ is twin


def test_a_method_that_cannot_be_captured_falls_back_as_the_call_does() -> None:
    class Asks(Trained):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if float(self.first(x).sum()) > 100 else self.first(x)

        def training_step(self, x: torch.Tensor) -> torch.Tensor:
            return self(x).square().mean()

    model, eager = ORTModule(Asks()), Asks()
    with pytest.warns(UserWarning, match="in PyTorch"):
        loss = model.training_step(X)
    torch.testing.assert_close(loss, eager.training_step(X))
    assert set(vars(model.module)) == set(vars(eager))


def test_attributes_are_set_on_the_wrapped_module() -> None:
    model, _ = pair(Net())
    model.kind = "other"
    model.extra = nn.Parameter(torch.ones(3))
    model.register_buffer("more", torch.zeros(1))
    assert model.module.kind == "other"
    assert {"extra"} <= dict(model.module.named_parameters()).keys()
    assert {"more"} <= dict(model.module.named_buffers()).keys()
    del model.extra
    assert not hasattr(model.module, "extra")


def test_the_wrapped_module_is_not_replaced_and_not_given_another() -> None:
    model, eager = pair(mlp())
    with pytest.raises(AttributeError, match="wrap the other one"):
        model.module = mlp()
    assert dict(model.named_modules()).keys() == dict(eager.named_modules()).keys()


def test_attributes_that_the_wrapper_hides_are_named() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(4, 8)

        def report(self) -> str:
            return "inner"

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.module(x)

    with pytest.warns(UserWarning) as said:
        model = ORTModule(Inner())
    assert [str(w.message).split(" ")[0] for w in said] == ["module", "report"]
    assert "collides with ORTModule's attribute name" in str(said[0].message)
    assert model.module.report() == "inner" and isinstance(model.module.module, nn.Linear)


def test_representation_names_both() -> None:
    model, eager = pair(Net())
    assert repr(model) == f"ORTModule({eager!r})"


def test_the_wrapped_module_still_runs_by_itself() -> None:
    model, eager = pair(Net())
    model(X).sum().backward()
    eager(X)
    torch.testing.assert_close(model.module(X), eager(X))


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"]
)
def test_a_copy_is_an_independent_ortmodule(duplicate: Any, called: bool) -> None:
    model, eager = pair(Net())
    if called:
        for module in (model, eager):
            module(X).sum().backward()
    twin = duplicate(model)
    assert isinstance(twin, ORTModule) and twin.module is not model.module
    model.zero_grad()
    twin.zero_grad()
    eager.zero_grad()
    for module in (twin, eager):
        module(X).square().mean().backward()
    assert_same_gradients(twin, eager)
    assert all(p.grad is None for p in model.parameters())
    assert exports(twin) == 1


def test_the_options_travel_with_a_copy() -> None:
    model = ORTModule(mlp(), options=Options(dropout="torch", fallback="error"))
    assert pickle.loads(pickle.dumps(model))._options == Options(dropout="torch", fallback="error")


def test_wrapping_twice_is_wrapping_once() -> None:
    once = ORTModule(Net())
    twice = ORTModule(once)
    assert twice.module is once.module
    twice(X)
    assert twice.report().fallback == "none"


def test_only_modules_and_known_kinds_of_options_are_taken() -> None:
    for wrong in (lambda x: x, None, "net"):
        with pytest.raises(InvalidArgumentError, match=r"nn\.Module"):
            ORTModule(wrong)
    with pytest.raises(InvalidArgumentError, match="options"):
        ORTModule(Net(), options={"dropout": "fast"})
    with pytest.raises(InvalidArgumentError, match="debug_options"):
        ORTModule(Net(), Options())


def test_an_optimizer_over_its_parameters_trains_it() -> None:
    model, eager = pair(Net())
    for module in (model, eager):
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.05)
        for _ in range(5):
            optimizer.zero_grad()
            (module(X) - 1).square().mean().backward()
            optimizer.step()
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


def test_an_ortmodule_inside_a_module_trains_with_it() -> None:
    model, eager = (nn.Sequential(nn.Linear(4, 4), inner, nn.Linear(8, 2)) for inner in pair(Net()))
    eager.load_state_dict(model.state_dict())
    for module in (model, eager):
        module(X).square().mean().backward()
    assert_same_gradients(model, eager)
    assert len(list(model.parameters())) == len(list(eager.parameters()))


def test_forward_hooks_of_the_wrapper_run() -> None:
    model, _ = pair(Net())
    seen = []
    model.register_forward_pre_hook(lambda m, args: seen.append("before"))
    model.register_forward_hook(lambda m, args, out: seen.append("after") or out * 2)
    torch.testing.assert_close(model(X), model.module(X) * 2)
    assert seen == ["before", "after"]


def test_backward_hooks_of_the_wrapper_change_the_gradients() -> None:
    model, eager = pair(Net())
    found = []
    for module in (model, eager):
        module.register_full_backward_hook(lambda m, into, out: (into[0] * 2,))
        module.register_full_backward_pre_hook(lambda m, out: (out[0] * 3,))
        x = X.clone().requires_grad_()
        module(x).square().mean().backward()
        found.append(x.grad)
    torch.testing.assert_close(*found)
    assert_same_gradients(model, eager)
    assert model.report().sessions


def test_parameters_of_functional_call_may_come_first() -> None:
    model, eager = pair(mlp())
    x = torch.randn(5, 4)
    for _ in range(2):
        gradients = []
        for module in (model, eager):
            given = {n: (p.detach() * 2).requires_grad_() for n, p in module.named_parameters()}
            torch.func.functional_call(module, given, (x,)).square().sum().backward()
            gradients.append([p.grad for p in given.values()])
            module.zero_grad()
            module(x).square().sum().backward()
        torch.testing.assert_close(*gradients)
        assert_same_gradients(model, eager)
    assert all(type(p) is nn.Parameter for p in model.parameters())


def test_apply_and_requires_grad_reach_the_parameters() -> None:
    model, _ = pair(Net())

    def zero(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.weight)

    assert model.apply(zero) is model
    assert not model.first.weight.any()
    assert model.requires_grad_(False) is model
    assert not any(p.requires_grad for p in model.parameters())


def test_a_wrapped_sequential_is_indexed_and_walked() -> None:
    model, eager = pair(mlp())
    assert model[0] is model.module[0] and len(model) == 3 and bool(model)
    assert [type(m) for m in model] == [type(m) for m in eager]
    assert model[1] in model
    assert len(model[:2]) == 2
    x = torch.randn(5, 4)
    for module in (model, eager):
        torch.manual_seed(1)
        module(x)
        module[2] = nn.Linear(8, 2)
        del module[1]
    torch.testing.assert_close(model(x), eager(x))
    plain, _ = pair(Net())
    assert bool(plain), "as every module that is no container"
    for use in (len, iter, lambda m: m[0]):
        with pytest.raises(TypeError):
            use(plain)


@pytest.mark.parametrize("before", [True, False])
def test_a_value_that_nn_module_has_got_is_the_wrapped_modules(before: bool) -> None:
    model = None if before else ORTModule(nn.Linear(2, 2))
    nn.Module.shared_by_all = ["of the class"]  # type: ignore[attr-defined]
    try:
        model = model or ORTModule(nn.Linear(2, 2))
        assert model.shared_by_all == ["of the class"]
        model.shared_by_all = ["its own"]
        model.shared_by_all.append("more")
        assert model.shared_by_all == model.module.shared_by_all == ["its own", "more"]
        assert ORTModule.shared_by_all == ["of the class"]
        del model.shared_by_all
        assert model.shared_by_all == ["of the class"]
    finally:
        del nn.Module.shared_by_all
    assert not hasattr(model, "shared_by_all")
    assert not hasattr(ORTModule, "shared_by_all")


def test_what_nn_module_gets_or_loses_later_leaves_the_wrapped_modules_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shifted(Net):
        shift = 1.0

    model = ORTModule(Shifted())
    assert model.shift == 1.0
    monkeypatch.setattr(nn.Module, "shift", 2.0, raising=False)
    monkeypatch.setattr(nn.Module, "of_all", 3.0, raising=False)
    assert model.shift == 1.0 and model.of_all == 3.0
    model.module.of_all = 4.0
    assert model.of_all == 4.0
    monkeypatch.undo()
    assert model.shift == 1.0 and model.of_all == 4.0
    del model.of_all
    with pytest.raises(AttributeError, match="of_all"):
        _ = model.of_all
