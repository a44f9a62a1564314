"""What a trace of torch's says and does beside the point: pages of logs, source lines by the megabyte, random numbers.

- torch logs pages about a size or a shape that export trips over, and prints the graph as far as it came; CaptureError
  says the same in a sentence.
- it looks through every node for sizes that hang on data, also where there is none.
- it writes each graph out as Python code and compiles that, six times; here it does when that is asked for.
- it notes of each tensor what `meta["val"]` says anyway.
- it takes a tree apart into a list and a form, and builds it anew, where a value of each leaf is asked for.
- it reads the source of its own files for messages, 3 MB that stay; their lines are left empty.
- it replaces the functions that `torch.fx.wrap` names in their modules' globals, for the sake of tracers that have no
  tensors.
- the numbers that torch gives a collective's handle are drawn from Python's generator, as if the forward drew them.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import itertools
import linecache
import logging
from collections.abc import Iterator
from typing import Any

import torch
import torch.export._trace as export_trace
from torch._export.utils import _get_shape_env_from_gm
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental import proxy_tensor
from torch.fx.graph import _PyTreeCodeGen
from torch.utils._sympy.symbol import SymT, symbol_is_type

from ....source_lines import TORCH_ROOT
from ....torch_private import SILENCED
from ...patching import Around, Patch
from ...tracing import TraceState

__all__ = ["PATCHES"]

_OF_DATA = (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)
_handle_numbers = itertools.count(10**9 + 1)  # torch's end before


@contextlib.contextmanager
def _quiet(state: TraceState) -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in SILENCED]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def _silent(original: Any, state: TraceState) -> Any:
    return lambda *args, **kwargs: None


def _but_torch_lines(original: Any, state: TraceState) -> Any:
    def line(filename: str, *args: Any, **kwargs: Any) -> str:
        return "" if filename.startswith(TORCH_ROOT) else original(filename, *args, **kwargs)

    return line


def _not_at_first(original: Any, state: TraceState) -> Any:
    begun = False

    def wrap(*args: Any, **kwargs: Any) -> None:
        nonlocal begun
        if begun:  # by a tracer of the forward's own
            original(*args, **kwargs)
        begun = True

    return wrap


class _Uncompiled:
    """Stands as the forward of a graph that was not compiled: it is when somebody asks for it."""

    def __init__(self, recompile: Any) -> None:
        self._recompile = recompile

    def __get__(self, graph: torch.fx.GraphModule | None, owner: type) -> Any:
        if graph is None:
            return self
        self._recompile(graph)  # which sets the class's forward
        return graph.forward


def _compiled_when_asked_for(original: Any, state: TraceState) -> Any:
    uncompiled: Any = _Uncompiled(original)

    def recompile(self: torch.fx.GraphModule) -> None:
        codegen = self._graph._codegen
        if isinstance(codegen, _PyTreeCodeGen):
            self._in_spec, self._out_spec = codegen.pytree_info.in_spec, codegen.pytree_info.out_spec
        self._code = ""
        type(self).forward = uncompiled  # each has a class of its own

    return recompile


def _nothing(original: Any, state: TraceState) -> Any:
    return lambda tensor, *args, **kwargs: None


def _if_any_hangs_on_data(original: Any, state: TraceState) -> Any:
    def replace(graph: torch.fx.GraphModule) -> None:
        sizes = _get_shape_env_from_gm(graph)
        if sizes is None or any(symbol_is_type(symbol, _OF_DATA) for symbol in sizes.var_to_range):
            original(graph)

    return replace


def _mapped_at_once(original: Any, state: TraceState) -> Any:
    def tree_map(function: Any, tree: Any, *others: Any, is_leaf: Any = None) -> Any:
        if others or is_leaf is not None:
            return original(function, tree, *others, is_leaf=is_leaf)
        kind = type(tree)
        if kind is dict:
            return {key: tree_map(function, value) for key, value in tree.items()}
        if kind is tuple or kind is list:
            return kind([tree_map(function, value) for value in tree])
        return function(tree) if kind in _LEAVES else original(function, tree)

    return tree_map


def _counted(original: Any, state: TraceState) -> Any:
    return functools.partial(next, _handle_numbers)


_LEAVES = (str, int, float, bool, type(None), torch.Tensor, FakeTensor, torch.fx.Node, torch.fx.Proxy)
PATCHES = (
    Around(_quiet),
    Patch(export_trace, "print", _silent, default=builtins.print),  # the module's own name hides the builtin there
    Patch(torch.fx.GraphModule, "recompile", _compiled_when_asked_for),
    Patch("torch.fx._symbolic_trace", "_patch_wrapped_functions", _not_at_first),
    Patch(proxy_tensor, "_extract_tensor_metadata", _nothing),
    Patch("torch.utils._pytree", "tree_map", _mapped_at_once),
    Patch(linecache, "getline", _but_torch_lines),
    Patch(export_trace, "_replace_unbacked_bindings", _if_any_hangs_on_data),
    Patch("torch.distributed._meta_registrations", "generate_unique_id", _counted),
)
