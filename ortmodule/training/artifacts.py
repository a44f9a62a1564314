"""`export_training_artifacts`: a folder from which a module is trained without Python.

Its files are ONNX, JSON and safetensors; artifacts.json says what is what, and takes the place of an older one when
all others are on the disk: a folder is always a whole set. Not here: the graphs (step_graphs.py, update_rules.py), who
reads them (csrc/session/training).
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import InvalidArgumentError
from ..ortmodule import ORTModule
from .step_graphs import Loss, Step, StepGraph, StepGraphs, capture_step_graphs
from .update_rules import Group, OptimizerLike, Rule, optimizer_of, rules_of

__all__ = ["export_training_artifacts"]

MANIFEST = "artifacts.json"
_FORMAT = {"format": "ortmodule training artifacts", "version": 1}
_OURS = re.compile(r"(training|evaluation|inference|update\d+|checkpoint)\.[0-9a-f]{8}\.(onnx|safetensors)")


def export_training_artifacts(
    module: nn.Module,
    loss: Loss | None,
    optimizer: OptimizerLike,
    sample_inputs: Any,
    directory: str | os.PathLike[str],
    *,
    dynamic_axes: Mapping[str, Iterable[int]] | None = None,
) -> None:
    """Writes what `TrainingSession` trains from, in Python or C++ (`ortmodule/training_session.h`).

    A folder holds the module with its loss as one graph for training and one for evaluation, the module alone for
    inference, a graph for each group of the optimizer's parameters, and a checkpoint: parameters, buffers, and what the
    optimizer has learned so far. Frozen parameters (`requires_grad=False`, or not the optimizer's) stay as they are,
    tied ones tied. A folder that has artifacts is replaced as a whole, when the new ones are on the disk; other files
    in it stay.

    The module is traced in training mode (one that trains keeps the modes of its parts) and in evaluation mode, and
    left as it was. What its forward writes into its own inputs is left out.

    Args:
        module: what is trained; an ORTModule stands for what it wraps.
        loss: called as `loss(output, target)` with the module's result, returns a floating scalar; an nn.Module's own
            parameters are trained too. None: the module returns the loss itself: as a scalar, as `loss` or first.
        optimizer: a torch.optim.SGD, Adam or AdamW over the module's parameters (an object derived from them, such as
            ortmodule.optim.AdamW, with the same update), or a function that makes one from a list of parameters.
        sample_inputs: one call: a tuple of the module's inputs and, where there is a loss, the target behind them; or a
            dict of keyword arguments with the further key `target`. Numbers, flags and None are part of the graph.
        directory: the folder; made where it is not there.
        dynamic_axes: the axes of each input, by its name (the loss's is `target`), whose size may vary. Without it the
            first axis of every tensor, as far as the module leaves it free.

    Raises:
        InvalidArgumentError: nothing to train, a loss that is no floating scalar, unknown inputs, an optimizer of other
            tensors.
        CaptureError: the module with its loss cannot be one graph.
        UnsupportedError: another optimizer, or a forward that calls what is Python's alone.
    """
    if not isinstance(module, nn.Module):
        raise InvalidArgumentError(f"export_training_artifacts takes an nn.Module, got {type(module).__name__}")
    if isinstance(module, ORTModule):
        module = module.module
    if loss is not None and not callable(loss):
        raise InvalidArgumentError(f"the loss should be a module or a function, got {type(loss).__name__}")
    step = Step(module, loss)
    optimizer = optimizer_of(optimizer, step.parameters())
    groups, rules = rules_of(optimizer)
    graphs = capture_step_graphs(module, loss, sample_inputs, dynamic_axes)
    export = _Export(step, graphs, type(optimizer).__name__, groups, rules)
    if not export.trained.intersection(graphs.training.tensors):
        raise InvalidArgumentError(f"no parameter of {type(module).__name__} is both used and trained")
    export.write(Path(directory))


class _Export:
    """One set of artifacts, whose files have a token of their own in their names."""

    def __init__(self, step: Step, graphs: StepGraphs, optimizer: str, groups: list[Group], rules: list[Rule]) -> None:
        self._step, self._graphs, self._optimizer = step, graphs, optimizer
        self._groups, self._rules = groups, rules
        # Each parameter and buffer once, under its first name.
        self._tensors: dict[str, torch.Tensor] = {**dict(step.named_parameters()), **dict(step.named_buffers())}
        self._names = {id(tensor): graphs.names[name] for name, tensor in self._tensors.items()}
        self._token = secrets.token_hex(4)
        self.trained = {self._names[id(parameter)] for rule in rules for parameter in rule.parameters}

    def write(self, folder: Path) -> None:
        """All files, then what says what they are, over that of an older set."""
        folder.mkdir(parents=True, exist_ok=True)
        manifest = self._manifest()
        for kind, entry in manifest["graphs"].items():
            _write(folder / entry["file"], getattr(self._graphs, kind).proto.SerializeToString())
        for entry, rule in zip(manifest["optimizer"]["rules"], self._rules, strict=True):
            _write(folder / entry["file"], rule.proto.SerializeToString())
        _write(folder / manifest["checkpoint"], self._checkpoint())
        text = json.dumps(manifest, indent=1) + "\n"
        _write(folder / f"{MANIFEST}.{self._token}.partial", text.encode(), folder / MANIFEST)
        _remove_others(folder, self._token)

    def _manifest(self) -> dict[str, Any]:
        graphs = {kind: getattr(self._graphs, kind) for kind in ("training", "evaluation", "inference")}
        return {
            **_FORMAT,
            "checkpoint": f"checkpoint.{self._token}.safetensors",
            "graphs": {kind: self._graph(kind, one) for kind, one in graphs.items()},
            "tensors": [
                {**e, "trainable": e["name"] in self.trained} for e in _tensor_entries(self._step, self._graphs.names)
            ],
            "optimizer": {
                "type": self._optimizer,
                "groups": [{"learning_rate": group.learning_rate, **group.settings} for group in self._groups],
                "rules": [
                    {
                        "file": f"update{i}.{self._token}.onnx",
                        "group": rule.group,
                        "states": rule.states,
                        "parameters": [self._names[id(parameter)] for parameter in rule.parameters],
                    }
                    for i, rule in enumerate(self._rules)
                ],
            },
        }

    def _graph(self, kind: str, one: StepGraph) -> dict[str, Any]:
        names = {"inputs": one.inputs, "tensors": one.tensors, "outputs": one.outputs, "written": one.written}
        return {"file": f"{kind}.{self._token}.onnx", **names, "portable": one.portable}

    def _checkpoint(self) -> bytes:
        """As TrainingSession.save_checkpoint writes one."""
        from safetensors.torch import save

        def own(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.detach().cpu().contiguous().clone()

        named = {self._graphs.names[name]: own(tensor) for name, tensor in self._tensors.items()}
        for rule in self._rules:
            for parameter, states in rule.parameters.items():
                for state, value in zip(rule.states, states, strict=True):
                    named[f"optimizer/{state}/{self._names[id(parameter)]}"] = own(value)
        numbers = {"steps": 0, "learning_rates": [group.learning_rate for group in self._groups]}
        return save(named, {"format": "pt", "ortmodule.training": json.dumps(numbers)})


def _tensor_entries(step: Step, names: dict[str, str]) -> list[dict[str, Any]]:
    """`in_module`: the names that a state_dict of the module has it under; none: it is not part of one."""
    parameters = dict(step.named_parameters(remove_duplicate=False))
    every = {**parameters, **dict(step.named_buffers(remove_duplicate=False))}
    saved = step.module.state_dict(keep_vars=True)
    same: dict[int, list[str]] = {}
    for name, tensor in every.items():
        own = name.removeprefix("module.")
        listed = same.setdefault(id(tensor), [])
        if own != name and own in saved:
            listed.append(own)
    return [
        {"name": short, "kind": "parameter" if name in parameters else "buffer", "in_module": same[id(every[name])]}
        for name, short in names.items()
    ]


def _write(path: Path, content: bytes, target: Path | None = None) -> None:
    """Onto the disk, and then under the name `target`."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if target is not None:
        os.replace(path, target)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _remove_others(folder: Path, token: str) -> None:
    """Files of older artifacts, and of an export that did not come to its end."""
    for path in folder.iterdir():
        ours = _OURS.fullmatch(path.name) or path.name.startswith(f"{MANIFEST}.") and path.suffix == ".partial"
        if ours and token not in path.name:
            path.unlink(missing_ok=True)
