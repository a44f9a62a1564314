"""Which blocks of a trace are repeated, and when."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.modules.module as torch_module
from torch import nn

from ...torch_private import casts_once, modes_now, outside_the_trace
from ..state.left_settings import settings_now
from ..state.scope_settings import OFFSETS
from .nodes import Values, copied, returned
from .pairing import Pairs, form_of
from .record import Begin, Call, Record, recorded

__all__ = ["Repeats"]

_FEWEST_NODES = 5  # what a block has recorded to be worth a comparison
_MOST, _MOST_TRIES = 8, 3  # runs that stand for others, and that cannot, of blocks of one form


@dataclasses.dataclass
class _Block:
    """One that has run.

    Attributes:
        module: the block.
        record: what its run has added to the trace.
        reads: what its code has read.
        looks: (module, attribute) of what was looked at of the block.
        held: what its modules held.
        settings: torch's, in which it ran.
        marks: what was left behind before it.
        uncopied: the memories that `contiguous()` has found to be so in it.
    """

    module: nn.Module
    record: Record
    reads: Any
    looks: set[tuple[nn.Module, str]]
    held: list[Any]
    settings: list[Any]
    uncopied: set[int]

    def is_as_it_was(self) -> bool:
        """Whether the block, and what it was given, is still what it was when it ran."""
        same = all(map(_same_entries, self.held, _held_by(self.module)))
        return same and self.record.forms == list(map(form_of, self.record.given)) and self.reads.unchanged()


class Repeats:
    """The blocks of one trace.

    Args:
        root: the module that is traced.

    Attributes:
        count: how many were not run.
        holds: whether the forward has asked nothing that would be another thing if they had.
    """

    def __init__(self, root: nn.Module) -> None:
        self._forms = _forms(root)
        self._calls: collections.Counter[int] = collections.Counter()
        self._left: collections.Counter[Any] = collections.Counter()
        self._blocks: dict[Any, list[_Block]] = {}
        self._refused: collections.Counter[Any] = collections.Counter()
        self._running = False
        self._state: Any = None
        self.count = 0
        self.holds = True

    def begin(self, state: Any) -> None:
        """Called before the traced forward, each time that it runs, with what its capture knows."""
        self.clear()
        self._state, self.count, self.holds = state, 0, True
        self._left.update(self._forms.values())

    def clear(self) -> None:
        """Forgets what has run, and with it the tensors of the trace."""
        self._state, self._running = None, False
        for held in (self._blocks, self._refused, self._left, self._calls):
            held.clear()

    def called(self, tracer: Any, module: nn.Module, args: Any, kwargs: Any, run: Callable[[], Any]) -> Any:
        """The result of a module's call: of `run`, or what the module's tensors give in a block that has run."""
        form = self._forms.get(id(module))
        if form is None or self._running or self._refused[form] >= _MOST_TRIES or _any_global_hook():
            return run()
        self._calls[id(module)] += 1
        again = self._calls[id(module)] > 1
        self._left[form] -= not again
        settings, begin, found, owned = _settings(), None, None, None
        with outside_the_trace():
            call = Call.of(args, kwargs)
            if call is not None and (found := self._like(form, call, module, settings)) is not None:
                block, given, pairs, values = found
                value = self._repeated(block, given, values, pairs, tracer)
            elif call is not None and (again or self._left[form] > 0) and len(self._blocks.get(form, ())) < _MOST:
                owned = Pairs(module, module)
                begin = Begin.now(call, _own_tensors(module), tracer) if owned.fit else None  # or it has hooks
        if found is not None:
            self._tell(block, pairs, values)
            return value
        if begin is None or owned is None:
            return run()
        begin.owned = {**owned.objects, **{id(tensor): tensor for tensor in begin.given}}
        return self._recorded(form, begin, settings, (module, args, kwargs), tracer, run)

    # -- the first of its kind --------------------------------------------------------------------------------------

    def _recorded(
        self, form: Any, begin: Begin, settings: list[Any], called: Any, tracer: Any, run: Callable[[], Any]
    ) -> Any:
        state, (module, args, kwargs) = self._state, called
        marks, uncopied = self._marks(), set(state.uncopied)
        self._running = True
        try:
            with state.audit.beside(begin.owned) as reads:
                value = run()
        finally:
            self._running = False
        looks = state.side_outputs.looked_at(module)
        same = looks is not None and OFFSETS not in state.asked
        same = same and (self._marks(), _settings()) == (marks, settings)
        with outside_the_trace():
            same = same and begin.call.is_same(Call.of(args, kwargs))  # or it has changed a list that it is given
            record = recorded(begin, value, tracer) if same else None
        if record is not None and len(record.nodes) < _FEWEST_NODES:
            self._refused[form] += _MOST_TRIES
            return value
        if record is None or not reads.ended():
            self._refused[form] += 1
            return value
        block = _Block(module, record, reads, looks, _held_by(module), settings, state.uncopied - uncopied)
        self._blocks.setdefault(form, []).append(block)
        return value

    def _marks(self) -> tuple[Any, ...]:
        """What grows where a run leaves more behind than nodes."""
        state = self._state
        asked = None if state.branches is None else state.branches.count
        return asked, len(state.calls), state.messages.count, state.side_outputs.writes, state.refusal, len(state.away)

    # -- the others -------------------------------------------------------------------------------------------------

    def _like(self, form: Any, call: Call, module: nn.Module, settings: list[Any]) -> Any:
        """A block that has run and does what the run of `module` would, and what corresponds in the two."""
        for block in self._blocks.get(form, ()):
            record = block.record
            if not call.fits(record.call) or block.settings != settings or not block.is_as_it_was():
                continue
            pairs = Pairs(block.module, module)
            if not pairs.fit or not pairs.differing.isdisjoint(block.looks):
                continue
            if not all(map(pairs.tensors_fit, record.call.tensors, call.tensors)):
                continue
            if casts_once() and any(one is other and _is_trained(one) for one, other in pairs.tensors):
                continue  # the second block would take what was cast for the first
            given = [pairs.objects[id(tensor)] for tensor in record.given]
            try:
                return block, given, pairs, Values(record, given)
            except (RuntimeError, NotImplementedError):  # what shares memory is not told by the stand-ins
                continue
        return None

    def _repeated(self, block: _Block, given: list[torch.Tensor], values: Values, pairs: Pairs, tracer: Any) -> Any:
        path = tracer.path_of_module
        paths = {path(module): path(pairs.objects[id(module)]) for module in block.module.modules()}
        nodes = copied(block.record, given, values, tracer, paths)
        return returned(block.record, given, values, nodes, tracer)

    def _tell(self, block: _Block, pairs: Pairs, values: Values) -> None:
        """Notes what the run would have led to beside its nodes."""
        block.reads.repeated(pairs.objects)
        self._state.side_outputs.repeat((pairs.objects[id(one)], name) for one, name in block.looks)
        self._state.uncopied.update(map(values.memory, block.uncopied))
        self.count += 1


def _held_by(module: nn.Module) -> list[dict[str, Any]]:
    """What is held by a module and those below it: their attributes, tensors and children."""
    return [
        dict(table) for one in module.modules() for table in (vars(one), one._parameters, one._buffers, one._modules)
    ]


def _same_entries(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(value is other[name] for name, value in one.items())


def _is_trained(tensor: torch.Tensor) -> bool:
    return tensor.is_leaf and tensor.requires_grad


def _settings() -> list[Any]:
    return [*settings_now(), *modes_now()]


def _any_global_hook() -> bool:
    return bool(torch_module._global_forward_pre_hooks or torch_module._global_forward_hooks)


def _own_tensors(module: nn.Module) -> list[torch.Tensor]:
    found = {id(tensor): tensor for one in module.modules() for tensor in _tensors_of(one)}
    return list(found.values())


def _tensors_of(module: nn.Module) -> Iterator[torch.Tensor]:
    for table in (module._parameters, module._buffers):
        yield from (tensor for tensor in table.values() if tensor is not None)


def _forms(root: nn.Module) -> dict[int, Any]:
    """By the identity of a module below `root`, what it has in common with all that may be its like."""
    return {id(module): _form(module) for module in root.modules() if module is not root}


def _form(module: nn.Module) -> Any:
    return type(module), tuple(map(form_of, _own_tensors(module)))
