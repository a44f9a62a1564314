"""What a capture makes of `torch.utils.checkpoint`: a mark on the nodes of each region, which backward computes again.

A reentrant region whose own arguments need no gradient has none in PyTorch either, whatever its parameters say: PyTorch
runs it without recording, and warns. So it does here.

A graph's backward computes values again and writes nothing. A region that writes what was there before it (the
statistics of a batch norm) does so twice in eager: such a forward runs in PyTorch.

Not here: what the marks lead to (csrc/transforms).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
import torch.utils.checkpoint as torch_checkpoint
from torch.fx import Node

from ....errors import CaptureError
from ... import torch_private
from ...torch_private import storage_of
from ..patching import Patch
from ..tracing import TraceState

__all__ = ["PATCHES"]

# (input, weight, bias, running_mean, running_var, whether the input's own statistics count, ...)
_NORMALIZATIONS = ("aten::batch_norm", "aten::instance_norm")


@contextlib.contextmanager
def _region(state: TraceState) -> Iterator[None]:
    """Within it, one more region runs."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(fx_traceback.annotate({"recompute": next(state.region_numbers)}))
        if state.audit is not None:
            stack.enter_context(state.audit.region())
        yield


@contextlib.contextmanager
def _writing_nothing() -> Iterator[None]:
    """Raises CaptureError at its end where the region within it writes what is older than it, and may run again."""
    nodes = torch_private.running_tracer().graph.nodes
    older = list(nodes)
    yield
    if not torch.is_grad_enabled():
        return
    memory = {storage_of(val) for node in older if isinstance(val := node.meta.get("val"), torch.Tensor)}
    for node in itertools.islice(nodes, len(older), None):
        for written in _written_by(node):
            if storage_of(written.meta["val"]) in memory:
                raise CaptureError("a region of torch.utils.checkpoint writes a tensor, which eager does once more")


def _written_by(node: Node) -> Iterator[Node]:
    """The arguments that a node writes, as far as they are single tensors."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    arguments = node.target._schema.arguments
    places = [i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
    if node.target._schema.name in _NORMALIZATIONS and node.args[5]:  # their schemas do not say it
        places = [3, 4]
    for i in places:
        if i < len(node.args) and isinstance(written := node.args[i], Node):
            yield written


def _marked_generator(original: Any, state: TraceState) -> Any:
    """In place of `_checkpoint_without_reentrant_generator`."""

    def generator(function: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        with _region(state), _writing_nothing():
            yield

    return generator


def _marked_call(original: Any, state: TraceState) -> Any:
    """In place of `CheckpointFunction.apply`, the reentrant form."""

    def apply(function: Any, preserve_rng_state: bool, *args: Any) -> Any:
        torch_checkpoint.check_backward_validity(args)
        # The question is the user's code's (questions/settings.py): the graph holds for calls that answer it alike.
        recorded = any(arg.requires_grad for arg in args if isinstance(arg, torch.Tensor))
        with _region(state):
            if recorded:
                with _writing_nothing():
                    return function(*args)
            with torch.no_grad():
                return function(*args)

    return apply


PATCHES = (
    Patch(torch_checkpoint, "_checkpoint_without_reentrant_generator", _marked_generator),
    Patch(torch_checkpoint.CheckpointFunction, "apply", _marked_call),
)
