"""What a forward asks of a tensor, a size or a layer besides its numbers has eager's answer, also when that changes."""

from __future__ import annotations

import collections.abc
import enum
import numbers
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ortmodule import ORTModule
from tests.support import exports, pair

pytestmark = pytest.mark.filterwarnings("ignore:.* run.? in PyTorch")

Tensor = torch.Tensor
CLASSES: dict[str, Callable[[Any], Any]] = {
    "type is Tensor": lambda t: type(t) is Tensor,
    "type is Parameter": lambda t: type(t) is nn.Parameter,
    "type in a tuple": lambda t: type(t) in (Tensor, nn.Parameter),
    "type as a key": lambda t: {Tensor: 1, nn.Parameter: 2}.get(type(t), 0),
    "name of the type": lambda t: len(type(t).__name__),
    "module of the type": lambda t: len(type(t).__module__),
    "subclass": lambda t: issubclass(type(t), nn.Parameter),
    "__class__": lambda t: t.__class__ is Tensor,
    "isinstance": lambda t: isinstance(t, nn.Parameter),
    "mapped": lambda t: len(set(map(type, (t, torch, 1.0)))),
    "text": lambda t: "Fake" in repr(t),
    "text in a text": lambda t: "Fake" in f"{t}",
}
TENSORS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "the argument": lambda m, x: x,
    "a result": lambda m, x: m.linear(x),
    "a weight": lambda m, x: m.linear.weight,
    "an unread weight": lambda m, x: m.unread.weight,
    "a buffer": lambda m, x: m.table,
    "a tensor outside": lambda m, x: m.held[0],
}


class Asking(nn.Module):
    def __init__(self, ask: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.unread = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("table", torch.ones(4, 4))
        self.held = [torch.ones(4, 4)]
        self.ask = ask

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x) + self.table.sum() + self.held[0].sum()
        return y * (1 + int(self.ask(self, x)))


def follows(module: Asking, change: Callable[[Any], Any] = lambda m: None, batches: tuple[int, ...] = (3,)) -> Any:
    model, eager = pair(module, fallback="eager")
    for changed in (False, True):
        for m in (model.module, eager) if changed else ():
            change(m)
        for batch in batches * 2:
            x = torch.randn(batch, 4)
            torch.testing.assert_close(model(x), eager(x))
    return model


@pytest.mark.parametrize("tensor", TENSORS)
@pytest.mark.parametrize("question", CLASSES)
def test_a_tensor_has_the_class_that_it_has_in_eager(question: str, tensor: str) -> None:
    ask, get = CLASSES[question], TENSORS[tensor]
    follows(Asking(lambda m, x: ask(get(m, x))))


def _matched(value: Any) -> int:
    match value:
        case int():
            return 2
        case Tensor():
            return 3
    return 4


class Sizes(enum.IntEnum):
    THREE = 3
    FOUR = 4


SIZES: dict[str, Callable[[Any], Any]] = {
    "isinstance int": lambda n: isinstance(n, int),
    "isinstance of a union": lambda n: isinstance(n, int | float),
    "isinstance of a number": lambda n: isinstance(n, numbers.Number),
    "isinstance of an iterable": lambda n: isinstance(n, collections.abc.Iterable),
    "type": lambda n: type(n) is int,
    "half of it": lambda n: isinstance(n / 2, float),
    "a comparison": lambda n: isinstance(n > 1, bool),
    "__class__": lambda n: n.__class__ is int,
    "match": _matched,
    "key": lambda n: {int: 3}.get(type(n), 1),
    "equal to an enum's": lambda n: (n == Sizes.THREE) + (Sizes.FOUR == n) * 2 + (n != 4 + 0j) * 4,
    "text": lambda n: len(str(n)) + len(repr(n)) + len(f"{n}") + len(f"{n:5d}"),
}


@pytest.mark.parametrize("question", SIZES)
def test_a_size_that_varies_is_an_int(question: str) -> None:
    ask = SIZES[question]
    model = follows(Asking(lambda m, x: ask(x.shape[0])), batches=(2, 3, 4, 11))
    fixed = question in ("text", "equal to an enum's")
    assert exports(model) == (4 if fixed else 2)
    assert model.report().fallback == "none"


def test_a_layer_and_a_class_have_their_class() -> None:
    def ask(m: Asking, x: Tensor) -> int:
        class Meta(type):
            pass

        answers = [
            type(m.linear) is nn.Linear, m.linear.__class__ is nn.Linear, type(nn.Linear) is type, type(Meta) is type,
            isinstance(nn.Linear, type), issubclass(Meta, type), type(Meta("A", (), {})) is Meta, type(type) is type,
            len(type("Made", (), {}).__name__) == 4, len({type: 1, int: 2}) == 2,
            type.mro(type(m.linear))[0] is nn.Linear,
        ]  # fmt: skip
        return sum(2**i for i, answer in enumerate(answers) if answer)

    model = follows(Asking(ask))
    assert "type" not in globals()
    assert model.report().fallback == "none"


MEMORY: dict[str, tuple[Callable[[Tensor], Any], Callable[[Tensor], Any]]] = {
    "contiguous": (lambda t: t.is_contiguous(), lambda t: setattr(t, "data", t.data.t())),
    "strides": (lambda t: t.stride()[0], lambda t: setattr(t, "data", t.data.t())),
    "contiguous when transposed": (lambda t: t.T.is_contiguous(), lambda t: setattr(t, "data", t.data.t())),
    "offset": (lambda t: t.storage_offset(), lambda t: setattr(t, "data", torch.ones(5, 4)[1:])),
    "memory": (lambda t: t.untyped_storage().size(), lambda t: setattr(t, "data", torch.ones(5, 4)[1:])),
    "address": (lambda t: t.data_ptr() % 64 == 0, lambda t: setattr(t, "data", torch.ones(5, 4)[1:])),
    "shared": (lambda t: t.is_shared(), Tensor.share_memory_),
    "hooks": (lambda t: t._backward_hooks is None, lambda t: t.requires_grad and t.register_hook(lambda g: None)),
    "view": (lambda t: t._is_view(), lambda t: None),
    "requires_grad": (lambda t: t.requires_grad, lambda t: t.requires_grad_(not t.requires_grad)),
    "leaf": (lambda t: t.is_leaf, lambda t: None),
    "gradient": (lambda t: t.grad is None, lambda t: setattr(t, "grad", torch.ones_like(t))),
    "rows": (len, lambda t: setattr(t, "data", torch.ones(8, 4))),
    "numbers": (lambda t: t.numel(), lambda t: setattr(t, "data", torch.ones(8, 4))),
    "attributes": (lambda t: hasattr(t, "mark"), lambda t: setattr(t, "mark", 1)),
}


@pytest.mark.parametrize("tensor", [name for name in TENSORS if name not in ("the argument", "a result")])
@pytest.mark.parametrize("question", MEMORY)
def test_what_changes_of_a_tensor_is_seen_where_it_was_asked(question: str, tensor: str) -> None:
    (ask, change), get = MEMORY[question], TENSORS[tensor]
    if tensor == "a weight" and question in ("rows", "numbers"):
        pytest.skip("the layer itself cannot run with that")
    x = torch.randn(3, 4)
    follows(Asking(lambda m, x: ask(get(m, x))), lambda m: change(get(m, x)))


def test_which_parameters_want_gradients_counts_those_that_are_not_read() -> None:
    count = Asking(lambda m, x: sum(p.requires_grad for p in m.parameters()))
    follows(count, lambda m: m.unread.weight.requires_grad_(False))


class Ties(nn.Module):
    """Asks which of its weights are one: two that it reads, and one that it does not."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.one, self.other, self.unread = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        if tied:
            self.one.weight = self.other.weight

    def forward(self, x: Tensor) -> Tensor:
        y = self.other(self.one(x))
        return (
            y * (2 if self.one.weight is self.other.weight else 3) * (5 if self.one.weight is self.unread.weight else 7)
        )


@pytest.mark.parametrize("tied", [False, True])
def test_a_weight_that_becomes_another_weight_of_the_module(tied: bool) -> None:
    torch.manual_seed(0)
    model, eager = pair(Ties(tied), fallback="eager")
    own = [(m.one.weight, m.other.weight, m.unread.weight) for m in (model.module, eager)]
    for place, weight in [(0, 1), (0, 2), (0, 0), (1, 0), (1, 2), (1, 1), (2, 1), (0, 1), (2, 0), (2, 2), (0, 0)]:
        for m, weights in zip((model.module, eager), own, strict=True):
            (m.one, m.other, m.unread)[place].weight = weights[weight]
        for _ in range(2):
            x = torch.randn(3, 4)
            torch.testing.assert_close(model(x), eager(x))


@pytest.mark.parametrize("ask", [lambda x: x.is_inference(), lambda x: torch.is_inference(x)])
def test_whether_a_tensor_was_made_in_inference_mode(ask: Callable[[Tensor], bool]) -> None:
    module = Asking(lambda m, x: ask(x))
    model = ORTModule(module)
    with torch.inference_mode():
        inside = torch.randn(2, 4)
    outside = torch.randn(2, 4)
    with torch.no_grad():
        for x in (outside, outside, inside, inside, outside):
            torch.testing.assert_close(model(x), module(x))


CHECKS: dict[str, Callable[[int], object]] = {
    "plain": lambda n: torch._check(n >= 3, lambda: "too few"),
    "a value": lambda n: torch._check_value(n >= 3),
    "an index": lambda n: torch._check_index(n >= 3),
    "a type": lambda n: torch._check_type(n >= 3),
    "two": lambda n: (torch._check(n >= 3), torch._check(n < 100)),
}


@pytest.mark.parametrize("of", ["item", "size", "int"])
@pytest.mark.parametrize("check", CHECKS)
def test_what_a_check_refuses_is_refused(check: str, of: str) -> None:
    numbers: dict[str, Callable[[Tensor], Any]] = {
        "item": lambda x: x.sum().item(),
        "size": lambda x: x.nonzero().shape[0],
        "int": lambda x: int(x.sum()),
    }

    def ask(m: Asking, x: Tensor) -> int:
        CHECKS[check](numbers[of](x))
        return 1

    module = Asking(ask)
    model = ORTModule(module)
    for ones in (4, 3, 2, 4, 1, 3):
        x = torch.zeros(2, 4, dtype=torch.float32)
        x.view(-1)[:ones] = 1
        errors = []
        for one in (module, model):
            try:
                one(x)
                errors.append(None)
            except Exception as error:
                errors.append(type(error))
        assert errors[0] is errors[1]
