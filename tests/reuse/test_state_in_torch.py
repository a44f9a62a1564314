"""What a program keeps in torch's own classes and asks of them in a forward.

What changes there is heard, or the forward runs in PyTorch.
"""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._functorch.config
import torch.multiprocessing
import torch.nn as nn
from torch.utils import _pytree as pytree
from torch.utils._ordered_set import OrderedSet
from torch.utils.weak import WeakIdKeyDictionary, WeakTensorKeyDictionary

from ortmodule import ORTModule


class Key:
    pass


class Pair:
    def __init__(self, first: float) -> None:
        self.first = first


KEY, ROWS = Key(), torch.ones(2, 4)
WEAK, BY_TENSOR = WeakIdKeyDictionary(), WeakTensorKeyDictionary()
NUMBERS = OrderedSet([1.0, 2.0])
COUNTED = torch.monitor.Stat("of a test", (torch.monitor.Aggregation.COUNT,), datetime.timedelta(hours=1))


def weigh(value: float) -> None:
    WEAK[KEY] = value


def turn_donation() -> None:
    torch._functorch.config.donated_buffer = not torch._functorch.config.donated_buffer


def take_apart() -> None:
    pytree.register_pytree_node(Pair, lambda pair: ([pair.first], None), lambda parts, _: Pair(*parts))


# What a forward asks, and what the program does between two calls.
KEPT: dict[str, tuple[Callable[[], float], Callable[[], object]]] = {
    "an ordered set": (lambda: sum(NUMBERS), lambda: NUMBERS.add(5.0)),
    "a weak dictionary": (lambda: WEAK[KEY], lambda: weigh(3.0)),
    "a weak dictionary of tensors": (lambda: float(len(BY_TENSOR) + 1), lambda: BY_TENSOR.__setitem__(ROWS, 1)),
    "a configuration": (lambda: 2.0 if torch._functorch.config.donated_buffer else 1.0, turn_donation),
    "how objects are taken apart": (
        lambda: 2.0 if isinstance(pytree.tree_leaves(Pair(1.0))[0], Pair) else 1.0, take_apart
    ),
    "a setting of another module": (
        lambda: float(len(torch.multiprocessing.get_sharing_strategy())),
        lambda: torch.multiprocessing.set_sharing_strategy("file_system"),
    ),
    "a switch of sparse tensors": (
        lambda: 2.0 if torch.sparse.check_sparse_tensor_invariants.is_enabled() else 1.0,
        torch.sparse.check_sparse_tensor_invariants.enable,
    ),
    "a switch of conversions": (
        lambda: 2.0 if torch.__future__.get_swap_module_params_on_conversion() else 1.0,
        lambda: torch.__future__.set_swap_module_params_on_conversion(True),
    ),
    "a switch of attention": (
        lambda: 2.0 if torch.backends.mha.get_fastpath_enabled() else 1.0,
        lambda: torch.backends.mha.set_fastpath_enabled(False),
    ),
    "a statistic": (lambda: 1.0 + COUNTED.count, lambda: COUNTED.add(1.0)),
}  # fmt: skip


class Net(nn.Module):
    def __init__(self, ask: Callable[..., float]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.ask = ask

    def forward(self, x: torch.Tensor, *given: Any) -> torch.Tensor:
        return self.linear(x) * self.ask(*given)


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    donated, strategy = torch._functorch.config.donated_buffer, torch.multiprocessing.get_sharing_strategy()
    weigh(2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch._functorch.config.donated_buffer = donated
    torch.multiprocessing.set_sharing_strategy(strategy)
    torch.sparse.check_sparse_tensor_invariants.disable()
    torch.__future__.set_swap_module_params_on_conversion(False)
    torch.backends.mha.set_fastpath_enabled(True)
    if Pair in pytree.SUPPORTED_NODES:
        pytree._deregister_pytree_node(Pair)


@pytest.mark.parametrize("what", KEPT)
def test_what_changes_there_is_heard(what: str) -> None:
    ask, change = KEPT[what]
    eager = Net(ask)
    model = ORTModule(eager)
    x, seen = torch.randn(2, 4), []
    for turn in range(4):
        if turn == 2:
            change()
        seen.append(eager(x))
        torch.testing.assert_close(model(x), seen[-1])
    assert not torch.equal(seen[1], seen[2])


# What a forward asks of its argument, and arguments with different answers.
ASKED: dict[str, tuple[Callable[[torch.Tensor], float], tuple[torch.Tensor, ...]]] = {
    "the order of its axes": (lambda x: x.dim_order()[0] + 1.0, (torch.ones(2, 4), torch.ones(4, 2).t())),
    "whether what is computed of it is a leaf": (
        lambda x: 2.0 if (x * 1).is_leaf else 1.0, (torch.ones(2, 4), torch.ones(2, 4, requires_grad=True))
    ),
    "whether it has a history": (
        lambda x: 2.0 if x.grad_fn is None else 1.0,
        (torch.ones(2, 4, requires_grad=True), torch.ones(2, 4, requires_grad=True) * 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ASKED)
def test_what_a_tensor_is_asked_is_a_condition(what: str) -> None:
    ask, arguments = ASKED[what]
    eager = Net(ask)
    model = ORTModule(eager)
    x = torch.randn(2, 4)
    for given in (*arguments, *arguments):
        torch.testing.assert_close(model(x, given), eager(x, given))
    assert len({ask(given) for given in arguments}) == len(arguments)
