"""OpTester: one call of an operator, its inputs and the outputs that it must give."""

from __future__ import annotations

from typing import Any

import torch

from .node_model import node_model

__all__ = ["OpTester"]

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
    """

    def __init__(self, op: str, opset: int = 23, domain: str = "") -> None:
        self._op, self._opset, self._domain = op, opset, domain
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

    def run(self, rtol: float | None = None, atol: float | None = None, device: str = "cpu") -> list[torch.Tensor]:
        """Runs the operator on `device` and compares; the outputs.

        Raises:
            AssertionError: an output differs in type, shape or value (by default more than its type's rounding).
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
        )
        values = [v.to(device) for i in built.slots if (v := self._inputs[i]) is not None]
        got = list(built.session(device=device).run(values))
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
        return got
