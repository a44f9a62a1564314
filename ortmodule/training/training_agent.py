"""`TrainingAgent`: the two halves of a graph, for training loops of one's own. No autograd, no nn.Module.

Not here: a loop with optimizer and checkpoints (training_session.py), graphs as functions of C++ programs
(`ortmodule/graph_function.h`, `ortmodule/training_agent.h`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import onnx
import torch

from .. import _C
from .._C import OrtValueCache, PartialGraphExecutionState
from ..errors import InvalidArgumentError
from .values import EngineOptions, session_options, tensor_of

__all__ = ["OrtValueCache", "PartialGraphExecutionState", "TrainingAgent"]


class TrainingAgent:
    """Runs forward and backward of a graph as two calls. Several threads may share one, each with its own state.

    Args:
        model: a path, bytes of a model, or an onnx.ModelProto.
        trainable: the inputs whose gradients are wanted.
        weights: the inputs that stay the same between two updates, for a cache; those that train as a rule.
        options: as the fields of `Options` and `SessionOptions` (`device`, `dropout`, `matmul`, `memory_budget`,
            `fusion`; `allow_aten_operators` for a model of a maker whom you trust).

    Raises:
        InvalidArgumentError: no such file or input.
        InvalidGraphError, UnsupportedError: the model is broken, or has an operator that the engine lacks.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | onnx.ModelProto,
        trainable: Sequence[str],
        *,
        weights: Sequence[str] = (),
        **options: Unpack[EngineOptions],
    ) -> None:
        source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
        source = bytes(source) if isinstance(source, bytes | bytearray | memoryview) else os.fspath(source)
        self.trainable = list(trainable)
        self._agent = _C.TrainingAgent(source, self.trainable, list(weights), session_options(options))
        self.input_names = [name for name, _, _ in self._agent.inputs]
        self.output_names = [name for name, _, _ in self._agent.outputs]

    def run_forward(
        self,
        feeds: Mapping[str, Any] | Sequence[Any],
        state: PartialGraphExecutionState,
        cache: OrtValueCache | None = None,
    ) -> list[torch.Tensor]:
        """The outputs, in the graph's order and without history.

        Args:
            feeds: tensors or arrays by name, or in the order of `input_names`; None for an optional one that is absent.
            state: gets what backward needs, in place of what it had.
            cache: values that depend on `weights` alone: taken from there, or left there. Its owner empties it
                (`clear()`) when a weight has changed.

        Raises:
            InvalidArgumentError: a feed is missing, unknown, or of another type or shape than its input.
        """
        values = self._in_order(feeds, self.input_names, "inputs")
        return self._agent.run_forward(values, state, cache)

    def run_backward(
        self, gradients: Mapping[str, Any] | Sequence[Any], state: PartialGraphExecutionState
    ) -> dict[str, torch.Tensor | None]:
        """The gradients of the trainable inputs by name; None where no output depends on one. The state is used up.

        Args:
            gradients: of the outputs, by name (those that are missing have none) or in the order of `output_names`.
            state: of a forward of this agent.

        Raises:
            InvalidArgumentError: a gradient of another size or type than its output, or a state of another agent.
            ORTModuleError: the state has no forward, or somebody has written what its backward reads.
        """
        if isinstance(gradients, Mapping):
            gradients = {**dict.fromkeys(self.output_names), **gradients}
        values = self._in_order(gradients, self.output_names, "outputs")
        return dict(zip(self.trainable, self._agent.run_backward(values, state), strict=True))

    @staticmethod
    def _in_order(given: Mapping[str, Any] | Sequence[Any], names: list[str], what: str) -> list[torch.Tensor | None]:
        if isinstance(given, Mapping):
            missing, unknown = [n for n in names if n not in given], [n for n in given if n not in names]
            if missing or unknown:
                raise InvalidArgumentError(f"the {what} are {names}; missing: {missing}, unknown: {unknown}")
            given = [given[name] for name in names]
        if isinstance(given, torch.Tensor) or len(given) != len(names):
            got = "one tensor" if isinstance(given, torch.Tensor) else len(given)
            raise InvalidArgumentError(f"the graph has the {len(names)} {what} {names}, got {got}")
        return [None if value is None else tensor_of(value, "the graph") for value in given]
