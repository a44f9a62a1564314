"""What the run of one block of a model has read, so that it is known when it can stand for the run of another.

It is a walk of its own (reads.py) beside that of the whole forward, and hears of the same frames while the block runs.
The other block would do the same where everything that was read is the same there: what the two own corresponds, as
the capture has found, and all the rest is one and the same, unchanged, and leads to nothing that the first one owns,
by which code could tell the two apart.

Not here: what the blocks own and compute (capture), the regions of checkpoints (regions.py).
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from ..conditions import (
    ClassCondition,
    Condition,
    FunctionCondition,
    NamespaceCondition,
    PythonModuleCondition,
    QueryCondition,
    UnknownCondition,
    cell_content,
)
from .code_names import Names
from .frames import FOLLOWED, kind_of
from .reads import Reads

__all__ = ["Block"]

_KEEPING = (ClassCondition, FunctionCondition, NamespaceCondition, PythonModuleCondition)
_OF_CLASSES = frozenset({"__reduce_ex__", "__reduce__", "__getstate__"})  # with which a class gives an object's state
_TELLING_APART = (id, hash)  # what gives another answer for every object


class _Walk(Reads):
    def has_read_values(self) -> bool:
        """Whether a number was made of a tensor's value."""
        return bool(self._tensors) or self._scalar_read

    def shared(self) -> list[tuple[Condition, Any]]:
        """What was met of what there was before, and whatever keeps names: those of a function that ran, too."""
        return [(c, v) for c, v in self.met() if not c.is_plain and (id(v) in self._outer or isinstance(c, _KEEPING))]

    def settings(self) -> list[tuple[Condition, Any]]:
        """The conditions of the functions that were asked for torch's settings."""
        asked = (f for f in self._queries.values() if self.own(f) is f and QueryCondition.answers(f))
        return [(QueryCondition(function), function) for function in asked]

    def looks_past_classes(self) -> bool:
        """Whether code of the user's looks attributes up by `object`'s own method, of which a trace does not hear."""
        used = (names for names in self._names.values() if not names.of_torch)
        return any(
            ("object" in names.globals and "__getattribute__" in names.attributes)
            or not _OF_CLASSES.isdisjoint(names.attributes)
            for names in used
        )

    def looks_at(self, owned: Mapping[int, Any]) -> Iterator[tuple[Any, Names, bool]]:
        """(object, names, whether it was there before the forward) of each look at one of these."""
        every = {id(names): names for names in (*self._names.values(), *self._kept) if isinstance(names, Names)}
        for value, names, outer in self._visited:
            if value in owned:
                known = every[names]
                yield owned[value], self._more.get(names, known), outer


class Block:
    """The reads of one run of a block.

    Args:
        forward: the walk of the whole forward.
        owned: what the block owns and is given, by its identity.

    Attributes:
        reads: the walk of the block.
        failed: whether something cannot be walked.
    """

    def __init__(self, forward: Reads, owned: Mapping[int, Any]) -> None:
        self._forward, self._owned = forward, dict(owned)
        self._begun = False
        self.reads = _Walk(forward.originals, forward.vouched, forward.tree)
        self.failed = False
        self._shared: list[tuple[Condition, Any]] = []
        self._settings: list[tuple[Condition, Any]] = []

    def entered(self, function: types.FunctionType | None, values: Iterable[Any]) -> None:
        """Hears of what a frame has: the first one's containers are the call's, but for those around its function."""
        if not self._begun:
            self._begun = True
            around = {id(cell_content(cell)) for cell in getattr(function, "__closure__", None) or ()}
            self._own(value for value in values if id(value) not in around)

    def called(self, frame: types.FrameType, function: Any) -> None:
        """Hears of a C function that is called."""
        if any(function is one for one in _TELLING_APART) and kind_of(frame.f_code, frame.f_globals) == FOLLOWED:
            self.failed = True

    def _own(self, values: Iterable[Any]) -> None:
        for value in values:
            if type(value) in (tuple, list, dict) and id(value) not in self._owned:
                self._owned[id(value)] = value
                self._own(value.values() if type(value) is dict else value)

    def ended(self) -> bool:
        """Whether the run can stand for those of others; called at its end, within the trace."""
        reads = self.reads
        if self.failed or reads.has_read_values() or reads.any_name_of_program() or reads.looks_past_classes():
            return False
        met = reads.shared()
        if any(isinstance(condition, UnknownCondition) for condition, _ in met):
            return False
        self._shared = [(condition, value) for condition, value in met if id(value) not in self._owned]
        if any(id(value) in self._forward.tree for _, value in self._shared) or not self.unchanged():
            return False
        self._settings = reads.settings()
        return not any(self._leads_back(condition, value) for condition, value in self._shared)

    def unchanged(self) -> bool:
        """Whether everything that is not the block's own is as it was when it was read."""
        reads = self.reads
        if any(condition.refusal(value) is not None for condition, value in self._settings):
            return False
        return not any(condition.changed(value, reads) for condition, value in self._shared)

    def _leads_back(self, condition: Condition, value: Any) -> bool:
        """Whether an object that blocks share leads to what one of them owns."""
        try:
            return any(id(self.reads.own(held)) in self._owned for _, _, held in condition.parts(value))
        except (AttributeError, KeyError, TypeError, ValueError):  # it is not what it was
            return True

    def repeated(self, others: Mapping[int, Any]) -> None:
        """Has the walk of the forward look at what another block owns, by what this one does, as was looked at that."""
        for value, names, outer in self.reads.looks_at(self._owned):
            other = others.get(id(value))
            if other is not None and not isinstance(value, torch.Tensor):
                self._forward.follow(other, names, outer)
