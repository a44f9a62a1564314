"""GradientChecker: the engine's gradient of an operator against central differences and against autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .node_model import NodeModel, node_model

__all__ = ["GradientChecker"]


class GradientChecker:
    """Checks the gradient that the engine builds for one operator.

        GradientChecker("Softmax", {"axis": -1}).check([torch.rand(3, 4)], reference=lambda x: x.softmax(-1))

    Args:
        op, attributes, domain, opset, outputs, constants: as `node_model` takes them.
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
        wrt: Sequence[int] | None = None,
    ) -> None:
        self._op, self._wrt, self._constants = op, wrt, tuple(constants)
        self._how: dict[str, Any] = dict(
            attributes=attributes, domain=domain, opset=opset, outputs=outputs, constants=constants
        )

    def numeric_error(self, inputs: Sequence[torch.Tensor | None], step: float = 1e-5) -> float:
        """Largest error of the engine's gradient against central differences in float64, relative to the larger of 1
        and the gradient. Runs the operator twice per element: use small inputs, away from kinks."""
        doubles = [v.double() if v is not None and v.is_floating_point() else v for v in inputs]
        built = node_model(self._op, doubles, **self._how)
        weights, got = self._engine(built, doubles)
        forward = built.session()

        def value(changed: list[torch.Tensor | None]) -> float:
            outputs = forward.run([v for i in built.slots if (v := changed[i]) is not None])
            return sum(float((y * w).sum()) for y, w in zip(outputs, weights) if w is not None)

        worst = 0.0
        for i, gradient in got.items():
            original = doubles[i]
            assert original is not None
            for k in range(original.numel()):
                sides = []
                for sign in (1.0, -1.0):
                    moved = original.clone()
                    moved.view(-1)[k] += sign * step
                    sides.append(value([*doubles[:i], moved, *doubles[i + 1 :]]))
                numeric = (sides[0] - sides[1]) / (2 * step)
                exact = float(gradient.reshape(-1)[k])
                worst = max(worst, abs(numeric - exact) / max(1.0, abs(numeric)))
        return worst

    def autograd_error(self, inputs: Sequence[torch.Tensor | None], reference: Callable[..., Any]) -> float:
        """Largest error against autograd through `reference(*inputs)`, relative to the larger of 1 and the gradient,
        in the inputs' own types."""
        built = node_model(self._op, inputs, **self._how)
        weights, got = self._engine(built, inputs)
        leaves = [v if v is None else v.detach().clone().requires_grad_(i in got) for i, v in enumerate(inputs)]
        result = reference(*leaves)
        outputs = result if isinstance(result, tuple | list) else (result,)
        flowing = [(y, w) for y, w in zip(outputs, weights) if w is not None and y.requires_grad]
        wanted = [v for i in got if (v := leaves[i]) is not None]
        gradients = torch.autograd.grad([y for y, _ in flowing], wanted, [w for _, w in flowing], allow_unused=True)
        worst = 0.0
        for ours, theirs in zip(got.values(), gradients):
            want = torch.zeros_like(ours) if theirs is None else theirs
            error = (ours.double() - want.double()).abs() / want.double().abs().clamp(min=1.0)
            worst = max(worst, float(error.max()) if error.numel() else 0.0)
        return worst

    def check(
        self,
        inputs: Sequence[torch.Tensor | None],
        reference: Callable[..., Any] | None = None,
        tolerance: float = 1e-6,
    ) -> None:
        """Both comparisons; autograd's only with a `reference`, in float64.

        Raises:
            AssertionError: an error is above `tolerance`.
        """
        error = self.numeric_error(inputs)
        assert error <= tolerance, f"{self._op}: the gradient is off by {error:.2g} from central differences"
        if reference is not None:
            doubles = [v.double() if v is not None and v.is_floating_point() else v for v in inputs]
            error = self.autograd_error(doubles, reference)
            assert error <= tolerance, f"{self._op}: the gradient is off by {error:.2g} from autograd's"

    def _engine(
        self, built: NodeModel, inputs: Sequence[torch.Tensor | None]
    ) -> tuple[list[torch.Tensor | None], dict[int, torch.Tensor]]:
        """Weights of the outputs' projection (None: no gradient flows) and the engine's gradient per input."""
        wanted = [
            i
            for i in built.slots
            if (v := inputs[i]) is not None and v.is_floating_point() and (self._wrt is None or i in self._wrt)
        ]
        leaves = {
            i: v.detach().clone().requires_grad_(i in wanted) for i in built.slots if (v := inputs[i]) is not None
        }
        session = built.session([name for name, i in zip(built.names, built.slots) if i in wanted])
        outputs = session.run(list(leaves.values()))
        generator = torch.Generator().manual_seed(7)
        weights: list[torch.Tensor | None] = []
        for y in outputs:
            weight = torch.rand(y.shape, generator=generator, dtype=torch.float64) - 0.3
            weights.append(weight.to(y.dtype) if y.requires_grad else None)
        flowing = [(y, w) for y, w in zip(outputs, weights) if w is not None]
        assert flowing, f"{self._op}: no gradient flows to any input"
        tensors = [leaves[i] for i in wanted]
        found = torch.autograd.grad([y for y, _ in flowing], tensors, [w for _, w in flowing], allow_unused=True)
        return weights, {i: torch.zeros_like(leaves[i]) if g is None else g for i, g in zip(wanted, found)}
