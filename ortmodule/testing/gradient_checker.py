"""GradientChecker: the engine's gradient of an operator against differences of its values and against autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .node_model import NodeModel, NodesOf, node_model

__all__ = ["GradientChecker"]

Tensors = Sequence[torch.Tensor | None]

# f'(x) h = sum of c * f(x + s h), exact for polynomials of degree 4 (five points, the middle one weighs nothing).
_STENCIL = ((1.0, 8 / 12), (-1.0, -8 / 12), (2.0, -1 / 12), (-2.0, 1 / 12))


class GradientChecker:
    """Checks the gradient that the engine builds for one operator.

        GradientChecker("Softmax", {"axis": -1}).check([torch.rand(3, 4)], reference=lambda x: x.softmax(-1))

    Both comparisons weigh the outputs with fixed random numbers. Random operators draw the same numbers in every run.

    Args:
        op, attributes, domain, opset, outputs, constants, nodes_of: as `node_model` takes them.
        wrt: inputs that are differentiated; by default every floating one that is no constant.
    """

    def __init__(
        self,
        op: str,
        attributes: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
        opset: int = 23,
        outputs: int = 1,
        constants: Sequence[int] = (),
        nodes_of: NodesOf | None = None,
        wrt: Sequence[int] | None = None,
    ) -> None:
        self._op, self._wrt, self._constants = op, wrt, tuple(constants)
        self._how: dict[str, Any] = dict(
            attributes=attributes, domain=domain, opset=opset, outputs=outputs, constants=constants, nodes_of=nodes_of
        )
        self._built: tuple[Any, NodeModel] | None = None

    def numeric_error(self, inputs: Tensors, step: float = 1e-4, directions: int = 32) -> float:
        """Largest error of the engine's gradient against differences of its values in float64, relative to the larger
        of 1 and the gradient.

        The differences are of fourth order: with the default step they are good for about 1e-10 where the operator is
        smooth, which it should be 2 `step` around the inputs. The operator runs four times per element; an input of
        more than `directions` elements moves along that many directions instead, all elements up or down by chance.
        """
        doubles = _doubles(inputs)
        state = torch.get_rng_state()
        outputs, weights, got = self._engine(self._model(doubles), doubles)
        assert got and any(w is not None for w in weights), f"{self._op}: no gradient flows to any input"
        redraws = not torch.equal(state, torch.get_rng_state())
        built = self._model(doubles)
        forward = built.session()
        operands = [
            v.detach().clone(memory_format=torch.contiguous_format)
            for i in built.slots
            if (v := doubles[i]) is not None
        ]

        def value() -> float:
            if redraws:
                torch.set_rng_state(state)
            results = forward.run(operands)
            return sum(
                float(torch.dot(y.reshape(-1), w.reshape(-1))) for y, w in zip(results, weights) if w is not None
            )

        worst = 0.0
        for i, gradient in got.items():
            place = operands[list(built.slots).index(i)].view(-1)
            original = place.clone()
            scale = original.abs().clamp(min=1.0)
            for way in _directions(place.numel(), directions):
                move = way * scale * step
                numeric = 0.0
                for shift, weight in _STENCIL:
                    torch.add(original, move, alpha=shift, out=place)
                    numeric += weight * value()
                worst = max(worst, _relative(float(gradient.reshape(-1) @ (way * scale)), numeric / step))
            place.copy_(original)
        return worst

    def autograd_error(
        self,
        inputs: Tensors,
        reference: Callable[..., Any],
        *,
        symbolic: bool = False,
        identity_inputs: bool = False,
    ) -> float:
        """Largest error of outputs and gradients against `reference(*inputs)` and autograd through it, relative to the
        larger of 1 and the number, in the inputs' own types.

        Args:
            symbolic, identity_inputs: as `node_model` takes them.

        Raises:
            AssertionError: an output or a gradient has another type or shape.
        """
        built = self._model(inputs, symbolic=symbolic, identity_inputs=identity_inputs)
        state = torch.get_rng_state()
        results, weights, got = self._engine(built, inputs)
        leaves = [v if v is None else _leaf(v, i in got) for i, v in enumerate(inputs)]
        torch.set_rng_state(state)
        result = reference(*leaves)
        outputs = (result if isinstance(result, tuple | list) else (result,))[: len(results)]
        worst = max(
            (_error(self._op, f"output {k}", y, z) for k, (y, z) in enumerate(zip(results, outputs))), default=0
        )
        flowing = [(y, w) for y, w in zip(outputs, weights) if w is not None and y.requires_grad]
        wanted = {i: v for i in got if (v := leaves[i]) is not None}
        if not flowing:
            assert not any(g.any() for g in got.values()), f"{self._op}: a gradient flows where the reference has none"
            return worst
        gradients = torch.autograd.grad(
            [y for y, _ in flowing], list(wanted.values()), [w for _, w in flowing], allow_unused=True
        )
        for i, theirs in zip(wanted, gradients):
            want = torch.zeros_like(got[i]) if theirs is None else theirs
            worst = max(worst, _error(self._op, f"the gradient of input {i}", got[i], want))
        return worst

    def check(self, inputs: Tensors, reference: Callable[..., Any] | None = None, tolerance: float = 1e-6) -> None:
        """Both comparisons; autograd's only with a `reference`, in float64.

        Raises:
            AssertionError: an error is above `tolerance`.
        """
        error = self.numeric_error(inputs)
        assert error <= tolerance, f"{self._op}: the gradient is off by {error:.2g} from central differences"
        if reference is not None:
            error = self.autograd_error(_doubles(inputs), reference)
            assert error <= tolerance, f"{self._op}: the gradient is off by {error:.2g} from autograd's"

    def _model(self, inputs: Tensors, **how: bool) -> NodeModel:
        """The model for these inputs; the last one again where nothing but values changed."""
        key = (
            [
                v if v is None else (v.dtype, v.shape, v.tolist() if i in self._constants else 0)
                for i, v in enumerate(inputs)
            ],
            how,
        )
        if self._built is None or self._built[0] != key:
            self._built = (key, node_model(self._op, inputs, **{**self._how, **how}))
        return self._built[1]

    def _engine(
        self, built: NodeModel, inputs: Tensors
    ) -> tuple[list[torch.Tensor], list[torch.Tensor | None], dict[int, torch.Tensor]]:
        """Outputs, weights of their projection (None: no gradient flows) and the engine's gradient per input."""
        wanted = [
            i
            for i in built.slots
            if (v := inputs[i]) is not None and v.is_floating_point() and (self._wrt is None or i in self._wrt)
        ]
        leaves = {i: _leaf(v, i in wanted) for i in built.slots if (v := inputs[i]) is not None}
        session = built.session([name for name, i in zip(built.names, built.slots) if i in wanted])
        outputs = list(session.run(list(leaves.values())))
        generator = torch.Generator().manual_seed(7)
        weights: list[torch.Tensor | None] = []
        for y in outputs:
            weight = torch.rand(y.shape, generator=generator, dtype=torch.float64) - 0.3
            weights.append(weight.to(y.dtype) if y.requires_grad else None)
        flowing = [(y, w) for y, w in zip(outputs, weights) if w is not None]
        found: Sequence[torch.Tensor | None] = [None] * len(wanted)
        if flowing:
            tensors = [leaves[i] for i in wanted]
            found = torch.autograd.grad([y for y, _ in flowing], tensors, [w for _, w in flowing], allow_unused=True)
        gradients = {i: torch.zeros_like(leaves[i]) if g is None else g for i, g in zip(wanted, found)}
        return [y.detach() for y in outputs], weights, gradients


def _directions(elements: int, limit: int) -> torch.Tensor:
    """[n, elements]: each element by itself, or `limit` random signs."""
    if elements <= limit:
        return torch.eye(elements, dtype=torch.float64)
    generator = torch.Generator().manual_seed(11)
    return torch.randint(0, 2, (limit, elements), generator=generator, dtype=torch.float64) * 2 - 1


def _doubles(inputs: Tensors) -> list[torch.Tensor | None]:
    return [v.double() if v is not None and v.is_floating_point() else v for v in inputs]


def _leaf(value: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """A copy with the same strides."""
    return value.detach().clone(memory_format=torch.preserve_format).requires_grad_(requires_grad)


def _relative(got: float, want: float) -> float:
    error = abs(got - want) / max(1.0, abs(want))
    return error if error == error else float("inf")


def _error(op: str, what: str, got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest difference relative to the larger of 1 and the number; not a number is equal to itself."""
    assert got.dtype == want.dtype and got.shape == want.shape, (
        f"{op}: {what} is {got.dtype} {tuple(got.shape)}, expected {want.dtype} {tuple(want.shape)}"
    )
    ours, theirs = got.detach().double(), want.detach().double()
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    error = torch.where(same, 0.0, (ours - theirs).abs() / theirs.abs().clamp(min=1.0)).nan_to_num(float("inf"))
    return float(error.max()) if error.numel() else 0.0
