"""Torch operators of a user's own library that stand for an ONNX operator: `register_operator_mapping`.

Without a mapping such an operator becomes an ATen node, which runs as PyTorch runs it. With one it becomes a node of
the ONNX operator, whose kernel and gradient come from a custom-operator library or from `register_gradient`.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from ...errors import CaptureError, InvalidArgumentError
from .emitter import Emitter
from .onnx_graph import Value, onnx_type

__all__ = ["emit", "register_operator_mapping"]

_MAPPINGS: dict[str, tuple[str, str]] = {}
_LOCK = threading.Lock()


def register_operator_mapping(torch_operator: str, domain: str, name: str) -> None:
    """Says that a torch operator in a captured module is the ONNX operator `domain::name`.

    Tensor arguments become the node's inputs in their order, all others attributes under their names in the torch
    schema; results are the node's outputs. It holds for modules that are captured from then on.

    Args:
        torch_operator: the qualified name, such as "mylib::scale" (of `torch.library.custom_op` or TORCH_LIBRARY).
        domain, name: the ONNX operator.

    Raises:
        InvalidArgumentError: no qualified name, an operator of PyTorch's own, or one mapped to another operator.
    """
    namespace, _, rest = torch_operator.partition("::")
    if not namespace or not rest or not name:
        raise InvalidArgumentError(f"a torch operator is named 'namespace::name', got {torch_operator!r} for {name!r}")
    if namespace in ("aten", "prim", "prims", "ortmodule"):
        raise InvalidArgumentError(f"{torch_operator} is no custom operator; {namespace} is translated already")
    with _LOCK:
        known = _MAPPINGS.setdefault(torch_operator, (domain, name))
    if known != (domain, name):
        raise InvalidArgumentError(f"{torch_operator} is mapped to {'::'.join(known)} already, not {domain}::{name}")


def emit(c: Emitter, target: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The mapped node of a torch operator, or NotImplemented where there is no mapping."""
    mapping = _MAPPINGS.get(target._schema.name)
    if mapping is None:
        return NotImplemented
    inputs: list[Value | None] = []
    attributes: dict[str, Any] = {}
    for i, argument in enumerate(target._schema.arguments):
        given = args[i] if i < len(args) else kwargs.get(argument.name, argument.default_value)
        if "Tensor" in str(argument.type):
            inputs.extend(given if isinstance(given, list | tuple) else [given])
        elif given is not None:
            attributes[argument.name] = _attribute(target, argument.name, given)
    domain, name = mapping
    if isinstance(c.out, torch.Tensor):
        return c.emit(name, *inputs, domain=domain, **attributes)
    if isinstance(c.out, list | tuple) and all(isinstance(o, torch.Tensor) for o in c.out):
        return c.emit_many(name, inputs, domain=domain, **attributes)
    raise CaptureError(f"the operator '{target}' returns {type(c.out).__name__}, which has no ONNX form")


def _attribute(target: torch._ops.OpOverload, name: str, given: Any) -> Any:
    if isinstance(given, torch.dtype):
        return int(onnx_type(given))
    items = given if isinstance(given, list | tuple) else [given]
    if items and all(isinstance(v, bool | int | float | str) for v in items):
        return list(given) if isinstance(given, list | tuple) else given
    raise CaptureError(f"the argument '{name}' of '{target}' ({given!r}) has no form as an attribute; pass a tensor")
