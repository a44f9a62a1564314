"""Resolves what an exported graph holds besides plain operators: regions and writes into tensors.

`inline_regions` replaces every no_grad region by its nodes and a `detach` on each result (inlining alone would let
gradients flow), and every autocast region by its nodes and their casts. `is_convertible` says whether the converter can
take the graph as it is: every write hits a tensor, or a slice of one, that no later reader sees under another name.
Otherwise torch's own functionalisation has to run, which costs as much as the export again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from operator import getitem
from typing import Any

import torch
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node

from ...errors import CaptureError
from ..autocast import AutocastRegion
from ..source_lines import user_line_of
from ..torch_private import is_batched, storage_of
from .itself import is_its_argument

__all__ = [
    "MADE_WITHOUT_GRADIENT",
    "PART_VIEWS",
    "WITHOUT_HISTORY",
    "detached",
    "functional_form",
    "inline_regions",
    "is_convertible",
    "is_write",
    "join_ties",
    "mutated_argument",
    "name_outputs",
    "refuse_control_flow",
    "written_argument",
]

_SET_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST = torch.ops.higher_order.wrap_with_autocast
_DETACH = torch.ops.aten.detach.default
_DETACH_IN_PLACE = torch.ops.aten.detach_.default  # `torch.tensor(1.0)` leaves one in the trace
PART_VIEWS = (torch.ops.aten.slice.Tensor, torch.ops.aten.select.int)
# Marks a write that was made under no_grad.
WITHOUT_HISTORY = "ortmodule_without_history"
# Marks a tensor that an operator under no_grad made: it has no history to keep.
MADE_WITHOUT_GRADIENT = "ortmodule_made_without_gradient"
_DUNDER = {"__iand__": "__and__", "__ior__": "__or__", "__ixor__": "__xor__"}


def inline_regions(program: torch.export.ExportedProgram) -> None:
    """Inlines the no_grad, enable_grad and autocast regions of an exported program, in place.

    The gradient mode is resolved first, everywhere, so that each autocast region holds its operators itself.
    """
    inlined = 0
    for module in [m for m in program.graph_module.modules() if isinstance(m, GraphModule)]:
        inlined += _inline_all(module, _SET_GRAD)
    inlined += _inline_all(program.graph_module, _AUTOCAST)
    if inlined:
        name_outputs(program)


def name_outputs(program: torch.export.ExportedProgram) -> None:
    """Tells the program's signature the nodes that its graph returns now."""
    outputs = program.graph_module.graph.output_node().args[0]
    for spec, node in zip(program.graph_signature.output_specs, outputs, strict=True):
        if isinstance(node, Node):
            spec.arg.name = node.name


def _inline_all(module: GraphModule, kind: Any) -> int:
    inlined = 0
    while regions := [n for n in module.graph.nodes if n.op == "call_function" and n.target is kind]:
        for node in regions:
            _inline_region(module, node)
            inlined += 1
    if inlined:
        module.graph.lint()
        module.recompile()
    return inlined


def _inline_region(module: GraphModule, node: Node) -> None:
    arguments: tuple[Any, ...] = node.args
    *settings, body_attribute = arguments[: 5 if node.target is _AUTOCAST else 2]
    operands = arguments[len(settings) + 1 :]
    autocast = AutocastRegion(*settings[:3]) if node.target is _AUTOCAST else None
    without_grad = autocast is None and not settings[0]
    results = _copy_body(module, node, body_attribute, operands, autocast, without_grad)
    for user in list(node.users):
        assert user.target is getitem
        position: Any = user.args[1]
        user.replace_all_uses_with(results[position])
        module.graph.erase_node(user)
    module.graph.erase_node(node)
    if not body_attribute.users:
        module.graph.erase_node(body_attribute)


def _copy_body(
    module: GraphModule,
    node: Node,
    body_attribute: Node,
    operands: Sequence[Any],
    autocast: AutocastRegion | None,
    without_grad: bool,
) -> list[Any]:
    """Copies a region's nodes in front of `node`; returns what the region results in."""
    attribute = str(body_attribute.target)
    body = getattr(module, attribute)
    env: dict[Node, Any] = dict(zip((n for n in body.graph.nodes if n.op == "placeholder"), operands, strict=True))
    results: list[Any] = []
    with module.graph.inserting_before(node):
        for inner in body.graph.nodes:
            if inner.op == "output":
                results = list(torch.fx.node.map_arg(inner.args[0], lambda n: env[n]))
            elif inner.op == "get_attr":
                name = f"{attribute}_{inner.target}".replace(".", "_")
                setattr(module, name, getattr(body, inner.target))
                env[inner] = module.graph.get_attr(name)
            elif inner.op != "placeholder":
                env[inner] = module.graph.node_copy(inner, lambda n: env[n])
                if autocast is not None:
                    autocast.cast(module.graph, env[inner])
                if without_grad and is_write(env[inner]):
                    env[inner].meta[WITHOUT_HISTORY] = True
                    _detach_operands(module, env[inner])
                elif without_grad and _is_fresh(env[inner]):
                    env[inner].meta[MADE_WITHOUT_GRADIENT] = True
        if without_grad:
            results = [r if _same_tensor(r) in operands else detached(module, r) for r in results]
    return results


def _same_tensor(value: Any) -> Any:
    """The node that first made the very tensor object that `value` is: an in-place operator and a conversion to what
    the tensor is already return their argument, with its history, and the trace knows it by the new name from then on.
    """
    while isinstance(value, Node) and (is_write(value) or is_its_argument(value)):
        value = value.args[0]
    return value


def _is_fresh(node: Node) -> bool:
    """Whether a node's result has memory of its own."""
    if not isinstance(node.target, torch._ops.OpOverload) or not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    given = [n.meta["val"] for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    return storage_of(node.meta["val"]) not in map(storage_of, given)


def _written_root(value: Any) -> Any:
    """What an in-place operator's result is; `value` itself where it is no such result."""
    while isinstance(value, Node) and is_write(value):
        value = written_argument(value)
    return value


def written_argument(node: Node) -> Any:
    """The argument that a write goes into: the first, or `out`."""
    target: Any = node.target
    position = mutated_argument(target) or 0
    name = target._schema.arguments[position].name
    return node.args[position] if position < len(node.args) else node.kwargs.get(name)


def detached(module: GraphModule, value: Any) -> Any:
    """`value` without its history, at the graph's insertion point; itself where it is no differentiable tensor."""
    fake = value.meta.get("val") if isinstance(value, Node) else None
    if not isinstance(fake, torch.Tensor) or not (fake.is_floating_point() or fake.is_complex()):
        return value
    node = module.graph.call_function(_DETACH, (value,))
    node.meta = dict(value.meta)
    return node


def _detach_operands(module: GraphModule, node: Node) -> None:
    """A write under no_grad stores values without their history."""
    kept = written_argument(node)

    def without_history(value: Any) -> Any:
        return detached(module, value) if isinstance(value, Node) and value is not kept else value

    with module.graph.inserting_before(node):
        node.args = tuple(map(without_history, node.args))
        node.kwargs = {name: without_history(value) for name, value in node.kwargs.items()}


def is_write(node: Node) -> bool:
    """Whether a node writes into one of its arguments."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def mutated_argument(target: torch._ops.OpOverload) -> int | None:
    """The position of the only argument that `target` writes, or None when it writes several or none."""
    written = [i for i, a in enumerate(target._schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    return written[0] if len(written) == 1 else None


def functional_form(target: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The operator that computes what the in-place `target` writes (`aten.add_.Tensor` -> `aten.add.Tensor`)."""
    name = target._schema.name.split("::")[1]
    base = _DUNDER.get(name) or (name[:-1] if name.endswith("_") and not name.endswith("__") else None)
    wanted = [a.name for a in target._schema.arguments[1:]]
    for packet in (base, f"{base}_functional") if base else ():  # `normal` is of tensors of means
        found = getattr(getattr(getattr(torch.ops, target.namespace), packet, None), target._overloadname, None)
        # The tensor itself may go by another name (`dropout` calls it input, `dropout_` self).
        if found is not None and [a.name for a in found._schema.arguments[1:]] == wanted:
            return found
    return None


def refuse_control_flow(module: GraphModule) -> None:
    """Raises CaptureError for what is left after inlining, such as `torch.while_loop`."""
    for node in module.graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            line = user_line_of(node.meta.get("stack_trace"))
            raise CaptureError(f"the operator '{node.target}' has no ONNX form", line)


def _detaches_a_copy(node: Node) -> bool:
    """Whether it is of a tensor that is written out (`torch.tensor([1])`): no value changes, nor another's history."""
    written: Any = node.args[0]
    return node.target is _DETACH_IN_PLACE and written.target is torch.ops.aten.lift_fresh_copy.default


def parts_to_base(node: Node, root: Callable[[Node], Node]) -> Iterator[Node]:
    """`node`, what it is a slice or a selection of, and so on, each as its `root`, to the tensor that is no part."""
    yield node
    while node.target in PART_VIEWS:
        base: Any = node.args[0]
        node = root(base)
        yield node


def join_ties(program: torch.export.ExportedProgram) -> None:
    """Makes every reader of a parameter or buffer that has several names read its first one, in place.

    A module that is registered twice (`self.second = self.first`) has all of its tensors under two names. torch's
    functionalisation refuses a tensor under two names where either is written, as batch-norm's statistics are.
    """
    first: dict[int, Node] = {}
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    for spec, node in zip(program.graph_signature.input_specs, placeholders, strict=True):
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) and spec.target is not None:
            held = program.state_dict.get(spec.target, program.constants.get(spec.target))
            same = first.setdefault(id(held), node) if held is not None else node
            if same is not node:
                node.replace_all_uses_with(same)
    name_outputs(program)


def is_convertible(module: GraphModule) -> bool:
    """True when the converter can take the graph without torch's functionalisation."""
    nodes = list(module.graph.nodes)
    if any(is_batched(node.meta.get("val")) for node in nodes):  # under vmap
        return False
    position = {node: i for i, node in enumerate(nodes)}
    sharing: dict[int, list[Node]] = defaultdict(list)
    writes: list[Node] = []
    for node in nodes:
        if isinstance(node.meta.get("val"), torch.Tensor):
            sharing[storage_of(node.meta["val"])].append(node)
        if node.op == "call_function" and is_write(node):
            writes.append(node)
    results = (one.meta.get("val") for one in nodes[-1].all_input_nodes)
    given_away = {storage_of(value) for value in results if isinstance(value, torch.Tensor)}
    chain: dict[Node, Node] = {}
    for node in writes:
        operator: Any = node.target
        written: Any = node.args[0]
        changes_view = torch.Tag.inplace_view in operator.tags and operator is not _DETACH_IN_PLACE
        if changes_view or mutated_argument(operator) != 0:
            return False
        if functional_form(operator) is None:
            return False
        chain[node] = chain.get(written, written)
    for node in writes:
        if _detaches_a_copy(node) and storage_of(node.meta["val"]) not in given_away:
            continue
        root = chain[node]
        followed = set(parts_to_base(root, lambda n: chain.get(n, n)))
        for other in sharing[storage_of(root.meta["val"])]:
            if chain.get(other, other) in followed or position[other] > position[node]:
                continue
            if not other.users:
                continue
            if other.op == "placeholder" or any(position[user] > position[node] for user in other.users):
                return False
    return True
