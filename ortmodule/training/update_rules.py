"""torch's optimizers as graphs: one that updates a parameter, for each group of parameters and each type.

A graph takes `learning_rate` (double), `parameter`, `gradient` and the states under torch's names, and gives
`new_parameter` and `new_<state>`. Settings are attributes of its one node, SGD or Adam of ai.ortmodule, which computes
what torch does, to the last bit; an attribute holds seven digits of a number.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import onnx
import torch
from onnx import helper
from torch import nn

from ortmodule.optim.native import NativeStep

from ..errors import InvalidArgumentError, UnsupportedError

__all__ = ["Group", "Rule", "optimizer_of", "rules_of"]

_TYPES = {
    torch.float32: onnx.TensorProto.FLOAT,
    torch.float64: onnx.TensorProto.DOUBLE,
    torch.float16: onnx.TensorProto.FLOAT16,
    torch.bfloat16: onnx.TensorProto.BFLOAT16,
}
_DOMAIN = "ai.ortmodule"
OptimizerLike = torch.optim.Optimizer | Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclasses.dataclass
class Group:
    """A group of an optimizer's parameters.

    Attributes:
        learning_rate: the rate to begin with.
        settings: the others, as the node's attributes.
    """

    learning_rate: float
    settings: dict[str, Any]


@dataclasses.dataclass
class Rule:
    """What updates the parameters of one group and type.

    Attributes:
        proto: the graph.
        group: the group's number.
        states: names of the states.
        parameters: by identity of each: its values of the states.
    """

    proto: onnx.ModelProto
    group: int
    states: list[str]
    parameters: dict[nn.Parameter, list[torch.Tensor]]


def optimizer_of(optimizer: OptimizerLike, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer, made for the trainable parameters where a function makes it.

    Raises:
        InvalidArgumentError: it is none, or has tensors that the module and its loss do not have.
        UnsupportedError: one of another update rule, or with hooks.
    """
    known = list(parameters)
    if not isinstance(optimizer, torch.optim.Optimizer):
        if not callable(optimizer):
            raise InvalidArgumentError(f"the optimizer should be one of torch.optim, got {type(optimizer).__name__}")
        optimizer = optimizer([p for p in known if p.requires_grad])
    if not isinstance(optimizer, torch.optim.Optimizer) or not _is_ours(optimizer):
        raise UnsupportedError(
            f"an optimizer of type {type(optimizer).__name__} has no graph; there are torch.optim's SGD, Adam and AdamW"
        )
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise UnsupportedError("the optimizer has hooks on its steps, which are Python's")
    ids = {id(p) for p in known}
    strangers = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in ids]
    if strangers:
        shapes = [list(p.shape) for p in strangers[:3]]
        raise InvalidArgumentError(f"the optimizer has {len(strangers)} tensors that are not the module's: {shapes}")
    return optimizer


def _is_ours(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the update is that of torch's class, also where a class of somebody's is derived from it."""
    base = next((c for c in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW) if isinstance(optimizer, c)), None)
    if base is None:
        return False
    return inspect.unwrap(type(optimizer).step) in (inspect.unwrap(base.step), inspect.unwrap(NativeStep.step))


def rules_of(optimizer: torch.optim.Optimizer) -> tuple[list[Group], list[Rule]]:
    """The groups and graphs of an optimizer, with what it has learned so far.

    Raises:
        UnsupportedError: a setting or a type of parameters that no graph has.
    """
    make = _sgd if isinstance(optimizer, torch.optim.SGD) else _adam
    groups, rules = [], []
    for number, given in enumerate(optimizer.param_groups):
        if given.get("differentiable"):
            raise UnsupportedError("an optimizer with differentiable=True has no graph")
        if given.get("decay", "torch") != "torch" or given.get("state_bits", 32) != 32:
            raise UnsupportedError("an optimizer with transformers' weight decay or states in 8 bits has no graph")
        settings, states = make(optimizer, given)
        common = {"weight_decay": _number(given["weight_decay"]), "maximize": int(bool(given["maximize"]))}
        group = Group(_number(given["lr"]), {**settings, **common, "fused": int(bool(given["fused"]))})
        groups.append(group)
        trained = [p for p in given["params"] if p.requires_grad]
        for dtype in dict.fromkeys(p.dtype for p in trained):
            if dtype not in _TYPES:
                raise UnsupportedError(f"parameters of type {dtype} cannot be updated by a graph")
            own = {p: _state_of(optimizer, p, states) for p in trained if p.dtype == dtype}
            op = "SGD" if make is _sgd else "Adam"
            rules.append(Rule(_graph(op, _TYPES[dtype], states, group.settings), number, states, own))
    return groups, rules


def _number(value: Any) -> float:
    return float(value)


def _sgd(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    momentum = _number(group["momentum"])
    settings = {"momentum": momentum, "dampening": _number(group["dampening"]), "nesterov": int(group["nesterov"])}
    return settings, ["step", "momentum_buffer"] if momentum != 0 else []


def _adam(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    decoupled = isinstance(optimizer, torch.optim.AdamW) or group.get("decoupled_weight_decay", False)
    settings = {
        "beta1": _number(group["betas"][0]),
        "beta2": _number(group["betas"][1]),
        "epsilon": _number(group["eps"]),
        "amsgrad": int(group["amsgrad"]),
        "decoupled": int(decoupled),
    }
    return settings, ["step", "exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else [])]


def _state_of(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, states: list[str]) -> list[torch.Tensor]:
    """As the optimizer has it or would begin with it; steps are 0-d float32."""
    known = optimizer.state.get(parameter, {})
    out = []
    for name in states:
        value = known.get(name)
        if name == "step":
            # SGD counts none: whether its momentum has begun is all that it knows.
            begun = 1.0 if known.get("momentum_buffer") is not None else 0.0
            out.append(torch.tensor(begun if value is None else float(value), dtype=torch.float32))
        else:
            out.append(torch.zeros_like(parameter) if value is None else value)
    return [tensor.detach() for tensor in out]


def _graph(op: str, dtype: int, states: list[str], settings: dict[str, Any]) -> onnx.ModelProto:
    def info(name: str) -> onnx.ValueInfoProto:
        if name.removeprefix("new_") == "step":
            return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [])
        return helper.make_tensor_value_info(name, dtype, None)

    inputs = ["learning_rate", "parameter", "gradient", *states]
    outputs = ["new_parameter", *(f"new_{state}" for state in states)]
    node = helper.make_node(op, inputs, outputs, domain=_DOMAIN, in_place=1, **settings)
    rate = helper.make_tensor_value_info("learning_rate", onnx.TensorProto.DOUBLE, [])
    graph = helper.make_graph([node], "update", [rate, *map(info, inputs[1:])], [info(name) for name in outputs])
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(_DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="ortmodule")
