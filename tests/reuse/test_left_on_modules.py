"""What a forward sets on its modules is a result of the call: it is there after each one, with its gradient."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn as nn

from ortmodule import Options, ORTModule
from ortmodule.graph_transition.audit import Effect
from ortmodule.graph_transition.captured_graph import lost_effect
from ortmodule.graph_transition.conditions import QueryCondition
from ortmodule.graph_transition.signature import Call
from tests.support import assert_same_gradients


class Router(nn.Module):
    """Leaves a loss, a list of tensors, a size and a word on itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.body = nn.Linear(4, 3), nn.Linear(4, 4)
        self.aux_loss: Any = None
        self.word = "none"

    def forward(self, x: torch.Tensor, loud: bool = False) -> torch.Tensor:
        scores = self.gate(x).softmax(-1)
        self.aux_loss = (scores.mean(0) ** 2).sum()
        self.seen = [scores.detach(), {"input": x}]
        self.rows = x.shape[0]
        self.rows *= 2
        self.sizes = {"x": (x.shape[0], x.shape[1] + 1)}
        self.word = "loud" if loud else "quiet"
        return self.body(x) * scores.amax(-1, keepdim=True)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Router(), Router()])

    def forward(self, x: torch.Tensor, loud: bool = False) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, loud) + layer.aux_loss
        return x.sum()


def pair(**options: Any) -> tuple[ORTModule, nn.Module]:
    module = Model()
    return ORTModule(module, options=Options(fallback="error", **options)), copy.deepcopy(module)


@pytest.mark.parametrize("outputs", ["all", "loss"])
def test_attributes_are_those_of_the_present_call(outputs: str) -> None:
    model, eager = pair(outputs=outputs)
    for rows, loud in ((3, False), (3, True), (3, False), (5, False), (3, True), (4, True), (5, False)):
        x = torch.randn(rows, 4)
        for module in (model, eager):
            module.zero_grad()
            loss = module(x, loud)
            (loss + 10.0 * sum(layer.aux_loss for layer in module.layers)).backward()
        for ours, theirs in zip(model.layers, eager.layers, strict=True):
            assert (ours.rows, ours.word) == (theirs.rows, theirs.word) == (2 * rows, "loud" if loud else "quiet")
            assert ours.sizes == theirs.sizes == {"x": (rows, 5)}
            torch.testing.assert_close(ours.aux_loss, theirs.aux_loss)
            torch.testing.assert_close(ours.seen, theirs.seen)
            assert not ours.seen[0].requires_grad
        assert model.layers[0].seen[1]["input"] is x
        assert_same_gradients(model, eager)
    assert model.report().fallback == "none" and len(model.report().exports) == 4


def test_a_call_without_gradients_leaves_plain_tensors() -> None:
    model, eager = pair()
    with torch.no_grad():
        for module in (model, eager):
            module(torch.ones(3, 4))
    assert not model.layers[1].aux_loss.requires_grad
    torch.testing.assert_close(model.layers[1].aux_loss, eager.layers[1].aux_loss)


class Remembering(nn.Module):
    """Looks at what the call before has left."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.how = nn.Linear(4, 4), how
        if how != "absent":
            self.last: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if self.how == "absent":
            before = getattr(self, "last", None)
        else:
            before = self.last
        self.last = y.detach()
        return (y if before is None else y + before).sum()


@pytest.mark.parametrize("how", ["absent", "none"])
def test_a_forward_that_looks_at_the_call_before_is_left_to_pytorch(how: str) -> None:
    module = Remembering(how)
    model, eager = ORTModule(module), copy.deepcopy(module)
    with pytest.warns(UserWarning, match="changes Python"):
        for _ in range(4):
            x = torch.randn(3, 4)
            torch.testing.assert_close(model(x), eager(x))
            torch.testing.assert_close(module.last, eager.last)


def test_a_failed_call_leaves_nothing() -> None:
    class Failing(Router):
        def forward(self, x: torch.Tensor, loud: bool = False) -> torch.Tensor:
            y = super().forward(x, loud)
            if x.shape[1] == 4 and x.shape[0] == 2:
                raise ValueError("two rows")
            return y

    module = Failing()
    model = ORTModule(module)
    model(torch.randn(3, 4)).sum().backward()
    kept = module.aux_loss.item()
    with pytest.raises(ValueError, match="two rows"):
        model(torch.randn(2, 4))
    assert type(module.aux_loss) is torch.Tensor
    model(torch.ones(3, 4)).sum().backward()
    assert type(module.aux_loss) is torch.Tensor and module.aux_loss.item() != kept


def test_copies_and_saved_states_know_nothing_of_it() -> None:
    model, _ = pair()
    model(torch.randn(3, 4)).backward()
    assert set(model.state_dict()) == set(Model().state_dict())
    for layer in model.layers:
        layer.aux_loss, layer.seen = None, None
    twin = copy.deepcopy(model)
    loss = twin(torch.ones(3, 4))
    assert twin.layers[0].aux_loss is not None and model.layers[0].aux_loss is None
    loss.backward()
    assert model.layers[0].gate.weight.grad is not None


@pytest.mark.parametrize("look", ["vars", "__dict__"])
def test_what_is_looked_at_in_the_modules_dict_before_it_is_set(look: str) -> None:
    table = vars

    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.linear.kind = 1

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            held = table(self.linear) if look == "vars" else self.linear.__dict__
            y = self.linear(x) * len(str((held.get("".join(reversed("dnik"))),)))
            self.linear.kind = True
            return y

    eager = Looking()
    model = ORTModule(copy.deepcopy(eager))
    x = torch.randn(2, 4)
    for kind in (None, None, 1, None, None):
        for one in (eager, model.module) if kind is not None else ():
            one.linear.kind = kind
        for _ in range(2):
            torch.testing.assert_close(model(x), eager(x))


def test_a_saved_buffer_that_is_left_beside_a_result_that_is_given() -> None:
    class Leaving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("factor", torch.ones(()))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            self.factor = self.factor + 1
            return self.linear(x) * self.factor, x

    eager = Leaving()
    model = ORTModule(copy.deepcopy(eager), options=Options(fallback="error"))
    x = torch.randn(2, 4)
    for _ in range(3):
        result, given = model(x)
        expected, _ = eager(x)
        assert given is x
        torch.testing.assert_close(result, expected)
        result.sum().backward()
        expected.sum().backward()
        assert_same_gradients(model, eager)


def test_what_is_set_on_an_object_that_no_condition_leads_to_is_named() -> None:
    module = nn.Linear(2, 2)
    call = Call.of((torch.ones(1, 2),), {}, module)
    condition = QueryCondition(torch.get_num_threads)
    effect = Effect("the place", condition, "name", 1)
    assert lost_effect([effect], [], call) == "the place"
    assert lost_effect([effect], [("", condition, torch.get_num_threads)], call) is None
