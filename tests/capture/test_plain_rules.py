"""Results that a trace with symbolic sizes makes at once: sizes, strides and types are those of torch's own rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ortmodule.capture.trace.patches.sizes import plain_rules

X = torch.randn(3, 4, 5)
MASK = X > 0
CASES: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    **{name: (lambda x, name=name: getattr(torch.ops.aten, name)(x), (X,)) for name in plain_rules._ALONE},
    "power": (lambda x: x**2, (X,)),
    "cumulated": (lambda x: x.cumsum(-1) + x.cumsum(0), (X,)),
    "softmax": (lambda x: x.softmax(1), (X,)),
    "softmax in another type": (lambda x: x.softmax(1, dtype=torch.float64), (X,)),
    "lower": (lambda x: x.tril(-1), (X,)),
    "upper": (lambda x: x.triu(), (X,)),
    "filled": (lambda x, m: x.masked_fill(m, -1.0), (X, MASK)),
    "filled by rows": (lambda x, m: x.masked_fill(m[:1, :, :1].contiguous(), float("-inf")), (X, MASK)),
    "filled by a broadcast": (lambda x, m: x[:1].contiguous().masked_fill(m, 0.0), (X, MASK)),
    "chosen": (lambda x, m: torch.where(m, x, 0.0) + torch.where(m, x * 2, x), (X, MASK)),
    "chosen by a broadcast": (lambda x, m: torch.where(m, x[:, :1].contiguous(), x[:1].contiguous()), (X, MASK)),
    "chosen in two types": (lambda x, m: torch.where(m, x, x.double()), (X, MASK)),
    "transposed": (lambda x: x.mT.exp() + x.mT.cumsum(1), (X,)),
    "expanded": (lambda x: x[:, :1].expand(3, 4, 5).sigmoid(), (X,)),
    "integers": (lambda x: x.long().cumsum(0).exp(), (X,)),
    "halves": (lambda x: torch.nn.functional.silu(x.half()), (X,)),
}


@pytest.fixture
def ruled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Within it the rules are in force; hears of the operators that they made nothing of."""
    left: list[str] = []
    original = FakeTensorMode._dispatch_impl

    def heard(self: FakeTensorMode, operator: torch._ops.OpOverload, *args: object) -> object:
        left.append(str(operator))
        return original(self, operator, *args)

    monkeypatch.setattr(FakeTensorMode, "_dispatch_impl", plain_rules._made_at_once(heard, None))
    yield left


def _results(function: Callable[..., torch.Tensor], given: tuple[torch.Tensor, ...]) -> tuple[object, ...]:
    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False)
    fakes = [mode.from_tensor(x, static_shapes=False) for x in given]
    with mode:
        made = function(*fakes)
    return str(tuple(made.shape)), str(made.stride()), made.dtype, made.device, made.storage_offset()


@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_torch(case: str, request: pytest.FixtureRequest) -> None:
    want = _results(*CASES[case])
    request.getfixturevalue("ruled")
    assert _results(*CASES[case]) == want


@pytest.mark.parametrize("case", ["exp", "power", "cumulated", "softmax", "lower", "filled", "chosen"])
def test_what_is_plain_is_made_at_once(case: str, ruled: list[str]) -> None:
    _results(*CASES[case])
    assert not {str(operator) for operator in plain_rules._RULES}.intersection(ruled)


@pytest.mark.parametrize("wrong", [lambda x: x.cumsum(3), lambda x: x.cumsum(-4), lambda x: x[0, 0].tril()])
def test_wrong_arguments_have_the_error_of_torch(wrong: Callable, ruled: list[str]) -> None:
    with pytest.raises((IndexError, RuntimeError)):
        _results(wrong, (X,))
