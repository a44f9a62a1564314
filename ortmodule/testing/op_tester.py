"""OpTester: one call of an operator, its inputs and the outputs that it must give."""

from __future__ import annotations

from typing import Any

import torch

from .declared import check_declared
from .node_model import NodesOf, node_model

__all__ = ["OpTester", "other_strides"]

# Relative and absolute, by the type of the output.
_TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


class OpTester:
    """Collects inputs, attributes and expected outputs of one operator, and runs it in the engine.

        test = OpTester("Gemm")
        test.add_input(a).add_input(b).add_attribute("transB", 1).add_output(a @ b.T)
        test.run()

    Args:
        op: the operator's name.
        opset: version of ai.onnx that the model imports.
        domain: the operator's domain; "" is ai.onnx.
        nodes_of: as `node_model` takes it.
    """

    def __init__(self, op: str, opset: int = 23, domain: str = "", nodes_of: NodesOf | None = None) -> None:
        self._op, self._opset, self._domain, self._nodes_of = op, opset, domain, nodes_of
        self._inputs: list[torch.Tensor | None] = []
        self._constants: list[int] = []
        self._attributes: dict[str, Any] = {}
        self._outputs: list[torch.Tensor | None] = []

    def add_input(self, value: torch.Tensor | None, *, constant: bool = False) -> OpTester:
        """The next input; None: an optional one that is absent. `constant`: an initializer of the model."""
        if constant:
            self._constants.append(len(self._inputs))
        self._inputs.append(value)
        return self

    def add_attribute(self, name: str, value: Any) -> OpTester:
        """An attribute: int, float, string, list of those, torch.Tensor, or torch.dtype for a data type."""
        self._attributes[name] = value
        return self

    def add_output(self, expected: torch.Tensor | None) -> OpTester:
        """The next output's expected value; None: it is computed and not compared."""
        self._outputs.append(expected)
        return self

    def run(
        self,
        rtol: float | None = None,
        atol: float | None = None,
        device: str = "cpu",
        *,
        symbolic: bool = False,
        identity_inputs: bool = False,
        strided: bool = False,
    ) -> list[torch.Tensor]:
        """Runs the operator on `device` and compares values, types and what its rule declares; the outputs.

        Random operators start from the state of torch's generator.

        Args:
            rtol, atol: for the compared outputs; by default what rounding of their type allows.
            symbolic, identity_inputs: as `node_model` takes them.
            strided: runs once more on the same values with other strides.

        Raises:
            AssertionError: an output differs in type, shape or value, or an input was written over.
            ORTModuleError: the operator is unknown, or refuses the inputs.
        """
        built = node_model(
            self._op,
            self._inputs,
            self._attributes,
            domain=self._domain,
            opset=self._opset,
            outputs=len(self._outputs),
            constants=self._constants,
            symbolic=symbolic,
            identity_inputs=identity_inputs,
            nodes_of=self._nodes_of,
        )
        session = built.session(device=device, keep_stages=True)
        values = [v.to(device) for i in built.slots if (v := self._inputs[i]) is not None]
        state = torch.get_rng_state()
        first: list[torch.Tensor] = []
        for operands in [values, [other_strides(v) for v in values]] if strided else [values]:
            torch.set_rng_state(state)
            before = [v.clone() for v in operands]
            got = list(session.run(operands))
            self._compare(got, rtol, atol)
            for i, value, kept in zip(built.slots, operands, before):
                assert torch.equal(_bytes(value), _bytes(kept)), f"{self._op}: input {i} was written over"
            first = first or got
            if not torch.equal(state, torch.get_rng_state()):
                break  # which element gets which draw depends on the strides
        check_declared(self._op, session, [v for v in self._inputs if v is not None], first)
        return first

    def _compare(self, got: list[torch.Tensor], rtol: float | None, atol: float | None) -> None:
        for k, (value, want) in enumerate(zip(got, self._outputs, strict=True)):
            if want is None:
                continue
            assert value.dtype == want.dtype, f"{self._op}: output {k} is {value.dtype}, expected {want.dtype}"
            tolerance = _TOLERANCES.get(want.dtype, 0.0)
            relative, absolute = tolerance if rtol is None else rtol, tolerance if atol is None else atol
            try:
                torch.testing.assert_close(value.cpu(), want.cpu(), rtol=relative, atol=absolute, equal_nan=True)
            except AssertionError as error:
                raise AssertionError(f"{self._op}: output {k}: {error}") from None


def _bytes(value: torch.Tensor) -> torch.Tensor:
    return value.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def other_strides(value: torch.Tensor) -> torch.Tensor:
    """The same elements, not contiguous wherever there are two of them along an axis."""
    if value.dim() == 0:
        return value
    if value.dim() == 1:
        return torch.stack([value, value], 1)[:, 0]
    return value.transpose(-1, -2).contiguous().transpose(-1, -2)
