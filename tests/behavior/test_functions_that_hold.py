"""Custom autograd Functions whose forward or backward reads tensors that are no arguments, or gives no gradient."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ortmodule import ORTModule

Tensor = torch.Tensor
pytestmark = pytest.mark.filterwarnings("ignore:.* run.? in PyTorch")


@dataclasses.dataclass
class Box:
    held: Any


class OfModule(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, module: Net) -> Tensor:
        ctx.module = module
        return x * module.scale

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 3 * g * ctx.module.scale, None


class OfBox(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, box: Box) -> Tensor:
        ctx.box = box
        return x * box.held

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 3 * g * ctx.box.held, None


class OfBoxBackwards(OfBox):
    @staticmethod
    def forward(ctx: Any, x: Tensor, box: Box) -> Tensor:
        ctx.box = box
        return x * 2


class OfDict(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, table: dict[str, list[Tensor]]) -> Tensor:
        ctx.table = table
        return x * table["a"][0]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 3 * g * ctx.table["a"][0], None


class NoneForTheSecond(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        return x * y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 3 * g * ctx.saved_tensors[0], None


class Counting(torch.autograd.Function):
    """Writes into what it is given, in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, state: Any) -> Tensor:
        ctx.state = state
        return x * more(state)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 3 * g * more(ctx.state), None


class CountingBackwards(Counting):
    @staticmethod
    def forward(ctx: Any, x: Tensor, state: Any) -> Tensor:
        ctx.state = state
        return x * 2


def more(state: Any) -> int:
    if isinstance(state, dict):
        state["n"] = state.get("n", 0) + 1
        return state["n"]
    if isinstance(state, list):
        state.append(1)
        return len(state)
    state.held += 1
    return state.held


class Net(nn.Module):
    def __init__(self, forward: Callable[[Net, Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.scale, self.call = nn.Linear(4, 4), nn.Parameter(torch.full((4,), 1.5)), forward
        self.box, self.table, self.items = Box(0), {"n": 0}, [1]

    def forward(self, x: Tensor) -> Any:
        return self.call(self, x)


def around(read_in: str, what: Callable[[Net, Tensor], Tensor]) -> Callable[[Net, Tensor], Tensor]:
    def forward(m: Net, x: Tensor) -> Tensor:
        held = what(m, x)

        class Closure(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, a: Tensor) -> Tensor:
                return a * held if read_in == "forward" else a * 2

            @staticmethod
            def backward(ctx: Any, g: Tensor) -> Any:
                return 3 * g * (held if read_in == "backward" else 1)

        return Closure.apply(m.linear(x))

    return forward


def writing_around(m: Net, x: Tensor) -> Tensor:
    calls = 0

    class Closure(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return a * calls

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            nonlocal calls
            calls += 1
            return g * calls

    return Closure.apply(m.linear(x))


CALLS: dict[str, Callable[[Net, Tensor], Any]] = {
    "the module": lambda m, x: OfModule.apply(m.linear(x), m),
    "a parameter in an object": lambda m, x: OfBox.apply(m.linear(x), Box(m.scale)),
    "a value in an object": lambda m, x: OfBox.apply(m.linear(x), Box(m.scale * 2)),
    "an argument in an object, in backward": lambda m, x: OfBoxBackwards.apply(m.linear(x), Box(x)),
    "a parameter in an object, in backward": lambda m, x: OfBoxBackwards.apply(m.linear(x), Box(m.scale)),
    "in an object in a list": lambda m, x: OfBox.apply(m.linear(x), Box(Box([m.scale * 2]).held[0])),
    "in a dict": lambda m, x: OfDict.apply(m.linear(x), {"a": [m.scale * 2]}),
    "a variable around": around("forward", lambda m, x: m.scale * 2),
    "a parameter around": around("forward", lambda m, x: m.scale),
    "a variable around, in backward": around("backward", lambda m, x: x.mean()),
    "a parameter around, in backward": around("backward", lambda m, x: m.scale),
    "none for a parameter": lambda m, x: NoneForTheSecond.apply(m.linear(x), m.scale),
    "none for an input": lambda m, x: NoneForTheSecond.apply(m.linear(x.detach()), x),
    "writes a new object": lambda m, x: Counting.apply(m.linear(x), Box(0)),
    "writes a new object, backwards": lambda m, x: CountingBackwards.apply(m.linear(x), Box(0)),
    "writes a new dict": lambda m, x: Counting.apply(m.linear(x), {"n": 2}),
    "writes a new list": lambda m, x: Counting.apply(m.linear(x), [1, 1]),
    "writes an object": lambda m, x: Counting.apply(m.linear(x), m.box),
    "writes an object, backwards": lambda m, x: CountingBackwards.apply(m.linear(x), m.box),
    "writes a dict": lambda m, x: Counting.apply(m.linear(x), m.table),
    "writes a dict, backwards": lambda m, x: CountingBackwards.apply(m.linear(x), m.table),
    "writes a list": lambda m, x: Counting.apply(m.linear(x), m.items),
    "writes a variable around": writing_around,
    "none, and some of another": lambda m, x: NoneForTheSecond.apply(m.linear(x), m.scale) + x * m.scale,
}


@pytest.mark.parametrize("name", CALLS)
def test_results_and_gradients_are_eagers(name: str) -> None:
    torch.manual_seed(0)
    model = Net(CALLS[name])
    eager = copy.deepcopy(model)
    fast = ORTModule(model)
    for _ in range(3):
        x = torch.randn(2, 4)
        found = []
        for module, own in ((eager, eager), (fast, model)):
            module.zero_grad()
            given = x.clone().requires_grad_()
            result = module(given)
            result.square().sum().backward()
            found.append([result.detach(), given.grad, *(p.grad for p in own.parameters())])
        assert (eager.box, eager.table, eager.items) == (model.box, model.table, model.items)
        assert [one is None for one in found[0]] == [one is None for one in found[1]]
        for there, here in zip(*found, strict=True):
            if there is not None:
                torch.testing.assert_close(here, there)
        with torch.no_grad():
            model.scale.mul_(1.5)
            eager.scale.mul_(1.5)


RUN_IN_PYTORCH = ("a value in an object", "a variable around, in backward", "writes a new object")
RUN_IN_THE_ENGINE = (
    "the module", "in a dict", "none for a parameter", "writes a new dict", "writes an object, backwards",
)  # fmt: skip


@pytest.mark.parametrize("name", RUN_IN_PYTORCH + RUN_IN_THE_ENGINE)
def test_where_they_run(name: str) -> None:
    fast = ORTModule(Net(CALLS[name]))
    fast(torch.randn(2, 4))
    assert (fast.report().fallback == "none") is (name in RUN_IN_THE_ENGINE)
