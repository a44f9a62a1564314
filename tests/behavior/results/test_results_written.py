"""What a result is: its memory, which object it is, its place in autograd's graph; and a result that is written."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from ..scenario import Net, check, state
from ..table import rand


class Running(Net):
    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run = run
        self.constant = torch.arange(3.0)

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self, x)


def body(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.second(torch.tanh(m.first(x)))


def twice_the_same(m: Any, x: torch.Tensor) -> Any:
    y = body(m, x)
    return y, y


def the_input_itself(m: Any, x: torch.Tensor) -> Any:
    return body(m, x), x


def the_input_reshaped(m: Any, x: torch.Tensor) -> Any:
    return body(m, x), x.view(-1)


def a_part_of_the_input(m: Any, x: torch.Tensor) -> Any:
    return body(m, x), x[1:3]


def the_input_detached(m: Any, x: torch.Tensor) -> Any:
    return body(m, x), x.detach()


def a_parameter_itself(m: Any, x: torch.Tensor) -> Any:
    return body(m, x), m.first.weight


def a_parameter_transposed(m: Any, x: torch.Tensor) -> Any:
    return body(m, x), m.first.weight.t()


def a_parameter_detached(m: Any, x: torch.Tensor) -> Any:
    return body(m, x), m.first.weight.detach()


def the_data_of_a_parameter(m: Any, x: torch.Tensor) -> Any:
    return body(m, x), m.first.weight.data


def a_buffer_itself(m: Any, x: torch.Tensor) -> Any:
    return body(m, x), m.scale


def a_part_of_a_buffer(m: Any, x: torch.Tensor) -> Any:
    return body(m, x), m.scale[2:5]


def a_part_of_a_written_buffer(m: Any, x: torch.Tensor) -> Any:
    m.scale.add_(0.5)
    return body(m, x), m.scale[2:5]


def views_of_a_buffer_that_is_written_later(m: Any, x: torch.Tensor) -> Any:
    row = m.scale.view(2, 4)[1]
    row.mul_(0.5)
    y = body(m, x)
    m.scale[0] = 3
    return y, row, m.scale.detach()


def views_of_a_buffer_that_is_filled(m: Any, x: torch.Tensor) -> Any:
    with torch.no_grad():
        plain = x.detach().clone()
    m.scale.copy_(plain.sum(0).repeat(2))
    return body(m, x), m.scale.flip(0), m.scale.view(4, 2).t()


def views_of_each_other(m: Any, x: torch.Tensor) -> Any:
    y = body(m, x)
    return y, y[1:3], y.view(-1)


def parts_of_one(m: Any, x: torch.Tensor) -> Any:
    return body(m, x).split([2, 3])


def parts_of_one_by_chunk(m: Any, x: torch.Tensor) -> Any:
    return body(m, x).t().chunk(3)


def a_detached_view_of_the_result(m: Any, x: torch.Tensor) -> Any:
    y = body(m, x)
    return y, y.detach()


def expanded(m: Any, x: torch.Tensor) -> Any:
    return body(m, x).sum(0, keepdim=True).expand(4, 3)


def a_constant_of_the_module(m: Any, x: torch.Tensor) -> Any:
    return body(m, x), m.constant


def a_new_constant(m: Any, x: torch.Tensor) -> Any:
    return body(m, x), torch.ones(3), torch.arange(4.0)


def a_view_of_a_constant(m: Any, x: torch.Tensor) -> Any:
    return body(m, x), m.constant[1:]


def an_integer_result(m: Any, x: torch.Tensor) -> Any:
    y = body(m, x)
    return y, y.argmax(-1)


def what_tanh_saved(m: Any, x: torch.Tensor) -> Any:
    h = torch.tanh(m.first(x))
    return m.second(h), h


def relu_in_place(m: Any, x: torch.Tensor) -> Any:
    h = m.first(x).relu_()
    return m.second(h), h


def an_identity(m: Any, x: torch.Tensor) -> Any:
    return body(m, x), nn.functional.dropout(x, 0.5, training=False), x.contiguous(), x.to(x.dtype)


RUNS = [
    twice_the_same, the_input_itself, the_input_reshaped, a_part_of_the_input, the_input_detached, a_parameter_itself,
    a_parameter_transposed, a_parameter_detached, the_data_of_a_parameter, a_buffer_itself, a_part_of_a_buffer,
    a_part_of_a_written_buffer, views_of_a_buffer_that_is_written_later, views_of_a_buffer_that_is_filled,
    views_of_each_other, parts_of_one, parts_of_one_by_chunk, a_detached_view_of_the_result, expanded,
    a_constant_of_the_module, a_new_constant, a_view_of_a_constant, an_integer_result, what_tanh_saved, relu_in_place,
    an_identity,
]  # fmt: skip

# Whose results eager does not allow to be written: each is a view of one tensor. Here they are tensors of their own.
REFUSED = [parts_of_one, parts_of_one_by_chunk]


def parts_of(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def facts(m: Any, x: torch.Tensor, parts: list[torch.Tensor]) -> Any:
    known = [x, *parts, *m.parameters(), *m.buffers(), m.constant]
    return [
        {
            "requires_grad": y.requires_grad,
            "is_leaf": y.is_leaf,
            "grad_fn": y.grad_fn is None,
            "stride": y.stride(),
            "same as": [i for i, t in enumerate(known) if t is y],
            "memory of": [
                i for i, t in enumerate(known) if t.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
            ],
        }
        for y in parts
    ]


def looked_at(m: Any) -> Iterator[Any]:
    for grad in (True, True, False, False):
        for wanted in (False, True):
            x = rand(5, 4).requires_grad_(wanted)
            with torch.set_grad_enabled(grad):
                parts = parts_of(m(x))
            yield facts(m, x, parts), parts
            sums = [y.square().sum() for y in parts if y.requires_grad]
            if sums:
                torch.stack(sums).sum().backward()
            yield state(m), x.grad
            m.zero_grad()


def written(place: int, without: bool, wanted: bool) -> Any:
    """The result at `place` is written, and everything is used afterwards."""

    def run(m: Any) -> Iterator[Any]:
        for _ in range(2):
            leaf = rand(5, 4).requires_grad_(wanted)
            x = leaf * 1 if wanted else leaf
            parts = parts_of(m(x))
            if place >= len(parts):
                return
            with torch.set_grad_enabled(not without):
                parts[place].mul_(2)
            yield parts, x, m.constant, dict(m.named_buffers())
            sums = [y.square().sum() for y in parts if y.requires_grad]
            torch.stack([*sums, x.square().sum()]).sum().backward()
            yield state(m), leaf.grad
            m.zero_grad()
        yield parts_of(m(rand(5, 4)))

    return run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_what_a_result_is(run: Any) -> None:
    check(looked_at, lambda: Running(run), None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("without", [False, True])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("run", [run for run in RUNS if run not in REFUSED], ids=lambda run: run.__name__)
def test_a_result_that_is_written(run: Any, place: int, without: bool, wanted: bool) -> None:
    # A write into `.data` is not counted in eager; here it is, and the backward is refused.
    refusal = "modified by an inplace" if run is the_data_of_a_parameter else None
    check(written(place, without, wanted), lambda: Running(run), None, refusal=refusal)


def test_results_can_be_pickled() -> None:
    def run(m: Any) -> Iterator[Any]:
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                y = m(rand(5, 4))
            file = io.BytesIO()
            torch.save(y, file)
            file.seek(0)
            loaded = torch.load(file)
            yield loaded, loaded.requires_grad, file.getbuffer().nbytes < 4000

    check(run)
