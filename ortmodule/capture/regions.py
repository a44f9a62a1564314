"""Resolves what an exported graph holds besides plain operators: no_grad regions and writes into tensors.

`inline_no_grad` replaces every no_grad region by its nodes and a `detach` on each result: inlining alone would let
gradients flow. `is_convertible` says whether the converter can take the graph as it is: every write hits a whole tensor
that no later reader sees under another name. Otherwise torch's own functionalisation has to run (which costs as much
as the export again), as it does for autocast regions.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from typing import Any

import torch
from torch.fx import GraphModule, Node

from .compat import storage_of

__all__ = ["functional_form", "inline_no_grad", "is_convertible", "mutated_argument"]

_SET_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled
_DETACH = torch.ops.aten.detach.default
_DUNDER = {"__iand__": "__and__", "__ior__": "__or__", "__ixor__": "__xor__"}


def inline_no_grad(program: torch.export.ExportedProgram) -> None:
    """Inlines the regions under `no_grad` / `enable_grad` of an exported program, in place."""
    inlined = 0
    for module in [m for m in program.graph_module.modules() if isinstance(m, GraphModule)]:
        inlined += _inline_module(module)
    if inlined:
        outputs = program.graph_module.graph.output_node().args[0]
        for spec, node in zip(program.graph_signature.output_specs, outputs, strict=True):
            if isinstance(node, Node):
                spec.arg.name = node.name


def _inline_module(module: GraphModule) -> int:
    inlined = 0
    while regions := [n for n in module.graph.nodes if n.op == "call_function" and n.target is _SET_GRAD]:
        for node in regions:
            _inline_region(module, node)
            inlined += 1
    if inlined:
        module.graph.lint()
        module.recompile()
    return inlined


def _inline_region(module: GraphModule, node: Node) -> None:
    enabled, body_attribute, *operands = node.args
    body = getattr(module, body_attribute.target).graph
    env: dict[Node, Any] = dict(zip((n for n in body.nodes if n.op == "placeholder"), operands, strict=True))
    results: Any = ()
    with module.graph.inserting_before(node):
        for inner in body.nodes:
            if inner.op == "output":
                results = torch.fx.node.map_arg(inner.args[0], lambda n: env[n])
            elif inner.op == "get_attr":
                name = f"{body_attribute.target}_{inner.target}".replace(".", "_")
                setattr(module, name, getattr(getattr(module, body_attribute.target), inner.target))
                env[inner] = module.graph.get_attr(name)
            elif inner.op != "placeholder":
                env[inner] = module.graph.node_copy(inner, lambda n: env[n])
                if not enabled and _is_write(env[inner]):
                    _detach_operands(module, env[inner])
        if not enabled:
            given = set(operands)
            results = [r if r in given else _detached(module, r) for r in results]
    for user in list(node.users):
        assert user.target is operator.getitem
        user.replace_all_uses_with(results[user.args[1]])
        module.graph.erase_node(user)
    module.graph.erase_node(node)
    if not body_attribute.users:
        module.graph.erase_node(body_attribute)


def _detached(module: GraphModule, value: Any) -> Any:
    fake = value.meta.get("val") if isinstance(value, Node) else None
    if not isinstance(fake, torch.Tensor) or not (fake.is_floating_point() or fake.is_complex()):
        return value
    node = module.graph.call_function(_DETACH, (value,))
    node.meta = dict(value.meta)
    return node


def _detach_operands(module: GraphModule, node: Node) -> None:
    """A write under no_grad stores values without their history."""
    with module.graph.inserting_before(node):
        node.args = (node.args[0], *(_detached(module, a) if isinstance(a, Node) else a for a in node.args[1:]))


def _is_write(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def mutated_argument(target: torch._ops.OpOverload) -> int | None:
    """The position of the only argument that `target` writes, or None when it writes several or none."""
    written = [i for i, a in enumerate(target._schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    return written[0] if len(written) == 1 else None


def functional_form(target: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The operator that computes what the in-place `target` writes (`aten.add_.Tensor` -> `aten.add.Tensor`)."""
    name = target._schema.name.split("::")[1]
    base = _DUNDER.get(name) or (name[:-1] if name.endswith("_") and not name.endswith("__") else None)
    packet = getattr(getattr(torch.ops, target.namespace), base, None) if base else None
    found = getattr(packet, target._overloadname, None) if packet is not None else None
    if found is None:
        return None
    ours = [a.name for a in target._schema.arguments]
    return found if [a.name for a in found._schema.arguments] == ours else None


def is_convertible(module: GraphModule) -> bool:
    """True when the converter can take the graph without torch's functionalisation."""
    nodes = list(module.graph.nodes)
    position = {node: i for i, node in enumerate(nodes)}
    sharing: dict[int, list[Node]] = defaultdict(list)
    writes: list[Node] = []
    for node in nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return False
        if isinstance(node.meta.get("val"), torch.Tensor):
            sharing[storage_of(node.meta["val"])].append(node)
        if node.op == "call_function" and _is_write(node):
            writes.append(node)
    chain: dict[Node, Node] = {}
    for node in writes:
        if torch.Tag.inplace_view in node.target.tags or mutated_argument(node.target) != 0:
            return False
        if functional_form(node.target) is None:
            return False
        chain[node] = chain.get(node.args[0], node.args[0])
    for node in writes:
        root = chain[node]
        for other in sharing[storage_of(root.meta["val"])]:
            if other is root or chain.get(other) is root:
                continue
            if other.op == "placeholder" or any(position[user] > position[node] for user in other.users):
                return False
    return True
