"""Which Linears of a model can be divided in pairs, by outputs and by inputs, with nothing but sums in between.

The module is exported, and for each Linear one looks at what its input is made of. If that are Linears alone, through
operators that treat features, or heads, one by one, these can be divided by outputs and it by inputs. That the code in
between takes a part of the features is then tried out with real numbers, rank after rank.
Not here: whether it pays (propose.py).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn
from torch.fx import Node

from ortmodule.distributed.parallel.division import Division

__all__ = ["Pair", "pairs_of", "works"]

# Operators of each feature by itself, and those that an attention rearranges heads with.
_FEATURES = set("gelu relu silu mul dropout tanh sigmoid add hardswish mish elu leaky_relu clone contiguous to".split())
_HEADS = _FEATURES | set(
    "view reshape transpose permute split chunk unbind select getitem unflatten flatten slice expand neg cat unsqueeze "
    "squeeze movedim repeat_interleave scaled_dot_product_attention".split()
)


@dataclasses.dataclass(frozen=True)
class Pair:
    """Linears by their modules' names: `columns` are divided by outputs (in `parts` blocks each), `row` by inputs."""

    columns: tuple[str, ...]
    row: str
    parts: int


def pairs_of(model: nn.Module, example: tuple[Any, ...]) -> list[Pair]:
    """What the model's dataflow allows; `example`: arguments of a call."""
    program = torch.export.export(model, example, strict=False)
    parameters = program.graph_signature.inputs_to_parameters
    linears: dict[Node, str] = {}
    for node in program.graph.nodes:
        if node.op == "call_function" and _name(node) == "linear":
            name = parameters.get(getattr(node.args[1], "name", ""), "")
            owner = name.removesuffix(".weight")
            if owner != name and type(model.get_submodule(owner)).forward is nn.Linear.forward:
                linears[node] = owner
    depends: set[Node] = set()
    for node in program.graph.nodes:
        if node in linears or any(source in depends for source in node.all_input_nodes):
            depends.add(node)
    found = [pair for node in linears if (pair := _pair(node, linears, depends)) is not None]
    used = [name for pair in found for name in (*pair.columns, pair.row)]
    return [pair for pair in found if all(used.count(name) == 1 for name in (*pair.columns, pair.row))]


def _name(node: Node) -> str:
    return getattr(node.target, "__name__", str(node.target)).split(".")[0].rstrip("_")


def _pair(row: Node, linears: dict[Node, str], depends: set[Node]) -> Pair | None:
    """Goes back from a Linear's input; what no Linear has a part in (a mask, a table of angles) is as it may be."""
    columns: list[Node] = []
    between: set[Node] = set()
    todo = [row.args[0]]
    while todo:
        node = todo.pop()
        if not isinstance(node, Node) or node not in depends or node in between or node in columns:
            continue
        if node in linears:
            columns.append(node)
        elif node.op == "call_function" and _name(node) in _HEADS:
            between.add(node)
            todo += node.all_input_nodes
        else:
            return None
    heads = any(_name(node) == "scaled_dot_product_attention" for node in between)
    if not columns or not (heads or all(_name(node) in _FEATURES for node in between)):
        return None
    inside = between | {row}
    if any(user in depends and user not in inside for node in (*columns, *between) for user in node.users):
        return None
    names = sorted(linears[node] for node in columns)
    return Pair(tuple(names), linears[row], 3 if heads and len(columns) == 1 else 1)


class _Reached(Exception):
    """The forward has come to where one looks."""


@torch.no_grad()
def works(model: nn.Module, pair: Pair, example: tuple[Any, ...], world: int) -> bool:
    """Whether the ranks' parts of a pair add up to what it gives whole: tried out, on this process alone."""
    columns = [model.get_submodule(name) for name in pair.columns]
    row: Any = model.get_submodule(pair.row)
    owners: list[Any] = [*columns, row]
    sizes = [module.out_features for module in owners[:-1]] + [row.in_features]
    if any(size % (world * pair.parts) for size in sizes[:-1]) or sizes[-1] % world:
        return False
    kept = [(p, p.data) for module in owners for p in (module.weight, module.bias) if p is not None]
    training = {module: module.training for module in model.modules()}
    model.eval()  # no random numbers
    try:
        whole = _result_of(model, row, example)
        total = torch.zeros_like(whole)
        for rank in range(world):
            for module, size in zip(owners[:-1], sizes, strict=False):
                for p in (module.weight, module.bias):
                    if p is not None:
                        p.data = Division(0, size, pair.parts).part(p.data, world, rank)
            row.weight.data = Division(1, sizes[-1]).part(row.weight.data, world, rank)
            if row.bias is not None and rank > 0:
                row.bias.data = torch.zeros_like(row.bias)
            total += _result_of(model, row, example)
            for p, data in kept:
                p.data = data
        return bool(torch.allclose(total, whole, rtol=1e-3, atol=1e-3 * float(whole.abs().max())))
    except (RuntimeError, ValueError, IndexError, AssertionError):
        return False  # the code in between wants all features
    finally:
        for p, data in kept:
            p.data = data
        for module, was in training.items():
            module.training = was


def _result_of(model: nn.Module, module: nn.Module, example: tuple[Any, ...]) -> torch.Tensor:
    found: list[torch.Tensor] = []

    def look(_: nn.Module, args: Any, result: torch.Tensor) -> None:
        found.append(result)
        raise _Reached

    handle = module.register_forward_hook(look)
    try:
        model(*example)
    except _Reached:
        pass
    finally:
        handle.remove()
    return found[0]
