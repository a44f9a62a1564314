"""Graphs with symbolic sizes that hold for a size of 1 as well.

By default torch's export takes every symbolic size to be at least 2, because a size of 1 broadcasts: a batch of 1 would
need a graph of its own. Its size-oblivious mode does not ask whether a size is 1 where the answer decides no more than
the strides, and makes every other question (`if len(x) == 1`) a condition of the graph. Here that mode is turned on,
and the questions about memory that it leaves are stopped; `conditions` says where such a graph does not hold.

Sizes of 0 remain apart: a symbolic size is at least 1, and so is each size that is computed from it.
Not here: conditions that export records itself (guards.py).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
import torch._subclasses.fake_impls as fake_impls
import torch.fx.traceback as fx_traceback
from torch._prims_common import extract_shape_from_varargs
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental import _config as fx_config
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv, guard_or_false, guard_or_true
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from .....errors import CaptureError
from ....rewrite.regions import is_write
from ....sizes import Dim, SizePrinter, unbacked_symbols
from ....torch_private import storage_of
from ...patching import Around, Patch
from ...tracing import TraceState

__all__ = ["PATCHES", "conditions", "refuse_written_copies"]

_ATEN = torch.ops.aten
# Operators whose C++ asks whether a size is 1 only to choose between ways to the same values.
_SAME_VALUES = frozenset(
    getattr(_ATEN, name).default
    for name in (
        *("cosine_similarity", "einsum", "matmul", "outer", "reshape", "tensordot"),
        "scaled_dot_product_attention",  # torch 2.11
    )
)
_SQUEEZES = (_ATEN.squeeze, _ATEN.squeeze_copy)
_MARK = "copied_for_any_size"
_TOO_HARD_TO_SAY = 2  # of torch's MemOverlap
_SYMBOL = re.compile(r"\bs\d+\b")


def _from_one(original: Any, state: TraceState) -> Any:
    def default_range(self: ShapeEnv, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        return ValueRanges(1, found.upper) if found.lower == 0 else found

    return default_range


def _with_conditions(original: Any, state: TraceState) -> Any:
    """Where a slice lies is asked and becomes a condition, not a minimum that every later size would carry."""

    def slice_index(*args: Any) -> Any:
        with fx_config.patch(backed_size_oblivious=False):  # type: ignore[attr-defined]
            return original(*args)

    return slice_index


def _unasked(original: Any, state: TraceState) -> Any:
    def guard(self: SymNode, file: str, line: int) -> bool:
        asked = self.expr
        if file and _is_about_ones(asked) and _operator() in _SAME_VALUES:
            return (guard_or_true if isinstance(asked, sympy.Ne) else guard_or_false)(torch.SymBool(self))
        return original(self, file, line)

    return guard


def _is_about_ones(asked: Any) -> bool:
    """Whether a question compares sizes, or strides made of them, with what they are where all sizes are 1."""
    if not isinstance(asked, (sympy.Eq, sympy.Ne)) or not any(side.is_Integer for side in asked.args):
        return False
    one, other = (side.subs(dict.fromkeys(asked.free_symbols, 1)) for side in asked.args)
    return bool(one == other)


def _operator() -> Any:
    """The operator whose implementation runs."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code is not torch._ops.OpOverload.__call__.__code__:
        frame = frame.f_back
    return frame.f_locals.get("self")


def _unified_view(original: Any, state: TraceState) -> Any:
    """`mask.view(len(x), -1)` says that both have as many rows: else the second size is a quotient for ever."""

    def view(tensor: torch.Tensor, shape: Any, *args: Any, **kwargs: Any) -> Any:
        for old, new in zip(tensor.shape, extract_shape_from_varargs(shape, validate=False)):
            if _hint(old) is None or _hint(old) != _hint(new):
                break
            if _hint(old) != 1:
                torch._check(old == new)
        return original(tensor, shape, *args, **kwargs)

    return view


def _hint(size: int | torch.SymInt) -> int | None:
    """The example's size; None where it depends on data."""
    return size.node.hint if isinstance(size, torch.SymInt) else size


def _overlap_unless_symbolic(original: Any, state: TraceState) -> Any:
    """An error check of torch's, which would compare every size with 1."""

    def overlap(tensor: torch.Tensor) -> int:
        return _TOO_HARD_TO_SAY if _is_symbolic(tensor) else original(tensor)

    return overlap


def _copied_without_condition(original: Any, state: TraceState) -> Any:
    """`x.contiguous()` copies where it does so for the example; that a size of 1 may save the copy is not asked."""

    def contiguous(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args or kwargs or not _is_symbolic(self) or _lies_contiguous(self):
            return original(self, *args, **kwargs)
        with fx_traceback.annotate({_MARK: True}):
            return self.clone(memory_format=torch.contiguous_format)

    return contiguous


def _is_symbolic(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor) and any(isinstance(size, torch.SymInt) for size in tensor.shape)


def _lies_contiguous(fake: torch.Tensor) -> bool:
    """Whether the example's tensor is contiguous, or its sizes depend on data."""
    expected = 1
    for size, stride in zip(reversed(fake.shape), reversed(fake.stride()), strict=True):
        n, step = _hint(size), _hint(stride)
        if n is None or step is None:
            return True
        if n != 1 and step != expected:
            return False
        expected *= n
    return True


def refuse_written_copies(program: torch.export.ExportedProgram) -> None:
    """Raises CaptureError where a possible copy, or what it is a copy of, is written later.

    With a size of 1 the two are one tensor.
    """
    copied: set[int] = set()
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        if is_write(node) and not copied.isdisjoint(_storages(_written(node))):
            raise CaptureError("a tensor that `contiguous()` may or may not copy is written in place")
        if (node.meta.get("custom") or {}).get(_MARK) or _copies(node):
            copied.update(_storages([node, *node.all_input_nodes]))


def _written(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes whose tensors an operator writes."""
    given: list[Any] = []
    for i, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if argument.alias_info is not None and argument.alias_info.is_write:
            value: Any = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
            given += value if isinstance(value, (list, tuple)) else [value]
    return [one for one in given if isinstance(one, torch.fx.Node)]


def _copies(node: torch.fx.Node) -> bool:
    return node.target is _ATEN.reshape.default and _storages([node]) != _storages(node.args[:1])


def _storages(nodes: Sequence[Any]) -> set[int]:
    return {storage_of(n.meta["val"]) for n in nodes if isinstance(n.meta.get("val"), torch.Tensor)}


def conditions(
    program: torch.export.ExportedProgram, shapes: Mapping[int, tuple[Dim, ...]], printer: SizePrinter
) -> list[str]:
    """Conditions on the input sizes, as text over `L['tensors']`, that the graph needs beyond those it recorded.

    Args:
        program: exported with symbolic sizes that may be 1.
        shapes: dims of each input tensor, by its position.
        printer: knows every size of the converted graph.

    Raises:
        CaptureError: a condition cannot be said in sizes of the inputs.
    """
    sources = {
        dim: f"L['tensors'][{i}].size()[{axis}]"
        for i, shape in reversed(list(shapes.items()))
        for axis, dim in reversed(list(enumerate(shape)))
        if isinstance(dim, str) and _SYMBOL.fullmatch(dim)
    }
    ranges = {e: r for e, r in program.range_constraints.items() if e.is_Symbol}
    sizes = {size.node.expr: printer.dim(size) for node in program.graph.nodes for size in _symbolic_sizes(node)}
    found = [f"{_said(text, sources)} >= 1" for e, text in sizes.items() if _may_be_empty(e, text, ranges)]
    for node in program.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "overloadpacket", None) in _SQUEEZES:
            texts = map(printer.dim, _squeezed(node))
            found += [f"{_said(text, sources)} != 1" for text in texts if isinstance(text, str)]
    return list(dict.fromkeys(found))


def _symbolic_sizes(node: torch.fx.Node) -> Iterator[Any]:
    """The sizes of what a node makes that are no numbers."""
    made = node.meta.get("val")
    for one in made if isinstance(made, (list, tuple)) else [made]:
        if isinstance(one, torch.Tensor):
            yield from (size for size in one.shape if isinstance(size, torch.SymInt))


def _squeezed(node: torch.fx.Node) -> list[Any]:
    """The sizes that a squeeze drops if they are 1."""
    shape = node.args[0].meta["val"].shape  # type: ignore[union-attr]
    axes = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", range(len(shape)))
    return [shape[a] for a in ([axes] if isinstance(axes, int) else axes)] if shape else []  # type: ignore[union-attr]


def _may_be_empty(size: sympy.Expr, text: Dim, ranges: Mapping[sympy.Symbol, Any]) -> bool:
    if isinstance(text, int) or unbacked_symbols(text):
        return False
    lowest = bound_sympy(size, {s: ranges.get(s, ValueRanges(1, sympy.oo)) for s in size.free_symbols}).lower
    return not bool(lowest >= 1)


def _said(text: Dim, sources: Mapping[str, str]) -> str:
    text = str(text)
    missing = [s for s in _SYMBOL.findall(text) if s not in sources]
    if missing or unbacked_symbols(text):
        raise CaptureError(f"whether the size {text} is 1 cannot be said of the inputs")
    return _SYMBOL.sub(lambda s: sources[s.group()], text).replace("Max(", "max(").replace("Min(", "min(")


def _is_wanted(state: TraceState) -> bool:
    return state.from_one


PATCHES = (
    Around(lambda state: fx_config.patch(backed_size_oblivious=True), when=_is_wanted),  # type: ignore[attr-defined]
    Patch(ShapeEnv, "_default_value_range", _from_one, when=_is_wanted),
    Patch(fake_impls, "_compute_slice_index", _with_conditions, when=_is_wanted),
    Patch(fake_impls, "_view_unbacked_meta", _unified_view, when=_is_wanted),
    Patch(SymNode, "guard_bool", _unasked, when=_is_wanted),
    Patch(torch, "_debug_has_internal_overlap", _overlap_unless_symbolic, when=_is_wanted),
    Patch(torch.Tensor, "contiguous", _copied_without_condition, when=_is_wanted),
)
