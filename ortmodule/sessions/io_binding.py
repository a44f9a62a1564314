"""Inputs and outputs that are bound once and run many times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from ..errors import InvalidArgumentError, nearest
from .element_types import NodeArg, value_from
from .ort_value import OrtValue, device_of, onnx_element, tensor_at

__all__ = ["IOBinding"]


class _Bound(Protocol):
    """What a binding asks of a session."""

    device: torch.device

    def get_inputs(self) -> list[NodeArg]: ...

    def get_outputs(self) -> list[NodeArg]: ...

    def get_overridable_initializers(self) -> list[NodeArg]: ...


class IOBinding:
    """What an InferenceSession reads from and writes into when `run_with_iobinding` is called.

    A bound value's memory is the caller's: it is read at each run, and an output with a buffer is written at each run,
    straight by the node that makes it or by one copy (`copied_outputs`). An output without one gets new memory at each
    run, on the device that was named. Made by `session.io_binding()`; one belongs to one thread at a time.
    """

    def __init__(self, session: _Bound) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, torch.Tensor | torch.device] = {}
        self._results: list[OrtValue] = []
        self._copied: list[str] = []

    def bind_cpu_input(self, name: str, array: Any) -> None:
        """An array; the session's device gets a copy where it is another one.

        Raises:
            InvalidArgumentError: the model has no such input, or the array is of another type.
            UnsupportedError: an array of strings.
        """
        declared = self._input(name)
        value = OrtValue.ortvalue_from_numpy(array) if not declared.is_sequence and not declared.is_optional else None
        fits = value is not None and value.element_type() == declared.element_type
        self._inputs[name] = value_from(value.engine_value if fits and value else array, declared, self._session.device)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Memory at an address, which its owner keeps while it is bound.

        Args:
            name: the input.
            device_type, device_id: where the memory lies.
            element_type: NumPy's type, torch's, or the number in onnx.TensorProto.
            shape: the sizes.
            buffer_ptr: the address of the first element.
        """
        self._input(name)
        tensor = tensor_at(buffer_ptr, shape, onnx_element(element_type), device_of(device_type, device_id))
        self._inputs[name] = tensor.to(self._session.device)

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        """A value, whose memory is read at each run."""
        declared = self._input(name)
        if not isinstance(value, OrtValue):
            raise InvalidArgumentError(f"the input {name!r} should be an OrtValue, got {type(value).__name__}")
        self._inputs[name] = value_from(value.engine_value, declared, self._session.device)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """An output: into memory at an address, which its owner keeps while it is bound, or into new memory each time.

        Raises:
            InvalidArgumentError: the model has no such output, or an address comes without type and shape.
        """
        self._known(name, self._session.get_outputs(), "output")
        device = device_of(device_type, device_id)
        if buffer_ptr is None:
            self._outputs[name] = device
            return
        if element_type is None or shape is None:
            raise InvalidArgumentError(f"the buffer of the output {name!r} needs an element_type and a shape")
        self._outputs[name] = tensor_at(buffer_ptr, shape, onnx_element(element_type), device)

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        """Into the memory of a value at each run."""
        self._known(name, self._session.get_outputs(), "output")
        if not isinstance(value, OrtValue) or not value.is_tensor():
            raise InvalidArgumentError(f"the output {name!r} should be an OrtValue of a tensor, got {value!r}")
        self._outputs[name] = value.to_torch()

    def get_outputs(self) -> list[OrtValue]:
        """The bound outputs of the last run, in the order in which they were bound; those with buffers are these."""
        return list(self._results)

    def copied_outputs(self) -> list[str]:
        """The outputs whose results the last run copied into their buffers. All other buffers were written by the nodes
        that make the results: on the CPU from the second run of a kind on, of contiguous buffers of 32 KiB or more that
        have the result's type and share no memory with an input or another buffer, where nodes run one at a time, no
        tool looks at them, and the node is the engine's own. A result that is another one's view is copied."""
        return list(self._copied)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The same as arrays of their own."""
        return [_own_array(value) for value in self._results]

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()
        self._results.clear()
        self._copied.clear()

    def synchronize_inputs(self) -> None:
        """Waits until what was queued for the inputs' memory is done."""
        _synchronize([t.device for t in self._inputs.values() if isinstance(t, torch.Tensor)])

    def synchronize_outputs(self) -> None:
        """Waits until the outputs are there."""
        _synchronize([v.to_torch().device for v in self._results if v.is_tensor()])

    def _known(self, name: str, values: list[NodeArg], kind: str) -> NodeArg:
        for value in values:
            if value.name == name:
                return value
        names = [value.name for value in values]
        raise InvalidArgumentError(f"the model has no {kind} {name!r}; it has {names}{nearest(str(name), names)}")

    def _input(self, name: str) -> NodeArg:
        values = [*self._session.get_inputs(), *self._session.get_overridable_initializers()]
        return self._known(name, values, "input")

    def _run(self, declared: Sequence[NodeArg], infer: Any) -> None:
        """Runs `infer(values, names, buffers)`, which gives the named outputs for one value per declared input, in
        their buffers where they have one, and which of them were copied there.

        Raises:
            InvalidArgumentError: an input is not bound, nothing is bound as an output, or a buffer has another shape or
                type than the result.
        """
        missing = [value.name for value in declared if value.name not in self._inputs and not value.is_optional]
        if missing or not self._outputs:
            raise InvalidArgumentError(
                f"not bound: inputs {missing}; bind_input binds one" if missing else "no output is bound: bind_output"
            )
        names = list(self._outputs)
        buffers = [where if isinstance(where, torch.Tensor) else None for where in self._outputs.values()]
        results, copied = infer([self._inputs.get(value.name) for value in declared], names, buffers)
        self._copied = [name for name, one in zip(names, copied, strict=True) if one]
        elements = {value.name: value.element_type for value in self._session.get_outputs()}
        self._results = [
            OrtValue(_on_device(result, self._outputs[name]), elements[name])
            for name, result in zip(names, results, strict=True)
        ]


def _on_device(result: Any, where: torch.Tensor | torch.device) -> Any:
    return result.to(where) if isinstance(where, torch.device) and isinstance(result, torch.Tensor) else result


def _own_array(value: OrtValue) -> Any:
    made = value.numpy()
    return [one.copy() for one in made] if isinstance(made, list) else None if made is None else made.copy()


def _synchronize(devices: list[torch.device]) -> None:
    for device in {d for d in devices if d.type != "cpu"}:
        torch.accelerator.synchronize(device)
