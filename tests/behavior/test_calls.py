"""Groups A and B: every way to pass arguments, and every kind of argument."""

from __future__ import annotations

import collections
import dataclasses
import enum
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers.modeling_outputs import BaseModelOutput

from ortmodule import ORTModule
from tests.support import Lambda, exports, pair

from .table import Row, behavior, call, compare, parity, rand, rows_of, run


def positional(m: Lambda, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return m.linear(a) - b


def star(m: Lambda, *xs: torch.Tensor) -> torch.Tensor:
    return sum((m.linear(x) for x in xs), start=m.table)


def star_star(m: Lambda, x: torch.Tensor, **extra: Any) -> torch.Tensor:
    h = m.linear(x)
    for name in sorted(extra):
        h = h * extra[name] if name != "shift" else h + extra[name]
    return h


def defaults(m: Lambda, x: torch.Tensor, scale: float = 2.0, bias: torch.Tensor | None = None) -> torch.Tensor:
    h = m.linear(x) * scale
    return h if bias is None else h + bias


def keyword_only(m: Lambda, x: torch.Tensor, *, mask: torch.Tensor, invert: bool = False) -> torch.Tensor:
    return m.linear(x) * (~mask if invert else mask)


def many(m: Lambda, a: Any = None, b: Any = None, c: Any = None, d: Any = None, e: Any = None) -> torch.Tensor:
    return m.linear(sum(x for x in (a, b, c, d, e) if x is not None))


parity("A", "one positional argument", lambda m, x: m.linear(x), call(rand(3, 4)))
parity("A", "several positional arguments", positional, call(rand(3, 4), rand(3, 4)))
parity("A", "keywords", positional, call(a=rand(3, 4), b=rand(3, 4)))
parity("A", "keywords in another order", positional, call(b=rand(3, 4), a=rand(3, 4)), call(a=rand(3, 4), b=rand(3, 4)))
parity("A", "positional and keyword", positional, call(rand(3, 4), b=rand(3, 4)))
parity("A", "the same argument once by position, once by name", positional, call(rand(3, 4), rand(3, 4)),
       call(rand(3, 4), b=rand(3, 4)), exports_at_most=2)  # fmt: skip
parity("A", "*args of changing number", star, call(rand(3, 4)), call(rand(3, 4), rand(3, 4)), call(rand(3, 4)),
       exports_at_most=2)  # fmt: skip
parity("A", "**kwargs of changing names", star_star, call(rand(3, 4), k=rand(4)), call(rand(3, 4), shift=rand(4)),
       call(rand(3, 4), k=rand(4)), exports_at_most=2)  # fmt: skip
parity("A", "**kwargs in changing order", star_star, call(rand(3, 4), k=rand(4), shift=rand(4)),
       call(rand(3, 4), shift=rand(4), k=rand(4)))  # fmt: skip
parity("A", "a default left out and given", defaults, call(rand(3, 4)), call(rand(3, 4), 3.0), call(rand(3, 4)))
parity("A", "None where a tensor may be", defaults, call(rand(3, 4), bias=None), call(rand(3, 4), bias=rand(4)))
parity("A", "keyword-only arguments", keyword_only, call(rand(3, 4), mask=rand(3, 4) > 0),
       call(rand(3, 4), mask=rand(3, 4) > 0, invert=True))  # fmt: skip
parity("A", "many arguments, most of them None", many, call(None, None, rand(3, 4)), call(rand(3, 4), e=rand(3, 4)))
parity("A", "no argument at all", lambda m: m.linear(m.table), call())
parity("A", "an argument that is not read", lambda m, x, unused: m.linear(x), call(rand(3, 4), rand(2, 2)))


@behavior("A", "a wrong call is eager's error and changes nothing")
def wrong_call() -> None:
    eager = Lambda(positional)
    model = ORTModule(Lambda(positional))
    for module in (model, eager):
        with pytest.raises(TypeError):
            module(rand(3, 4), rand(3, 4), rand(3, 4))
    compare(model, eager, *call(rand(3, 4), rand(3, 4)))


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Two(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    scale: float = 1.0


def by_name(m: Lambda, batch: dict[str, Any]) -> torch.Tensor:
    return m.linear(batch["x"]) * batch["more"][0] + (batch["none"] or 0)


x = rand(3, 4)
parity("B", "bool", lambda m, x, f: m.linear(x) if f else x * 2, call(x, True), call(x, False), call(x, True),
       exports_at_most=2)  # fmt: skip
parity("B", "int", lambda m, x, n: m.linear(x) * n, call(x, 2), call(x, 3))
parity("B", "float", lambda m, x, n: m.linear(x) * n, call(x, 0.5), call(x, 2.5))
parity("B", "str", lambda m, x, s: m.linear(x) if s == "a" else -m.linear(x), call(x, "a"), call(x, "b"))
parity("B", "an enumeration", lambda m, x, c: m.linear(x) * (2 if c is Color.RED else 3), call(x, Color.RED),
       call(x, Color.BLUE))  # fmt: skip
parity("B", "a dtype and a device", lambda m, x, d, v: m.linear(x).to(d).to(v),
       call(x, torch.float64, torch.device("cpu")))  # fmt: skip
parity("B", "a list of changing length", lambda m, xs: sum(m.linear(x) for x in xs), call([x]), call([x, x + 1]))
parity("B", "a tuple with None in it", lambda m, t: m.linear(t[0]), call((x, None)), call((x, None)))
parity("B", "a dictionary", by_name, call({"x": x, "more": [x], "none": None}))
parity("B", "an ordered and a default dictionary", lambda m, a, b: m.linear(a["x"]) * b["x"],
       call(collections.OrderedDict(x=x), collections.defaultdict(list, x=x)))  # fmt: skip
parity("B", "a named tuple", lambda m, t: m.linear(t.first) * t.second, call(Two(x, x + 1)))
parity("B", "a dataclass", lambda m, b: m.linear(b.x) * b.scale, call(Batch(x, 2.0)), call(Batch(x, 3.0)))
parity("B", "a model output of transformers", lambda m, o: m.linear(o.last_hidden_state), call(BaseModelOutput(x)))
parity("B", "a transposed, a strided and an expanded tensor", lambda m, a, b, c: m.linear(a) * b * c,
       call(rand(4, 3).t(), rand(3, 8)[:, ::2], rand(1, 4).expand(3, 4)))  # fmt: skip
parity("B", "channels last", lambda m, i: m.linear(torch.nn.functional.avg_pool2d(i, 2).mean((2, 3))),
       call(rand(2, 4, 4, 4).to(memory_format=torch.channels_last)))  # fmt: skip
parity("B", "integer, bool and uint8 tensors",
       lambda m, i, b, u: (m.linear(m.table) + m.table[i].sum(), b | (u > 3), u + 1),
       call(torch.tensor([1, 0]), torch.tensor([True, False]), torch.tensor([1, 5], dtype=torch.uint8)))  # fmt: skip
parity("B", "no element", lambda m, x: m.linear(x), call(rand(0, 4)), call(rand(3, 4)), call(rand(0, 4)))
parity("B", "a 0-d tensor", lambda m, x, s: m.linear(x) * s, call(x, torch.tensor(2.0)), call(x, torch.tensor(3.0)))
parity("B", "half precision next to float", lambda m, x, h: m.linear(x) + h.float(), call(x, x.to(torch.bfloat16)))
parity("B", "complex", lambda m, z: m.linear(torch.view_as_real(z).flatten(-2)),
       call(torch.randn(3, 2, dtype=torch.cfloat)))  # fmt: skip


@behavior("B", "the same tensor for two arguments, then two tensors")
def same_twice() -> None:
    model, eager = pair(Lambda(positional))
    a, b = rand(3, 4), rand(3, 4)
    for pairs in ((a, a), (a, b), (b, b)):
        torch.testing.assert_close(model(*pairs), eager(*pairs))
    assert exports(model) == 2  # a forward may ask whether the two are one


@behavior("B", "a packed sequence inside of a forward is part of its graph")
def packed() -> None:
    class Packed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(4, 5, batch_first=True)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            out, _ = self.lstm(pack_padded_sequence(x, lengths, batch_first=True))
            return pad_packed_sequence(out, batch_first=True)[0]

    torch.manual_seed(0)
    module = Packed()
    args = (rand(3, 6, 4), torch.tensor([6, 4, 2]))
    expected = module(*args)
    model = ORTModule(module)
    torch.testing.assert_close(model(*args), expected)
    assert model.report().fallback == "none"


@behavior("B", "an object of a class of the user's")
def user_object() -> None:
    class Point:
        def __init__(self, scale: float) -> None:
            self.scale = scale

    model, eager = pair(Lambda(lambda m, x, p: m.linear(x) * p.scale))
    for scale in (2.0, 3.0):
        compare(model, eager, *call(x, Point(scale)))


@pytest.mark.parametrize("row", rows_of("AB"))
def test_calls(row: Row, request: pytest.FixtureRequest) -> None:
    run(row, request)
