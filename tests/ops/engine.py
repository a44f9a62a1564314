"""Runs a row's operator outside the checkers: for tests that compare with something else than the row's reference."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

import torch

from ortmodule.testing.node_model import NodeModel, node_model

from .driver import differentiated, reference_of, tolerance_of, where
from .table import Case, Row


def build(row: Row, case: Case, *, symbolic: bool = False) -> NodeModel:
    return node_model(
        row.name, case.inputs, case.attributes, domain=row.domain, opset=row.opset, outputs=case.outputs,
        constants=case.constants, symbolic=symbolic, nodes_of=row.nodes,
    )  # fmt: skip


def run_engine(row: Row, case: Case, inputs: Sequence[torch.Tensor | None], device: str = "cpu") -> list[torch.Tensor]:
    """The engine's outputs for `inputs` (on `device`) in place of the case's; those that require grad are trained."""
    built = build(row, case)
    values = [v for i in built.slots if (v := inputs[i]) is not None]
    trainable = [name for name, value in zip(built.names, values) if value.requires_grad]
    return list(built.session(trainable, device).run(values))


def run_reference(
    row: Row, case: Case, inputs: Sequence[torch.Tensor | None], device: str = "cpu"
) -> tuple[torch.Tensor, ...]:
    """The reference's outputs; tensors that the reference makes or takes from attributes are on `device` too."""
    attributes = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in case.attributes.items()}
    moved = dataclasses.replace(case, attributes=attributes)
    with torch.device(device) if device != "cpu" else contextlib.nullcontext():
        return reference_of(row, moved)(*inputs)


def leaves(row: Row, case: Case, device: str = "cpu") -> list[torch.Tensor | None]:
    """Fresh leaves with the case's values (and strides), requiring grad where the row differentiates."""
    wanted = differentiated(row, case)
    return [
        v if v is None else v.detach().clone(memory_format=torch.preserve_format).to(device).requires_grad_(i in wanted)
        for i, v in enumerate(case.inputs)
    ]


def seeds_of(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A fixed random gradient for each output."""
    generator = torch.Generator().manual_seed(7)
    return [torch.rand(y.shape, generator=generator, dtype=torch.float64).to(y.device, y.dtype) - 0.3 for y in outputs]


def gradients(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Gradients of a fixed random projection of the differentiable outputs."""
    flowing = [y for y in outputs if y.requires_grad]
    wanted = [x for x in inputs if x is not None and x.requires_grad]
    return list(torch.autograd.grad(flowing, wanted, seeds_of(flowing), allow_unused=True))


def assert_close(row: Row, case: Case, what: str, got: torch.Tensor, want: torch.Tensor | None) -> None:
    """Within the row's tolerance; no gradient is a gradient of zero."""
    wanted = torch.zeros_like(got) if want is None else want
    tolerance = tolerance_of(row, case, wanted.dtype) if wanted.dtype.is_floating_point else 0.0
    torch.testing.assert_close(
        got, wanted, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda m: f"{where(row, case, what)}: {m}"
    )
