"""Group N: custom autograd.Function, checkpoint, and parts without gradients.

Each Function's backward is on purpose not the derivative of its forward, so that a gradient computed in another way
shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.support import Lambda, pair

from .table import Row, behavior, call, compare, parity, rand, rows_of, run

Tensor = torch.Tensor


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 7 * g


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(a, b)
        return a * b, a + b

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return 10 * g * b + h, g * a + 5 * h


class Arguments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, settings: dict[str, float], pair: tuple[int, str], f: Any, none: None) -> Tensor:
        ctx.factor = settings["s"] * pair[0]
        return f(x) * ctx.factor

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None, None]:
        return g * ctx.factor, None, None, None, None


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * g


class DirtyWithSecond(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.mark_dirty(x)
        x.add_(y)
        return x, y * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * g, g + 3 * h


class WritesUnmarked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * g


class WritesBeside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(0.5)
        return x.clone() * 3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 5 * g


class NotAllDifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        order, fixed = x.sort(-1)[1], x * 3
        ctx.mark_non_differentiable(order, fixed)
        return x * 2, order, fixed

    @staticmethod
    def backward(ctx: Any, g: Tensor, *rest: Any) -> Tensor:
        return 5 * g


class Materialized(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Tensor:
        assert h is not None and h.shape == g.shape
        return 5 * g + h


class NotMaterialized(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, h: Tensor | None) -> Tensor | None:
        assert h is None
        return g * 5 if g is not None else None


class Numpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g * torch.from_numpy(np.cos(ctx.saved_tensors[0].detach().numpy()))


class NumpyTransposed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy().T.copy())

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g.T


class BranchOnData(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.factor = 2.0 if x.sum().item() > 0 else -1.0
        return x * ctx.factor

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.factor * 3


class Nested(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return Double.apply(x) + 1

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        with torch.enable_grad():
            y = ctx.saved_tensors[0].detach().requires_grad_()
            return g * torch.autograd.grad(Double.apply(y).sin().sum(), y)[0]


class Separate(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, factor: float = 2.0, on: bool = True) -> Tensor:
        return x * factor if on else x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return 2 * g * ctx.factor, None, None


class ReturnsInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 4 * g


class ReturnsView(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view(-1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 4 * g.view(-1, 4)


class RunsModule(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, module: torch.nn.Module) -> Tensor:
        ctx.module = module
        ctx.save_for_backward(x)
        with torch.no_grad():
            return module(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None]:
        with torch.enable_grad():
            y = ctx.saved_tensors[0].detach().requires_grad_()
            torch.autograd.backward(ctx.module(y), g)
        return y.grad, None


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 9 * g


class WithNone(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, None, int]:
        return x * 2, None, 3

    @staticmethod
    def backward(ctx: Any, g: Tensor, *rest: Any) -> Tensor:
        return 5 * g


class Several(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, n: int, *xs: Tensor) -> Tensor:
        ctx.n = n
        return sum(xs) * n

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor, Tensor]:
        return None, g * ctx.n, g * ctx.n * 2


class AsksWhatIsNeeded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        assert ctx.needs_input_grad == (True, False)
        return 2 * g, None


class KeepsOnContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mask, ctx.shape = x > 0, x.shape
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        assert g.shape == ctx.shape
        return 2 * g * ctx.mask


class Mixed(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * g


def same_name(factor: float) -> type[torch.autograd.Function]:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * factor

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return -factor * g

    return Scale


class Holder(torch.nn.Module):
    """Binds `apply` when it is built, before any capture."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.double = torch.nn.Linear(4, 4), Double.apply

    def forward(self, x: Tensor) -> Tensor:
        return self.double(self.linear(x))


def twice(m: Lambda, x: Tensor) -> Tensor:
    h = m.linear(x)
    return Product.apply(h, h)[0] + Product.apply(h, x)[1]


def after(function: type[torch.autograd.Function]) -> Any:
    """A forward that also reads the Function's input afterwards."""

    def forward(m: Lambda, x: Tensor) -> Tensor:
        h = m.linear(x)
        y = function.apply(h)
        return y + h

    return forward


def without_grad(m: Lambda, x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = Double.apply(m.linear(x))
    return scale * m.linear(x)


def clamped(m: Lambda, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.linear.weight.clamp_(-0.3, 0.3)
    return m.linear(x)


def through_data(m: Lambda, x: Tensor) -> Tensor:
    m.linear.bias.data.mul_(0.5).add_(0.1)
    return m.linear(x) * m.linear.weight.data.sum()


def clamped_and_read_in_backward(m: Lambda, x: Tensor) -> Tensor:
    m.linear.weight.data.clamp_(-0.3, 0.3)
    return m.linear(torch.tanh(m.linear(x)))


def hidden_write(m: Lambda, x: Tensor) -> Tensor:
    h = m.linear(x)
    with torch.no_grad():
        h.mul_(2)
    return h * h


def written_parameter(m: Lambda, x: Tensor) -> Tensor:
    return WritesBeside.apply(m.linear.bias) * m.linear(x)


a, b = rand(3, 4), rand(5, 4)
SIZES = call(a), call(a), call(b)
FORWARDS: dict[str, Any] = {
    "one in, one out": lambda m, x: Double.apply(m.linear(x)),
    "bound to an attribute beforehand": Holder(),
    "several inputs and outputs": lambda m, x: Product.apply(m.linear(x), x),
    "only one of its outputs is used": lambda m, x: Product.apply(m.linear(x), x)[1],
    "an input twice, and shared with another call": twice,
    "arguments that are no tensors": lambda m, x: Arguments.apply(m.linear(x), {"s": 3.0}, (2, "a"), torch.tanh, None),
    "a size among the arguments": lambda m, x: Several.apply(x.shape[0], m.linear(x), x),
    "in place, marked dirty": after(Dirty),
    "in place, marked dirty, with a second output": lambda m, x: DirtyWithSecond.apply(m.linear(x), x),
    "in place, not marked": lambda m, x: WritesUnmarked.apply(m.linear(x)),
    "in place, not marked and not returned, on a parameter": written_parameter,
    "outputs that are not differentiable": lambda m, x: NotAllDifferentiable.apply(m.linear(x)),
    "gradients are materialized": lambda m, x: Materialized.apply(m.linear(x))[0],
    "gradients are not materialized": lambda m, x: NotMaterialized.apply(m.linear(x))[0],
    "numpy inside": lambda m, x: Numpy.apply(m.linear(x)),
    "numpy inside, another shape": lambda m, x: NumpyTransposed.apply(m.linear(x)),
    "a branch on data inside": lambda m, x: BranchOnData.apply(m.linear(x)),
    "another Function in forward and in backward": lambda m, x: Nested.apply(m.linear(x)),
    "forward and setup_context apart, with defaults": lambda m, x: Separate.apply(m.linear(x)),
    "returns its input": after(ReturnsInput),
    "returns a view of its input": lambda m, x: ReturnsView.apply(m.linear(x)).view(-1, 4) * x,
    "runs a module and its backward": lambda m, x: RunsModule.apply(x * 2, m.linear),
    "differentiable once": lambda m, x: Once.apply(m.linear(x)),
    "returns None and a number besides": lambda m, x: WithNone.apply(m.linear(x)),
    "asks which gradients are needed": lambda m, x: AsksWhatIsNeeded.apply(m.linear(x), x),
    "keeps tensors on its context": lambda m, x: KeepsOnContext.apply(m.linear(x)),
    "under its own autocast": lambda m, x: Mixed.apply(m.linear(x)),
    "two of one name": lambda m, x: same_name(2.0).apply(m.linear(x)) + same_name(3.0).apply(x * m.linear(x)),
    "under no_grad": without_grad,
    "inside a checkpoint": lambda m, x: checkpoint(
        lambda t: Double.apply(m.linear(t)), m.linear(x), use_reentrant=False
    ),
    "inside a reentrant checkpoint": lambda m, x: checkpoint(
        lambda t: Double.apply(m.linear(t)), m.linear(x), use_reentrant=True
    ),
    "checkpoint of a sequence": lambda m, x: checkpoint_sequential(
        [m.linear, torch.tanh, m.linear], 2, m.linear(x), use_reentrant=False
    ),
    "detach": lambda m, x: m.linear(x) * m.linear(x).detach(),
    "straight through": lambda m, x: m.linear(x) + (m.linear(x).round() - m.linear(x)).detach(),
    "a parameter written under no_grad keeps its gradient": clamped,
    "a parameter written through .data keeps its gradient": through_data,
    "a parameter written through .data is read again in backward": clamped_and_read_in_backward,
    "a value written under no_grad keeps its history": hidden_write,
}
for name, forward in FORWARDS.items():
    parity("N", name, forward, *SIZES, exports_at_most=2)


@behavior("N", "an input gets the Function's gradient")
def reaches_input() -> None:
    model, eager = pair(Lambda(lambda m, x: Double.apply(x) + 0 * m.linear(x)))
    compare(model, eager, *call(rand(2, 4).requires_grad_()))


@behavior("N", "an error in backward arrives as it is")
def error_in_backward() -> None:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            raise KeyError("from the user's backward")

    model, _ = pair(Lambda(lambda m, x: Failing.apply(m.linear(x)).sum()))
    with pytest.raises(KeyError, match="from the user's backward"):
        model(rand(2, 4)).backward()


@behavior("N", "a forward wholly under no_grad has no history")
def no_history() -> None:
    def forward(m: Lambda, x: Tensor) -> Tensor:
        with torch.no_grad():
            return Double.apply(m.linear(x))

    model, eager = pair(Lambda(forward))
    assert not model(a).requires_grad
    torch.testing.assert_close(model(a), eager(a))


@behavior("N", "evaluation gives the same")
def evaluation() -> None:
    model, eager = pair(Lambda(FORWARDS["several inputs and outputs"]))
    model.eval(), eager.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(a), eager(a))


@behavior("N", "capture leaves Function.apply as it was")
def apply_is_restored() -> None:
    code = torch.autograd.Function.apply.__func__.__code__
    model, _ = pair(Holder())
    model(a)
    assert torch.autograd.Function.apply.__func__.__code__ is code
    assert "data" not in vars(torch.Tensor)


@pytest.mark.parametrize("row", rows_of("N"))
def test_function(row: Row, request: pytest.FixtureRequest) -> None:
    run(row, request)
