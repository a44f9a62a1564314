"""A captured graph as plain data, and back: JSON for what describes it, bytes for the model and the constants.

Nothing is pickled and nothing of an entry is executed: classes of the module's result are looked up among those that
the process has loaded, conditions on sizes are checked to be comparisons before they are compiled. What has no plain
form (a result of a class that cannot be named, a Python function in the graph) raises `NotStorable`; an entry that does
not fit the module at hand raises `Unfit`. Not here: files (cache.py), which entry is looked up (key.py).
"""

from __future__ import annotations

import ast
import collections
import sys
from collections.abc import Sequence
from typing import Any

import onnx
import torch
from torch.utils import _pytree as pytree

from ...capture import Captured, OutputRef, ResultOrder
from ...capture.containers.plain_objects import take_class_apart
from ...capture.convert.onnx_graph import ATEN, ONNX_TYPES
from ...capture.guards import compile_check
from ..conditions import NotStorable

__all__ = ["NotStorable", "Unfit", "attribute_of", "restore", "store"]

_DTYPES = {str(dtype): dtype for dtype in ONNX_TYPES}
_CONDITION = (
    ast.Expression, ast.Compare, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Constant, ast.Name, ast.Attribute, ast.Load,
    ast.Subscript, ast.Call, ast.IfExp, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
_CALLED = {"size", "storage_offset", "stride", "max", "min", "abs", "int", "float", "floor", "ceil", "trunc", "sqrt",
           "sym_max", "sym_min", "sym_int", "sym_float", "sym_not", "Max", "Min", "Mod", "FloorDiv"}  # fmt: skip
_NAMES = {"L", "torch", "math", *_CALLED}


class Unfit(Exception):
    """The entry is not one of this module and call; the text says why."""


def store(captured: Captured, module: torch.nn.Module) -> tuple[dict[str, Any], dict[str, bytes]]:
    """(JSON facts, named byte sections) of a captured graph.

    Raises:
        NotStorable: something in it is no plain data.
    """
    if captured.needs_python:
        raise NotStorable("the graph calls a custom autograd.Function")
    for node in captured.model.graph.node:
        if node.domain == ATEN:
            name = next(a.s.decode() for a in node.attribute if a.name == "operator")
            if name.partition("::")[0] not in ("aten", "prims"):
                raise NotStorable(f"the graph calls the custom operator {name}")
    if captured.flags or captured.branches:
        raise NotStorable("the graph holds for some values of a tensor only")
    if captured.left:
        raise NotStorable("the forward sets attributes of its modules")
    if captured.needs_given:
        raise NotStorable("the forward changes or returns what it is given")
    sections = {"model": captured.model.SerializeToString()}
    constants: dict[str, Any] = {}
    for name, tensor in captured.constants.items():
        place = attribute_of(module, tensor)
        made = name.rpartition(".")[2].startswith("lifted_tensor")  # in the forward, be it that of a sub-module
        if place is None and (tensor.requires_grad or not made):
            raise NotStorable(f"the constant '{name}' is a tensor of the program, not of the module")
        if place is None:
            sections[f"constant {name}"] = _bytes_of(tensor)
        constants[name] = {"place": place, "dtype": str(tensor.dtype), "shape": list(tensor.shape),
                           "device": str(tensor.device)}  # fmt: skip
    if any(ref.view is not None for ref in captured.outputs):
        raise NotStorable("a result is a view of another tensor")
    if captured.messages:
        raise NotStorable("the forward says something at each call")
    facts = {
        "user_inputs": captured.user_inputs,
        "parameters": captured.parameters,
        "buffers": captured.buffers,
        "constants": constants,
        "outputs": [[o.kind, o.name, o.flat_index, _encoded(o.value)] for o in captured.outputs],
        "mutations": captured.mutations,
        "out_spec": _spec_to_data(captured.out_spec),
        "settings": captured.settings,
        "guards": captured.guards,
        "specialized": captured.specialized,
        "hook_order": captured.hook_order,
        "histories": captured.histories,
        "recorded": captured.recorded,
        "saved_writes": captured.saved_writes,
        "saved_left": captured.saved_left,
        "result_order": [captured.result_order.pairs, captured.result_order.sequence],
    }
    if _spec_from_data(facts["out_spec"]) != captured.out_spec:
        raise NotStorable("the structure of the module's result has no plain form")
    for condition in captured.guards:
        _checked_condition(condition)
    return facts, sections


def restore(
    facts: dict[str, Any],
    sections: dict[str, bytes],
    module: torch.nn.Module,
    leaves: Sequence[Any],
    in_spec: pytree.TreeSpec,
) -> Captured:
    """The captured graph of an entry, bound to `module` and a call with these leaves.

    Raises:
        Unfit: names, types or sizes differ from the module's, or the facts are no such facts.
    """
    try:
        captured = _restore(facts, sections, module, leaves, in_spec)
    except (NotStorable, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise Unfit(f"{type(error).__name__}: {error}") from error
    _verify(captured, module, leaves)
    return captured


def _restore(
    facts: dict[str, Any],
    sections: dict[str, bytes],
    module: torch.nn.Module,
    leaves: Sequence[Any],
    in_spec: pytree.TreeSpec,
) -> Captured:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(sections["model"])
    except Exception as error:  # protobuf's own type differs between its implementations
        raise Unfit("the model does not parse") from error
    constants = {}
    for name, c in facts["constants"].items():
        if c["place"] is not None:
            constants[name] = _at(module, c["place"])
        else:
            data = bytearray(sections[f"constant {name}"])
            dtype, shape = _DTYPES[c["dtype"]], c["shape"]
            flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
            constants[name] = flat.reshape(shape).to(torch.device(c["device"]))
    guards = [_checked_condition(text) for text in facts["guards"]]
    return Captured(
        model=model,
        user_inputs=[(int(i), str(name)) for i, name in facts["user_inputs"]],
        parameters=list(facts["parameters"]),
        buffers=list(facts["buffers"]),
        constants=constants,
        outputs=[OutputRef(kind, name, index, _decoded(value)) for kind, name, index, value in facts["outputs"]],
        mutations=[(str(output), str(kind), target) for output, kind, target in facts["mutations"]],
        in_spec=in_spec,
        out_spec=_spec_from_data(facts["out_spec"]),
        baked=[(i, leaf) for i, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)],
        changed_attributes=[],
        settings=[str(name) for name in facts["settings"]],
        guards=guards,
        check=compile_check(guards),
        specialized=[str(s) for s in facts["specialized"]],
        fixed=frozenset(),  # what is symbolic stands in the entry
        needs_python=[],
        seconds={},
        hook_order=[str(name) for name in facts["hook_order"]],
        histories=[str(name) for name in facts["histories"]],
        recorded=None if facts["recorded"] is None else [str(name) for name in facts["recorded"]],
        saved_writes=[str(name) for name in facts["saved_writes"]],
        saved_left=[str(name) for name in facts["saved_left"]],
        result_order=_result_order(*facts["result_order"]),
    )


def _result_order(pairs: list[Any], sequence: list[Any]) -> ResultOrder:
    return ResultOrder([(str(one), str(other)) for one, other in pairs], [str(name) for name in sequence])


def _verify(captured: Captured, module: torch.nn.Module, leaves: Sequence[Any]) -> None:
    """Raises Unfit unless every input of the graph has the type and sizes of the tensor that will be bound to it."""
    tensors: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
    tensors.update(module.named_buffers(remove_duplicate=False))
    tensors.update(captured.constants)
    accessor = {name: index for index, name in captured.user_inputs}
    for info in captured.model.graph.input:
        index = accessor.get(info.name)
        tensor = tensors.get(info.name) if index is None else leaves[index] if index < len(leaves) else None
        if not isinstance(tensor, torch.Tensor):
            raise Unfit(f"there is no tensor for the graph's input '{info.name}'")
        dims = info.type.tensor_type.shape.dim
        sizes_fit = len(dims) == tensor.dim() and all(
            d.dim_param or d.dim_value == size for d, size in zip(dims, tensor.shape, strict=True)
        )
        if not sizes_fit or ONNX_TYPES.get(tensor.dtype) != info.type.tensor_type.elem_type:
            raise Unfit(f"the graph's input '{info.name}' is of another type or size than the module's tensor")
    names = {o.name for o in captured.model.graph.output}
    for ref in captured.outputs:
        known = {"tensor": ref.name in names, "size": ref.name in names, "constant": True}
        known["input"] = (ref.flat_index is not None and ref.flat_index < len(leaves)) or ref.name in tensors
        if not known.get(ref.kind):
            raise Unfit("an output of the module leads nowhere")
    if any(output not in names for output, _, _ in captured.mutations):
        raise Unfit("a mutation leads nowhere")


# -- attributes --------------------------------------------------------------------------------------------------------


def attribute_of(module: torch.nn.Module, tensor: torch.Tensor) -> list[str] | None:
    """[module, name] of the attribute that is this very tensor."""
    for owner, child in module.named_modules():
        for name, value in vars(child).items():
            if value is tensor:
                return [owner, name]
    return None


def _at(module: torch.nn.Module, place: Sequence[str]) -> torch.Tensor:
    owner, name = place
    tensor = getattr(module.get_submodule(owner), name)
    if not isinstance(tensor, torch.Tensor):
        raise Unfit(f"the attribute {name} is no tensor")
    return tensor


def _bytes_of(tensor: torch.Tensor) -> bytes:
    if tensor.dtype not in ONNX_TYPES or tensor.layout != torch.strided:
        raise NotStorable(f"a constant of type {tensor.dtype}")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


# -- values and structures ---------------------------------------------------------------------------------------------


def _encoded(value: Any) -> Any:
    """Plain Python data as JSON with the types that JSON forgets; the inverse is `_decoded`."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return {"float": value.hex()}
    if type(value) in (tuple, list):
        return {type(value).__name__: [_encoded(v) for v in value]}
    if type(value) is dict:
        return {"dict": [[_encoded(k), _encoded(v)] for k, v in value.items()]}
    if type(value) is torch.dtype:
        return {"dtype": str(value)}
    if type(value) is torch.device:
        return {"device": str(value)}
    if value is collections.namedtuple:  # pytree's mark of a named tuple; its class is the context
        return {"namedtuple": None}
    if isinstance(value, type):
        return {"type": [value.__module__, value.__qualname__]}
    raise NotStorable(f"a value of type {type(value).__qualname__}")


def _decoded(data: Any) -> Any:
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    if kind == "float":
        return float.fromhex(content)
    if kind in ("tuple", "list"):
        items = [_decoded(v) for v in content]
        return tuple(items) if kind == "tuple" else items
    if kind == "dict":
        return {_decoded(k): _decoded(v) for k, v in content}
    if kind == "dtype":
        return getattr(torch, content.removeprefix("torch."))
    if kind == "device":
        return torch.device(content)
    if kind == "namedtuple":
        return collections.namedtuple
    if kind == "type":
        return _loaded_class(*content)
    raise Unfit(f"unknown kind of value {kind!r}")


def _loaded_class(module: str, name: str) -> type:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type):
        raise Unfit(f"there is no class {module}.{name}")
    return found


def _spec_to_data(spec: pytree.TreeSpec) -> Any:
    if spec.is_leaf():
        return None
    children = [_spec_to_data(spec.child(i)) for i in range(spec.num_children)]
    return [_encoded(spec.type), _encoded(spec.context), children]


def _spec_from_data(data: Any) -> pytree.TreeSpec:
    if data is None:
        return pytree.tree_flatten(0)[1]
    kind, context, children = data
    cls = _decoded(kind)
    if cls not in pytree.SUPPORTED_NODES and not (isinstance(cls, type) and take_class_apart(cls)):
        raise Unfit(f"{cls.__qualname__} is no class of a module's result")
    return pytree.TreeSpec(cls, _decoded(context), [_spec_from_data(child) for child in children])


def _checked_condition(text: str) -> str:
    """`text`, if it is arithmetic and comparisons of sizes and nothing else."""
    for node in ast.walk(ast.parse(text, mode="eval")):
        good = isinstance(node, _CONDITION)
        if isinstance(node, ast.Name):
            good = node.id in _NAMES
        elif isinstance(node, ast.Attribute):
            good = not node.attr.startswith("_")
        elif isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            good = name in _CALLED and not node.keywords
        if not good:
            raise NotStorable(f"the condition `{text}` is no comparison of sizes")
    return text
