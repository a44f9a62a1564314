"""Gradient formulas in Python, in training sessions and in ORTModule, and what is said of wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from onnx import TensorProto, ValueInfoProto, helper
from torch import nn

from ortmodule import _C, InvalidArgumentError, Options, ORTModule, ORTModuleError, register_gradient


def session(op: str, inputs: int = 1, **attributes: Any) -> _C.Session:
    names = [f"x{i}" for i in range(inputs)]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], name="node", **attributes)],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["a", "b"][i:]) for i, n in enumerate(names)],
        [ValueInfoProto(name="y")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    return _C.Session(model.SerializeToString(), "training", names)


# Standard operators all have a gradient; those of a library that has none are in test_custom_op_library.py.
OPERATORS = ("Sign", "Mod", "Round", "Ceil")


@pytest.fixture(autouse=True, scope="module")
def _formulas() -> Iterator[None]:
    register_gradient("", "Sign", replace=True)(straight_through)
    register_gradient("ai.onnx", "Mod", replace=True)(mod)
    yield
    for name in OPERATORS:
        _C.remove_gradient("", name)


def straight_through(ctx: Any) -> Any:
    return ctx.node("Mul", [ctx.GO(0), 0.5])


def test_a_straight_through_gradient() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    (y,) = session("Sign").run([x])
    y.backward(torch.ones_like(y))
    torch.testing.assert_close(x.grad, torch.full((3, 4), 0.5))


SEEN: dict[str, Any] = {}


def mod(ctx: Any) -> Any:
    a, b = ctx.I(0), ctx.I(1)
    SEEN.update(
        attributes=ctx.attributes, op=ctx.op, domain=ctx.domain, shapes=(a.shape, b.shape), dtype=a.dtype,
        needs=(ctx.needs(0), ctx.needs(1)), counts=(ctx.input_count, ctx.output_count),
    )  # fmt: skip
    quotient = ctx.node("Floor", [ctx.node("Div", [ctx.node("Sub", [a, ctx.O(0)]), b])])
    db = ctx.node("Neg", [ctx.node("Mul", [ctx.GO(0), quotient])])
    return ctx.GO(0), ctx.reduce_to(db, b)


def test_it_sees_the_node_and_undoes_broadcasting() -> None:
    a = (torch.rand(3, 4) * 5).requires_grad_()
    b = (torch.rand(4) + 1).requires_grad_()
    (y,) = session("Mod", 2, fmod=1).run([a, b])
    y.backward(torch.ones_like(y))
    c, d = a.detach().clone().requires_grad_(), b.detach().clone().requires_grad_()
    torch.fmod(c, d).sum().backward()
    torch.testing.assert_close((a.grad, b.grad), (c.grad, d.grad))
    assert SEEN["attributes"] == {"fmod": 1} and (SEEN["op"], SEEN["domain"]) == ("Mod", "")
    assert SEEN["shapes"] == (("a", "b"), ("b",)) and SEEN["dtype"] == TensorProto.FLOAT
    assert SEEN["needs"] == (True, True) and SEEN["counts"] == (2, 1)


class Signs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sign(self.linear(x)).sum()


def test_it_holds_in_an_ortmodule() -> None:
    model = ORTModule(Signs(), options=Options(fallback="error"))
    model(torch.ones(2, 4)).backward()
    torch.testing.assert_close(model.linear.weight.grad, torch.ones(4, 4))


def test_an_existing_gradient_is_replaced_only_on_request() -> None:
    with pytest.raises(InvalidArgumentError, match="HardSwish has a gradient already"):
        register_gradient("", "HardSwish")(lambda ctx: None)
    with pytest.raises(InvalidArgumentError, match="Sign has a gradient already"):
        register_gradient("", "Sign")(lambda ctx: None)
    register_gradient("", "Sign", replace=True)(straight_through)


def test_a_removed_formula_is_gone() -> None:
    register_gradient("", "Ceil", replace=True)(lambda ctx: ctx.GO(0))
    _C.remove_gradient("", "Ceil")
    x = torch.randn(3, 4, requires_grad=True)
    session("Ceil").run([x])[0].sum().backward()
    assert not x.grad.any()


def test_an_unknown_operator_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no operator Flor; did you mean 'Floor'"):
        register_gradient("", "Flor")(lambda ctx: None)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        pytest.param(lambda ctx: 1 / 0, "Round failed: ZeroDivisionError", id="raises"),
        pytest.param(lambda ctx: ctx.node("Nonsense", [ctx.GO(0)]), "Round failed.*Nonsense", id="unknown operator"),
        pytest.param(lambda ctx: ctx.I(7), "Round failed.*no input 7", id="unknown input"),
        pytest.param(lambda ctx: "text", "Round returned str", id="no value"),
        pytest.param(lambda ctx: (ctx.GO(0), None), "Round returned 2 values for 1 inputs", id="too many"),
        pytest.param(
            lambda ctx: ctx.node("Cast", [ctx.GO(0)], to=TensorProto.DOUBLE), "Round gives input 0.*double", id="type"
        ),
        pytest.param(
            lambda ctx: ctx.node("ReduceSum", [ctx.GO(0)], keepdims=0), "Round gives input 0", id="shape"
        ),
    ],
)  # fmt: skip
def test_a_formula_that_is_wrong_names_its_operator(result: Any, words: str) -> None:
    register_gradient("", "Round", replace=True)(result)
    with pytest.raises(ORTModuleError, match=words):
        session("Round")


def test_values_do_not_outlive_their_formula() -> None:
    kept: list[Any] = []

    @register_gradient("", "Ceil", replace=True)
    def formula(ctx: Any) -> Any:
        kept.extend([ctx, ctx.GO(0)])
        return ctx.GO(0)

    session("Ceil")
    with pytest.raises(InvalidArgumentError, match="after the formula returned"):
        kept[0].I(0)
    with pytest.raises(InvalidArgumentError, match="after the formula returned"):
        _ = kept[1].shape
