"""Arguments that share memory: a tensor twice, a view and its base, parts that overlap, the module's own parameters and
buffers. Forwards that read them and such that write them, in turns with calls of the same sizes that share nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from .scenario import Net, check, state
from .table import rand


class Running(Net):
    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run = run
        self.square = torch.nn.Parameter(rand(4, 4))
        self.table = torch.nn.Buffer(rand(4, 4))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
        return self.run(self, a, b)


def reads(m: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    return m.first(a) + m.first(b * 2)


def compares(m: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    return m.first(a) * (2 if a is b else 3) + m.first(b)


def asks_for_memory(m: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    return m.first(a) * (2 if a.data_ptr() == b.data_ptr() else 3) + m.first(b)


def compares_with_parameter(m: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    return m.first(a) * (2 if a is m.square else 3) + m.first(b) * (2 if b is m.table else 3)


def uses_parameter(m: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    return m.first(a @ m.square) + m.first(b + m.table)


def writes_first(m: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    with torch.no_grad():
        a.mul_(2)
    return m.first(a) + m.first(b)


def writes_second(m: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    with torch.no_grad():
        b.add_(1)
    return m.first(a) - m.first(b)


def writes_both(m: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    with torch.no_grad():
        a.mul_(2)
        b.add_(1)
    return m.first(a) - m.first(b)


def reads_then_writes(m: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    y = m.first(b.clone())
    with torch.no_grad():
        a.mul_(2)
    return y + m.first(b.detach())


def writes_buffer(m: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    with torch.no_grad():
        m.table.mul_(2)
    return m.first(a) + m.first(b)


def writes_parameter(m: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    with torch.no_grad():
        m.square.mul_(0.5)
    return m.first(a) + m.first(b) + m.first(m.square)


def returns_both(m: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    return m.first(a) + m.first(b), a, b


def returns_views(m: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    return m.first(a) + m.first(b), a[1:], b.t()


RUNS = [
    reads, compares, asks_for_memory, compares_with_parameter, uses_parameter, writes_first, writes_second, writes_both,
    reads_then_writes, writes_buffer, writes_parameter, returns_both, returns_views,
]  # fmt: skip


def apart(m: Any) -> Any:
    return rand(4, 4), rand(4, 4)


def the_same(m: Any) -> Any:
    a = rand(4, 4)
    return a, a


def view_of_all(m: Any) -> Any:
    a = rand(4, 4)
    return a, a.view(4, 4)


def base_and_part(m: Any) -> Any:
    a = rand(8, 4)
    return a[:4], a[2:6]


def parts_that_touch_not(m: Any) -> Any:
    a = rand(8, 4)
    return a[:4], a[4:]


def transposed(m: Any) -> Any:
    a = rand(4, 4)
    return a, a.t()


def detached(m: Any) -> Any:
    a = rand(4, 4)
    return a.detach(), a


def parameter(m: Any) -> Any:
    return m.square, rand(4, 4)


def parameter_twice(m: Any) -> Any:
    return m.square, m.square


def data_of_parameter(m: Any) -> Any:
    return m.square.data, rand(4, 4)


def buffer(m: Any) -> Any:
    return rand(4, 4), m.table


def parameter_and_buffer(m: Any) -> Any:
    return m.square, m.table


def overlaps_itself(m: Any) -> Any:
    return rand(1, 4).expand(4, 4), rand(4, 4)


PAIRS: list[Callable[[Any], Any]] = [
    the_same, view_of_all, base_and_part, parts_that_touch_not, transposed, detached, parameter, parameter_twice,
    data_of_parameter, buffer, parameter_and_buffer, overlaps_itself,
]  # fmt: skip


def in_turns(wanted: bool) -> Any:
    """Every kind of arguments, each twice, with calls in between that share nothing."""

    def run(m: Any) -> Iterator[Any]:
        for make in [apart, *(kind for one in PAIRS for kind in (one, apart, one))]:
            a, b = make(m)
            leaves = [t for t in (a, b) if wanted and t.is_leaf and not t.requires_grad and t is not m.table]
            for t in leaves:
                t.requires_grad_()
            versions = a._version, b._version
            try:
                result = m(a, b)
            except RuntimeError:  # a leaf that wants a gradient is written
                yield make.__name__, "refused"
                result = ()
            parts = result if isinstance(result, tuple) else (result,)
            changed = [t._version > v for t, v in zip((a, b), versions, strict=True)]
            yield make.__name__, parts, a, b, [(p is a, p is b) for p in parts], changed
            if parts and parts[0].requires_grad:
                sum(p.square().sum() for p in parts if p.requires_grad).backward()  # type: ignore[union-attr]
            yield make.__name__, state(m), a.grad if a.is_leaf else None, b.grad if b.is_leaf else None
            m.zero_grad()

    return run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wanted", [False, True], ids=["data", "wanted"])
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_arguments_that_share_memory(run: Any, wanted: bool) -> None:
    check(in_turns(wanted), lambda: Running(run), None)


def test_a_parameter_is_another_argument_than_a_tensor() -> None:
    class Asks(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.first(x) * (2 if isinstance(x, torch.nn.Parameter) else 3)

    def run(m: Any) -> Iterator[Any]:
        plain = rand(3, 4)
        given = torch.nn.Parameter(plain.clone(), requires_grad=False)
        for x in (plain, plain, given, given, given, plain, given, plain, plain):
            yield m(x)

    check(run, Asks, None)
