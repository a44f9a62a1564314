"""What the regions of `torch.utils.checkpoint` read: eager's backward runs them once more, with the values of then.

It is a walk of its own (reads.py) beside that of the whole forward, and hears of the same frames while a region runs.
Not here: what marks a region (capture), what is looked at in the backward (../until_backward.py).
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ...errors import CaptureError
from ..conditions import Condition, reachable
from .blocks import Block
from .frames import keywords_of
from .reads import Reads

__all__ = ["Regions"]


class Regions:
    """Hears of frames in place of `reads`, and tells it of all.

    Args:
        reads: the walk of the whole forward.
    """

    def __init__(self, reads: Reads) -> None:
        self._forward = reads
        self._reads = Reads(reads.originals, reads.vouched, reads.tree)
        self._depth = 0
        self._any = False
        self._blocks: list[Block] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Within it, a region runs."""
        self._depth, self._any = self._depth + 1, True
        try:
            yield
        finally:
            self._depth -= 1

    @contextlib.contextmanager
    def beside(self, owned: Mapping[int, Any]) -> Iterator[Block]:
        """Within it, a block runs, which owns these objects."""
        block = Block(self._forward, owned)
        self._blocks.append(block)
        try:
            yield block
        finally:
            self._blocks.remove(block)

    # -- what is heard of frames (frames.Listener) ------------------------------------------------------------------

    def entered(self, frame: types.FrameType, function: types.FunctionType | None, values: list[Any]) -> None:
        for block in self._blocks:
            block.entered(function, values)
        self._tell("entered", frame.f_code, function, values, keywords_of(frame))

    def returned(self, frame: types.FrameType, value: Any) -> None:
        self._tell("returned", frame, value)

    def called(self, frame: types.FrameType, function: Any) -> None:
        for block in self._blocks:
            block.called(frame, function)
        self._tell("called", frame, function)

    def replaced(self, function: types.FunctionType, values: Sequence[Any]) -> None:
        """Hears that what the capture has put in a function's place runs, which may read what the function would."""
        self._tell("entered", function.__code__, function, values)

    def value_read(self, tensor: torch.Tensor | None) -> None:
        self._forward.value_read(tensor)
        for block in self._blocks:
            block.reads.value_read(tensor)

    def no_module(self, names: frozenset[str]) -> None:
        for reads in (self._forward, self._reads) if self._depth else (self._forward,):
            reads.loaded_modules().grow(sys.modules, names, reads.part)
        for block in self._blocks:
            block.failed = True

    def _tell(self, event: str, *what: Any) -> None:
        getattr(self._forward, event)(*what)
        if self._depth:
            getattr(self._reads, event)(*what)
        for block in self._blocks:
            if not block.failed:
                try:
                    getattr(block.reads, event)(*what)
                except (CaptureError, RecursionError):  # of what the forward has made: no matter but to the block
                    block.failed = True

    # -- the end ----------------------------------------------------------------------------------------------------

    def roots(self) -> list[tuple[str, Condition, Any]]:
        """(text, condition, object) of what everything that regions read is reached from; of what there was before the
        forward, for what it has made is gone. Called when the forward's own walk is settled.
        """
        if not self._any:
            return []
        reads, forward = self._reads, self._forward
        reads.settle()
        reads.close(self._reached())
        lasting = {id(function) for _, function in forward.not_made_inside()}
        made = [
            (text, c, v) for text, c, v in reads.roots if isinstance(v, types.FunctionType) and id(v) not in lasting
        ]
        reads.roots[:] = [root for root in reads.roots if all(root[1] is not condition for _, condition, _ in made)]
        for _, _, function in made:
            table = reads.own(function.__globals__)
            reads.roots.append(("", reads.namespace("the global ", table), table))
        met = [(condition, value) for condition, value in reads.met() if forward.outer_condition(value) is not None]
        for condition, value in met:
            if isinstance(value, torch.nn.Module):
                reads.roots.append((f"the module {type(value).__name__}", condition, value))
        reached = self._reached()
        for condition, value in met:
            if id(condition) not in reached:
                reads.roots.append((f"an object of class {type(value).__qualname__}", condition, value))
        return reads.roots

    def _reached(self) -> set[int]:
        """Identities of the conditions that the roots lead to."""
        reads = self._reads
        return {id(condition) for _, condition, _ in reachable(reads.roots, set(), reads.values)}
