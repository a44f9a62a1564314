"""Functions that `torch.jit.script` has compiled, traced operator by operator.

TorchScript runs a function in its own way once it has seen some calls: it then differentiates parts of it itself, with
gradients off inside, and a trace would keep the values without their gradients. Here a copy without such a past runs as
it was written. What a function asks inside is not heard (layouts, modes), so one that asks for more than sizes and
types, prints or warns is a `CaptureError`.
Not here: modules of TorchScript, which run in PyTorch (graph_transition/conditions/making.py).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from ....errors import CaptureError
from ..patching import Patch
from ..tracing import TraceState

__all__ = ["PATCHES"]

# What is no operator on tensors, and depends on nothing but its operands, their sizes and their types.
_STRUCTURE = frozenset(
    "prim::Constant prim::If prim::Loop prim::ListConstruct prim::ListUnpack prim::TupleConstruct prim::TupleUnpack "
    "prim::TupleIndex prim::TupleSlice prim::Uninitialized prim::unchecked_cast prim::unchecked_unwrap_optional "
    "prim::RaiseException prim::NumToTensor prim::dtype prim::device prim::is_cuda prim::is_cpu prim::max prim::min "
    "prim::abs".split()
)
_NUMBERS = frozenset(
    "size dim numel len is_floating_point is_complex eq ne lt le gt ge __is__ __isnot__ __not__ __and__ __or__ __xor__ "
    "__contains__ __getitem__ add sub mul div floordiv floor ceil round remainder pow neg sqrt Int Float Bool "
    "ScalarImplicit IntImplicit FloatImplicit append extend insert pop slice list copy format str".split()
)


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _is_tensors(kind: Any) -> bool:
    """Whether the type is a tensor's, or a list's or an optional one's of tensors."""
    while kind.kind() in ("ListType", "OptionalType"):
        kind = kind.getElementType()
    return bool(kind.kind() == "TensorType")


def _gives_tensors(node: Any) -> bool:
    made = [one.type() for one in node.outputs()]
    return bool(made) and all(map(_is_tensors, made))


def _unheard(graph: Any) -> str | None:
    """What the function does that a trace of its operators does not hear; None: nothing."""
    for node in _nodes(graph):
        kind = node.kind()
        library, _, name = kind.partition("::")
        if kind in _STRUCTURE:
            continue
        if library == "aten" and (name in _NUMBERS or _gives_tensors(node)):
            continue
        return str(kind)
    return None


@functools.lru_cache(maxsize=256)
def _as_written(function: Any) -> Any:
    """A copy that has never run.

    Raises:
        CaptureError: the function does more than a trace hears.
    """
    graph = function.inlined_graph
    if (kind := _unheard(graph)) is not None:
        raise CaptureError(
            f"the forward calls a function of torch.jit.script, '{function.name}', that does more than compute with "
            f"tensors, sizes and types: {kind}. Call the Python function it was made from"
        )
    copy: Any = torch._C._create_function_from_graph(function.name, graph.copy())
    copy._torchdynamo_inline = getattr(function, "_torchdynamo_inline", None)  # a call looks whether it is there
    return copy


def _called(original: Any, state: TraceState) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound, rest = list(args), dict(kwargs)
        for argument in self.schema.arguments[len(args) :]:
            if argument.name in rest:
                bound.append(rest.pop(argument.name))
            elif argument.has_default_value():
                bound.append(argument.default_value)
            else:
                return original(self, *args, **kwargs)  # says what is missing
        if rest or len(bound) > len(self.schema.arguments):
            return original(self, *args, **kwargs)
        with torch.jit.optimized_execution(False):
            return original(_as_written(self), *bound)

    return call


PATCHES = (Patch(torch._C.ScriptFunction, "__call__", _called),)
