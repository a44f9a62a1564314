"""`TrainingSession`: trains what `export_training_artifacts` has written, with the engine alone.

The class of C++ programs (`ortmodule/training_session.h`) behind arrays and tensors; no nn.Module is needed. Not here:
who writes artifacts (artifacts.py).
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import torch

from .. import _C
from ..errors import InvalidArgumentError
from .values import EngineOptions, session_options, tensor_of

__all__ = ["TrainingSession"]


class TrainingSession:
    """A model in training: its parameters, its optimizer and the steps that change them.

    Args:
        directory: the folder of the artifacts.
        checkpoint: a file to begin from instead of the artifacts' own.
        options: as the fields of `Options` and `SessionOptions` (`device`, `dropout`, `matmul`, `memory_budget`,
            `fusion`; `allow_aten_operators` for artifacts of a maker whom you trust).

    Raises:
        InvalidArgumentError: no such folder or file, or the checkpoint of another model.
        InvalidGraphError, UnsupportedError, ORTModuleError: a file that is broken or of a later version.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        self._session = _C.TrainingSession(os.fspath(directory), os.fspath(checkpoint or ""), session_options(options))
        self._entries: list[dict[str, Any]] = json.loads((Path(directory) / "artifacts.json").read_text())["tensors"]
        self._names = [name for name, _, _ in self._session.inputs]

    @property
    def input_names(self) -> list[str]:
        """What a step takes, in this order."""
        return list(self._names)

    @property
    def output_names(self) -> list[str]:
        """What `eval_step` returns."""
        return [name for name, _, _ in self._session.outputs]

    @property
    def parameter_names(self) -> list[str]:
        """Of the tensors that are trained."""
        return [name for name, trainable, _ in self._session.tensors if trainable]

    @property
    def tensor_names(self) -> list[str]:
        """Of all parameters and buffers; the loss's are `loss.<name>`."""
        return [name for name, _, _ in self._session.tensors]

    def train_step(self, *inputs: Any, gradient_scale: float = 1.0, **named: Any) -> torch.Tensor:
        """The loss of one batch (0-d tensor), whose gradients are added to those since `zero_grad`.

        Args:
            inputs, named: tensors or arrays in the order of `input_names`, or by those names.
            gradient_scale: what the gradients are multiplied by, for example 1 / the number of batches of a step.

        Raises:
            InvalidArgumentError: an input is missing, unknown, or of another type or shape than the graph's.
        """
        return self._session.train_step(self._values(inputs, named), gradient_scale)

    def eval_step(self, *inputs: Any, **named: Any) -> list[torch.Tensor]:
        """The loss and the module's results in evaluation mode, as `output_names` has them. Raises as `train_step`."""
        return self._session.eval_step(self._values(inputs, named))

    def zero_grad(self) -> None:
        """Lets the gradients go: the next `train_step` begins anew."""
        self._session.zero_grad()

    def clip_grad_norm(self, max_norm: float) -> float:
        """Scales all gradients so that their norm, as one vector, is at most `max_norm`; returns the norm before that.

        Both as torch.nn.utils.clip_grad_norm_ has them.

        Raises:
            InvalidArgumentError: there are no gradients, or `max_norm` is negative.
        """
        return self._session.clip_grad_norm(float(max_norm))

    def optimizer_step(self) -> None:
        """Updates each parameter that has a gradient.

        Raises:
            InvalidArgumentError: none has.
        """
        self._session.optimizer_step()

    @property
    def step_count(self) -> int:
        """How many optimizer steps there were, with those of the checkpoint."""
        return self._session.step_count

    @property
    def learning_rate(self) -> float:
        """Of the next optimizer step, for the first group of parameters; to set it sets all and ends a schedule."""
        return self._session.learning_rate(0)

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._session.set_learning_rate(float(rate), None)

    def get_learning_rate(self, group: int = 0) -> float:
        """That of one group of the optimizer's parameters."""
        return self._session.learning_rate(group)

    def set_learning_rate(self, rate: float, group: int | None = None) -> None:
        """Sets that of one group, or of all; ends a schedule."""
        self._session.set_learning_rate(float(rate), group)

    def set_linear_schedule(self, warmup_steps: int, total_steps: int) -> None:
        """From here on rates go up from zero to the present ones in `warmup_steps`, then down to zero at `total_steps`.

        Raises:
            InvalidArgumentError: `warmup_steps` is negative or not below `total_steps`.
        """
        self._session.set_linear_schedule(warmup_steps, total_steps)

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Parameters, buffers, the optimizer's states, steps, rates and schedule, in one safetensors file.

        The file is in place whole or not at all: a process that is killed meanwhile leaves what was there before.
        """
        self._session.save_checkpoint(os.fspath(path))

    def load_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Goes on from a checkpoint. Gradients stay.

        Raises:
            InvalidArgumentError: no such file, or one of another model; nothing is changed.
            ORTModuleError: the file is broken; nothing is changed.
        """
        self._session.load_checkpoint(os.fspath(path))

    def get_tensor(self, name: str) -> torch.Tensor:
        """A copy of a parameter or buffer."""
        return self._session.tensor(self._known(name))

    def get_gradient(self, name: str) -> torch.Tensor | None:
        """A copy of what has come together since `zero_grad`; None where there is nothing."""
        return self._session.gradient(self._known(name))

    def set_tensor(self, name: str, value: Any) -> None:
        """Copies `value`, of the same shape and type, into a parameter or buffer."""
        self._session.set_tensor(self._known(name), tensor_of(value))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copies of the module's parameters and buffers, as its own `state_dict` has them, for `load_state_dict`."""
        return {own: self._session.tensor(e["name"]) for e in self._entries for own in e["in_module"]}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Takes over a module's `state_dict`; the optimizer's states stay.

        Raises:
            InvalidArgumentError: a tensor is missing, unknown, or of another shape or type.
        """
        places = {own: entry["name"] for entry in self._entries for own in entry["in_module"]}
        missing, unknown = sorted(places.keys() - state.keys()), sorted(state.keys() - places.keys())
        if missing or unknown:
            raise InvalidArgumentError(f"the state_dict is another module's; missing: {missing}, unknown: {unknown}")
        for own, name in places.items():
            self._session.set_tensor(name, tensor_of(state[own]))

    def export_model_for_inference(
        self, path: str | os.PathLike[str], output_names: Sequence[str] | None = None
    ) -> None:
        """Writes the module in evaluation mode, with the present parameters in it, as an ONNX model.

        Any runtime reads it, unless the export of the artifacts warned of an operator that no standard has. From 1 GiB
        on the weights lie beside it, in `<path>.data`.

        Args:
            path: the file.
            output_names: the outputs to keep; None: all.

        Raises:
            InvalidArgumentError: an output that there is not.
        """
        self._session.export_model_for_inference(os.fspath(path), list(output_names or []))

    def _known(self, name: str) -> str:
        names = self.tensor_names
        if name not in names:
            near = difflib.get_close_matches(name, names, 1, 0.0)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidArgumentError(f"the model has no tensor {name!r}{hint}")
        return name

    def _values(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> list[torch.Tensor]:
        rest = self._names[len(inputs) :]
        if len(inputs) > len(self._names) or set(named) != set(rest):
            raise InvalidArgumentError(
                f"a step takes {self._names}, got {len(inputs)} by position and {sorted(named)} by name"
            )
        return [tensor_of(value) for value in (*inputs, *(named[name] for name in rest))]
