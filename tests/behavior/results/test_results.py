"""Groups C and E: what a module returns, and who wants a gradient."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from transformers.modeling_outputs import SequenceClassifierOutput

from ortmodule import ORTModule
from tests.support import Lambda, assert_same_gradients, exports, mlp, pair

from ..table import Row, behavior, call, compare, parity, rand, rows_of, run


class Two(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@dataclasses.dataclass
class Result:
    loss: torch.Tensor
    name: str
    more: torch.Tensor | None = None


def written(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    h = m.linear(x)
    h += 1
    h[0] = 0
    return h


x = rand(3, 4)
OUTPUTS: dict[str, Any] = {
    "a tuple": lambda m, x: (m.linear(x), x * 2),
    "a list": lambda m, x: [m.linear(x), x],
    "a dictionary in its order": lambda m, x: {"b": m.linear(x), "a": x + 1},
    "a dictionary of tuples": lambda m, x: {"a": (m.linear(x), x), "b": (m.linear(x),)},
    "tuples of tuples": lambda m, x: ((m.linear(x), (x, (m.linear(x).sum(),))), ()),
    "an ordered dictionary": lambda m, x: collections.OrderedDict(z=m.linear(x), a=x),
    "a named tuple": lambda m, x: Two(m.linear(x), x),
    "a dataclass": lambda m, x: Result(m.linear(x).mean(), "text"),
    "a model output of transformers": lambda m, x: SequenceClassifierOutput(
        loss=m.linear(x).mean(), logits=m.linear(x)
    ),
    "None and numbers": lambda m, x: (m.linear(x), None, 3, 0.5, True, "text"),
    "sizes": lambda m, x: (m.linear(x), x.shape[0], tuple(x.shape)),
    "one value twice": lambda m, x: (lambda h: (h, h, h * 2))(m.linear(x)),
    "an input as it is": lambda m, x: (x, m.linear(x)),
    "a view of an input": lambda m, x: (x.view(-1), m.linear(x)),
    "views of a result": lambda m, x: (lambda h: (h, h.view(-1), h[0], h.T))(m.linear(x)),
    "integers and booleans": lambda m, x: (m.linear(x), x.argmax(-1), x > 0),
    "a parameter and a buffer": lambda m, x: (m.linear(x), m.linear.weight, m.table),
    "changed in place inside": written,
    "a constant": lambda m, x: (m.linear(x), torch.ones(3)),
    "no element": lambda m, x: (m.linear(x), x[:0]),
    "nothing that needs a gradient": lambda m, x: (x * 2, m.table + 1),
}
for name, forward in OUTPUTS.items():
    parity("C", name, forward, call(x), call(rand(5, 4)))


@behavior("C", "a class of the user's that holds tensors")
def custom_class() -> None:
    class Box:
        def __init__(self, value: torch.Tensor) -> None:
            self.value = value

    model = ORTModule(Lambda(lambda m, x: Box(m.linear(x))))
    out = model(x)
    assert type(out) is Box and model.report().fallback == "none"
    torch.testing.assert_close(out.value, model.linear(x))


@behavior("C", "a loss from two outputs of one call")
def two_outputs() -> None:
    model, eager = pair(Lambda(OUTPUTS["a tuple"]))
    for module in (model, eager):
        first, second = module(x)
        (first * second).sum().backward()
    assert_same_gradients(model, eager)


@behavior("C", "a backward from one output only")
def one_output() -> None:
    model, eager = pair(Lambda(lambda m, x: (m.linear(x), m.linear(x).tanh())))
    for module in (model, eager):
        module(x)[1].sum().backward()
    assert_same_gradients(model, eager)


parity("E", "an input that wants a gradient", lambda m, x: m.linear(x), call(rand(3, 4).requires_grad_()))
parity("E", "one of two inputs", lambda m, x, y: m.linear(x) * y, call(x, x.clone().requires_grad_()),
       call(x.clone().requires_grad_(), x), exports_at_most=1)  # fmt: skip
parity("E", "now with, now without", lambda m, x: m.linear(x), call(x), call(x.clone().requires_grad_()), call(x),
       exports_at_most=1)  # fmt: skip
parity("E", "an input with a history", lambda m, x: m.linear(x), call(x), call(x))
parity("E", "a layer that is not used", nn.ModuleDict({"a": nn.Linear(4, 4)}).get_submodule("a"), call(x))


class Frozen(nn.Module):
    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.net = mlp()
        for name in names:
            self.net.get_parameter(name).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.spare = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


parity("E", "some parameters frozen, a layer and a parameter not used", Frozen(("0.weight", "2.bias")), call(x))
parity("E", "every parameter of the net frozen", Frozen(("0.weight", "0.bias", "2.weight", "2.bias")), call(x))


@behavior("E", "a gradient node for no frozen weight")
def frozen_costs_nothing() -> None:
    counts = []
    for names in ((), ("0.weight", "0.bias")):
        model, _ = pair(Frozen(names))
        model(x).sum().backward()
        session = model.report().sessions[0]
        counts.append((session.gradients, session.backward_nodes))
    assert counts[1][0] == counts[0][0] - 2 and counts[1][1] < counts[0][1]


@behavior("E", "frozen and freed between steps, without a new export")
def toggled() -> None:
    model, eager = pair(mlp())
    for frozen in (True, False, True):
        for module in (model, eager):
            module.get_parameter("0.weight").requires_grad_(not frozen)
        compare(model, eager, *call(x))
    assert exports(model) == 1


@behavior("E", "the input's gradient reaches what made it")
def chain() -> None:
    model, eager = pair(mlp())
    grads = []
    for module in (model, eager):
        leaf = torch.ones(3, 4, requires_grad=True)
        module(leaf.sin() * 2).sum().backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads)


@behavior("E", "autograd.grad leaves .grad alone")
def functional() -> None:
    model, eager = pair(mlp())
    mine, wanted = (torch.autograd.grad(m(x).sum(), list(m.parameters())) for m in (model, eager))
    torch.testing.assert_close(mine, wanted)
    assert all(p.grad is None for p in model.parameters())


@behavior("E", "no gradient at all under no_grad")
def without() -> None:
    model, eager = pair(mlp())
    with torch.no_grad():
        out = model(x)
    assert not out.requires_grad
    torch.testing.assert_close(out, eager(x))


@pytest.mark.parametrize("row", rows_of("CE"))
def test_result(row: Row, request: pytest.FixtureRequest) -> None:
    run(row, request)
