"""Inputs and outputs of every structure and kind pass through as in eager."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput

from ortmodule import ORTModule
from tests.support import Lambda, assert_same_gradients, exports, pair


@dataclasses.dataclass
class Plain:
    first: torch.Tensor
    second: torch.Tensor | None
    name: str


class Named(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


STRUCTURES = {
    "tuple": lambda m, x: (m.linear(x), x * 2),
    "list": lambda m, x: [m.linear(x)],
    "dict": lambda m, x: {"b": m.linear(x), "a": x + 1},
    "named tuple": lambda m, x: Named(m.linear(x), x * 2),
    "dataclass": lambda m, x: Plain(m.linear(x), None, "text"),
    "model output": lambda m, x: SequenceClassifierOutput(loss=m.linear(x).mean(), logits=m.linear(x)),
    "nested": lambda m, x: {"a": (m.linear(x), [x * 2, None]), "n": 3, "model": BaseModelOutput(m.linear(x))},
    "constants": lambda m, x: (m.linear(x), 3, "text", None, True, 0.5),
    "sizes": lambda m, x: (m.linear(x), x.shape[0], tuple(x.shape), x.numel() // 2),
    "empty": lambda m, x: (m.linear(x), (), {}),
}


def flat(value: Any) -> list[Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, dict):
        value = [getattr(value, f.name) for f in dataclasses.fields(value)]
    if isinstance(value, dict):
        value = [item for pair in value.items() for item in pair]
    if isinstance(value, (list, tuple)):
        return [type(value), *(leaf for item in value for leaf in flat(item))]
    return [value]


def assert_same_result(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    for mine, wanted in zip(flat(got), flat(expected), strict=True):
        assert type(mine) is type(wanted)
        if isinstance(wanted, torch.Tensor):
            assert mine.requires_grad == wanted.requires_grad
            torch.testing.assert_close(mine, wanted)
        else:
            assert mine == wanted


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_result_has_eagers_structure(name: str) -> None:
    model, eager = pair(Lambda(STRUCTURES[name]))
    for batch in (3, 5):
        x = torch.randn(batch, 4)
        assert_same_result(model(x), eager(x))


def test_a_model_output_works_by_key_index_and_attribute() -> None:
    model, _ = pair(Lambda(STRUCTURES["model output"]))
    out = model(torch.ones(2, 4))
    assert out.loss is out["loss"] is out[0]
    assert list(out.keys()) == ["loss", "logits"]


def test_structured_inputs() -> None:
    def forward(m, batch, *, extra, scale=None):
        h = m.linear(batch["x"]) + batch["more"][0] * extra.first
        return h if scale is None else h * scale

    model, eager = pair(Lambda(forward))
    batch = {"x": torch.randn(3, 4), "more": (torch.randn(3, 4), None)}
    extra = Plain(torch.randn(4), None, "text")
    for scale in (None, torch.full((), 2.0), None):
        got, expected = (module(batch, extra=extra, scale=scale) for module in (model, eager))
        torch.testing.assert_close(got, expected)
    assert exports(model) == 2, "with and without `scale`"


def test_keyword_order_does_not_matter() -> None:
    model, eager = pair(Lambda(lambda m, a, b: m.linear(a) - b))
    a, b = torch.randn(2, 4), torch.randn(2, 4)
    torch.testing.assert_close(model(a=a, b=b), eager(a, b))
    torch.testing.assert_close(model(b=b, a=a), eager(a, b))


def test_a_changed_python_value_is_not_baked_in() -> None:
    def forward(m, x, flag, count, mode="plus"):
        h = m.linear(x) * count
        h = torch.relu(h) if flag else h
        return h + 1 if mode == "plus" else h - 1

    model, eager = pair(Lambda(forward))
    x = torch.randn(3, 4)
    calls = [(True, 2, "plus"), (False, 2, "plus"), (False, 3, "plus"), (False, 3, "minus"), (True, 2, "plus")]
    for flag, count, mode in calls:
        torch.testing.assert_close(model(x, flag, count, mode=mode), eager(x, flag, count, mode=mode))
    assert exports(model) == 4, "the fifth call is the first one again"


def test_one_and_true_are_different_values() -> None:
    model, eager = pair(Lambda(lambda m, x, v: m.linear(x) * (3 if v is True else 1)))
    x = torch.randn(2, 4)
    for value in (1, True, 1.0):
        torch.testing.assert_close(model(x, value), eager(x, value))


def transposed() -> torch.Tensor:
    return torch.randn(4, 3).t()


def strided() -> torch.Tensor:
    return torch.randn(6, 8)[::2, ::2]


def expanded() -> torch.Tensor:
    return torch.randn(4).expand(3, 4)


def negated() -> torch.Tensor:
    """Its memory holds the values with the other sign."""
    return torch.randn(3, 4, dtype=torch.complex64).conj().imag


@pytest.mark.parametrize("make", [transposed, strided, expanded, negated])
def test_an_input_need_not_be_contiguous(make: Any) -> None:
    model, eager = pair(Lambda(lambda m, x: m.linear(torch.tanh(x)).square().mean()))
    dense = torch.randn(3, 4)
    for x in (dense, make(), dense):
        leaves = [x.detach().requires_grad_(), x.detach().requires_grad_()]
        for module, leaf in zip((model, eager), leaves, strict=True):
            module.zero_grad()
            module(leaf).backward()
        torch.testing.assert_close(leaves[0].grad, leaves[1].grad)
        assert_same_gradients(model, eager)


def test_channels_last_images() -> None:
    conv = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten())
    model, eager = pair(conv)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    for module in (model, eager):
        module(x).square().mean().backward()
    assert_same_gradients(model, eager)


def test_integer_and_boolean_inputs() -> None:
    def forward(m, ids, mask):
        return torch.where(mask, m.linear(torch.nn.functional.one_hot(ids, 4).float()).sum(-1), 0).sum()

    model, eager = pair(Lambda(forward))
    ids, mask = torch.tensor([0, 3, 1]), torch.tensor([True, False, True])
    for module in (model, eager):
        module(ids, mask).backward()
    assert_same_gradients(model, eager)


def test_a_zero_size_batch() -> None:
    model, eager = pair(Lambda(lambda m, x: m.linear(x)))
    for batch in (3, 0, 5, 0):
        x = torch.randn(batch, 4)
        for module in (model, eager):
            module.zero_grad()
            out = module(x)
            assert out.shape == (batch, 4)
            out.sum().backward()
        assert_same_gradients(model, eager)


def test_a_scalar_input() -> None:
    model, eager = pair(Lambda(lambda m, x, s: m.linear(x) * s))
    x = torch.randn(3, 4)
    for s in (torch.tensor(2.0), torch.tensor(-1.0)):
        torch.testing.assert_close(model(x, s), eager(x, s))


def test_the_same_tensor_twice() -> None:
    model, eager = pair(Lambda(lambda m, a, b: (m.linear(a) * b).sum()))
    gradients = []
    for module in (model, eager):
        x = torch.ones(3, 4, requires_grad=True)
        module(x, x).backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)
    other = torch.randn(3, 4)
    torch.testing.assert_close(model(torch.ones(3, 4), other), eager(torch.ones(3, 4), other))


def test_an_output_that_is_an_input_is_the_same_object() -> None:
    model, _ = pair(Lambda(lambda m, x, y: (x, m.linear(x), y, m.linear.weight, m.table)))
    for requires_grad in (False, True):
        x, y = torch.randn(3, 4, requires_grad=requires_grad), torch.tensor([1, 2])
        out = model(x, y)
        assert out[0] is x and out[2] is y
        assert out[3] is model.linear.weight and out[4] is model.table


def test_a_view_of_an_input_carries_its_gradient() -> None:
    model, eager = pair(Lambda(lambda m, x: (x.reshape(2, 6), m.linear(x))))
    gradients = []
    for module in (model, eager):
        x = torch.ones(3, 4, requires_grad=True)
        view, out = module(x)
        (view.square().sum() + out.sum()).backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


def test_one_value_returned_twice() -> None:
    def forward(m, x):
        h = torch.tanh(m.linear(x))
        return h, h

    model, eager = pair(Lambda(forward))
    for module in (model, eager):
        a, b = module(torch.ones(2, 4))
        (a.sum() + 2 * b.sum()).backward()
    assert_same_gradients(model, eager)


def test_an_output_may_be_changed_in_place_where_eager_allows_it() -> None:
    model, eager = pair(Lambda(lambda m, x: m.linear(x)))
    for module in (model, eager):
        out = module(torch.ones(2, 4))
        out.mul_(2)
        out.sum().backward()
    assert_same_gradients(model, eager)


def test_an_output_that_backward_reads_may_not_be_changed_in_place() -> None:
    for module in pair(Lambda(lambda m, x: torch.tanh(m.linear(x)))):
        out = module(torch.ones(2, 4))
        out.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_an_input_that_the_forward_writes_into_is_written() -> None:
    model, eager = pair(Lambda(lambda m, x: m.linear(x.add_(1))))
    for _ in range(2):
        x, y = torch.zeros(2, 4), torch.zeros(2, 4)
        torch.testing.assert_close(model(x), eager(y))
        assert torch.equal(x, y)


def test_another_dtype_is_another_graph() -> None:
    model, eager = pair(Lambda(lambda m, x: m.linear(x.float()) + x.mean()))
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
        x = torch.randn(3, 4).to(dtype)
        got, expected = model(x), eager(x)
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got, expected)
    assert exports(model) == 3


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    hidden: torch.Tensor | None = None
    calls: int = 0


CHANGED: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "a dict gets an entry": (lambda m, d: d.update(y=m.linear(d["x"])) or d["y"], lambda: {"x": torch.ones(3, 4)}),
    "an entry is replaced": (lambda m, d: d.update(x=m.linear(d["x"])) or d["x"], lambda: {"x": torch.ones(3, 4)}),
    "an entry goes": (lambda m, d: m.linear(d.pop("x")), lambda: {"x": torch.ones(3, 4)}),
    "a list grows": (lambda m, xs: xs.append(m.linear(xs[0])) or xs[1], lambda: [torch.ones(3, 4)]),
    "an attribute is set": (
        lambda m, b: setattr(b, "hidden", m.linear(b.x)) or b.hidden,
        lambda: Batch(torch.ones(3, 4)),
    ),
    "a number is set": (lambda m, b: setattr(b, "calls", 1) or m.linear(b.x), lambda: Batch(torch.ones(3, 4))),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_the_forward_does_to_containers_that_it_is_given_is_seen(name: str) -> None:
    forward, make = CHANGED[name]
    module = Lambda(forward)
    eager, model = copy.deepcopy(module), ORTModule(module)
    for _ in range(3):
        given = [make(), make()]
        results = [m(one) for m, one in zip((model, eager), given, strict=True)]
        torch.testing.assert_close(*results)
        for m, result in zip((model, eager), results, strict=True):
            m.zero_grad()
            result.sum().backward()
        parts = [vars(one) if isinstance(one, Batch) else one for one in given]
        torch.testing.assert_close(*parts)
        assert_same_gradients(model, eager)
