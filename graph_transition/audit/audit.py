"""The audit of one trace: listens while the forward runs, and says on what the graph depends.

The capture runs the forward within `running`, and calls `finished` while the trace's state is still in place.
Afterwards `conditions` settles what the graph depends on, or refuses it.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ... import _C
from ...capture.module_tensors import named_tensors
from ...capture.trace.messages import SaidLine, SaidWarning
from ...capture.trace.patching import ORIGINALS
from ...capture.trace.wrapper import GivenNames
from ...errors import CaptureError, ChangedValueError
from ..conditions import (
    Argument,
    CacheCondition,
    Check,
    Condition,
    HooksCondition,
    ModuleCondition,
    OuterTensorCondition,
    TreeAttributesCondition,
    UnknownCondition,
    is_value,
    reachable,
    spoken,
)
from ..conditions.caches import results_in
from ..conditions.tensors import attributes_of
from .blocks import Block
from .changes import Effect, undo_changes
from .code_names import NO_NAMES
from .frames import FOLLOWED, followed_frames, is_heard, kind_of
from .reads import Reads
from .regions import Regions
from .returned import Returned

__all__ = ["Audit"]

_HEAP_TYPE = 1 << 9


class Audit:
    """One trace of a module's forward.

    Args:
        module: the module.
        leaves: of the call.
        vouched: identities of the functions and objects that the user vouches for.
        own_hooks: whether the module's own forward hooks belong to the call.
        given: the call's containers.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        leaves: Sequence[Any] = (),
        vouched: frozenset[int] = frozenset(),
        own_hooks: bool = True,
        given: Sequence[Any] = (),
    ) -> None:
        self._module, self._leaves, self._vouched, self.own_hooks = module, leaves, vouched, own_hooks
        self._classes = {kind: None for kind in map(type, given) if kind.__flags__ & _HEAP_TYPE}
        self.given: GivenNames | None = None
        self._reads = Reads((ORIGINALS,))
        self._regions = Regions(self._reads)
        self._arguments: dict[int, int] = {}  # by place among the roots, the index of a leaf
        # Torch puts functions of its own there while it traces.
        self._before = [(table, dict(table)) for table in (vars(builtins), vars(math))]
        self._monitor: _C.CallMonitor | None = None
        self.changed: dict[str, Any] = {}
        self.effects: list[Effect] = []
        self.said_once: list[SaidWarning | SaidLine] = []  # by functions with a cache; set when the trace is over
        self._returned: list[Returned] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Within it, the forward runs on this thread. What an earlier run of the same trace told is forgotten."""
        replaced = {
            id(value): before[name]
            for table, before in self._before
            for name, value in table.items()
            if name in before and value is not before[name] and id(value) not in ORIGINALS
        }
        tree = frozenset(map(id, self._module.modules()))
        self._take_back_caches()
        self.said_once = []
        self._reads = Reads((ORIGINALS, replaced), self._vouched, tree)
        self._reads.given = self.given
        self._reads.root("", self._module)
        self._regions = Regions(self._reads)
        self._returned = []
        self._arguments = {}
        for i, leaf in enumerate(self._leaves):  # what may change, while the call's signature stays what it was
            if not isinstance(leaf, torch.Tensor) and not is_value(leaf):
                self._arguments[len(self._reads.roots)] = i
                self._reads.root(f"the argument {i}", leaf)
                self._reads.follow(leaf, NO_NAMES, True)
        for kind in self._classes:  # of what a trace has others of; what is asked of those is asked of their class
            self._reads.root(f"the class {kind.__qualname__}", kind)
        self._hooks = HooksCondition(self._module, self._reads.part, self.own_hooks)
        self._reads.roots.append(("", self._hooks, self._module))
        for hook in self._hooks.hooks(self._module):
            self._reads.follow(hook, NO_NAMES, True)
        try:
            with followed_frames(self._regions) as self._monitor:
                yield
        except BaseException:
            self._take_back()
            undo_changes(self._reads)
            self._take_back_caches()
            raise
        finally:
            self._monitor = None

    def pause(self) -> None:
        """Hears that torch itself runs, and with it what the user has given it for traces (shapes of operators)."""
        if self._monitor is not None:
            self._monitor.pause()

    def resume(self) -> None:
        """Hears that it does no longer."""
        if self._monitor is not None:
            self._monitor.resume()

    def region(self) -> contextlib.AbstractContextManager[None]:
        """Within it, what runs is what eager's backward will run again."""
        self._tell_all()
        return self._regions.running()

    def _tell_all(self) -> None:
        """A further walk begins, which has heard nothing of what ran before."""
        if self._monitor is not None:
            self._monitor.forget()

    def beside(self, owned: Mapping[int, Any]) -> contextlib.AbstractContextManager[Block]:
        """Around the run of a block, which owns these objects, by their identities."""
        self._tell_all()
        return self._regions.beside(owned)

    def has_changed(self) -> bool:
        """After it: whether the forward has changed anything but tensors."""
        return bool(self.effects or self.changed)

    def follows(self, function: Any) -> bool:
        """Whether the frames of a function are followed, whoever calls it."""
        return isinstance(function, types.FunctionType) and (
            kind_of(function.__code__, function.__globals__) == FOLLOWED
        )

    def replaced(self, function: types.FunctionType, values: Sequence[Any]) -> None:
        """Hears that what the capture has put in a function's place is called with these values."""
        if self._monitor is not None:
            self._regions.replaced(function, values)

    def value_read(self, tensor: torch.Tensor | None) -> None:
        """Hears that a number was made of a tensor's value; of one that was computed, where `tensor` is None."""
        self._regions.value_read(tensor)

    def root(self, text: str, value: Any) -> None:
        """Hears that the forward has asked an object past the code that is followed."""
        self._reads.root(text, value)

    def no_module(self, names: Iterable[str]) -> None:
        """Hears that there were no modules of these names to import."""
        self._regions.no_module(frozenset(names))

    def knows(self, value: Any) -> bool:
        """Whether an object was met where the forward can have it from."""
        return self._reads.knows(value)

    def hears(self, hook: Any) -> bool:
        """Whether it is heard of what a hook does that torch calls."""
        return id(hook) in self._vouched or is_heard(hook)

    def caches(self) -> list[Any]:
        """Functions with a cache that the forward can reach; in some a trace may have left its tensors."""
        return [value for _, value in self._reads.met() if type(value) is functools._lru_cache_wrapper]

    def caches_put_back(self) -> list[Any]:
        """Those of them that get what they held before where no graph is kept: of which nobody vouches."""
        return [value for condition, value in self._reads.met() if isinstance(condition, CacheCondition)]

    def without(self, cache: Any, traced: Callable[[Any], bool | None]) -> bool:
        """Takes out of a cache what a trace has left of its tensors there.

        Args:
            cache: one of `caches_put_back`.
            traced: whether tensors of the trace can be reached from a value.

        Returns:
            Whether a graph of the trace can be kept, or PyTorch has to leave real ones there first.
        """
        added = [pair for pair in results_in(cache) if traced(pair) is not False]
        condition = self._reads.part(cache)
        if not added or not isinstance(condition, CacheCondition):
            return True
        if condition.lasts(cache) and not any(traced(key) for key, _ in added):
            return False
        condition.take_back(cache, whole=True)
        return True

    @contextlib.contextmanager
    def until_kept(self) -> Iterator[None]:
        """Where it ends in an error, no graph of the trace is kept; else what cached functions said is said."""
        try:
            yield
            for message in self.said_once:
                message.say()
        except BaseException:
            self._take_back_caches()
            raise

    def _take_back_caches(self) -> None:
        """Gives caches what they held before the trace."""
        for condition, value in self._reads.met():
            if isinstance(condition, CacheCondition):
                condition.take_back(value)

    def finished(self, results: Iterable[tuple[torch.nn.Module, str]], given: Iterable[Any]) -> None:
        """Takes back what the forward has changed, and notes what that was.

        Args:
            results: attributes that it has set before it looked at them.
            given: containers that are the trace's own.
        """
        self.pause()
        self._take_back()
        for module, name in results:
            condition = self._reads.part(module)
            if isinstance(condition, ModuleCondition):
                condition.forget_results(frozenset({name}))
        self.effects, self.changed = undo_changes(self._reads, given)

    def _take_back(self) -> None:
        if self.given is not None:
            self.given.taken_back()

    def is_kept(self, value: Any) -> bool:
        """Whether a value that the forward returns is an object that was there before it."""
        return self._reads.outer_condition(value) is not None

    def returned(self, value: Any) -> Returned | None:
        """What gives an object that the forward returns at each call; None for a value that never changes.

        Raises:
            CaptureError: nothing can.
        """
        if is_value(value):
            return None
        self._returned.append(Returned(value, self._reads.outer_condition))
        return self._returned[-1]

    def conditions(self) -> list[tuple[str, Condition, Any]]:
        """(text, condition, object) of what everything that was read is reached from; the object of an argument, which
        each call may give another of, is an `Argument`.

        Raises:
            ChangedValueError: the forward changes Python values.
            CaptureError: it can reach what cannot be watched.
        """
        reads = self._reads
        if self.changed:
            names = ", ".join(self.changed)
            text = f"the forward changes Python values, which a graph cannot repeat: {names}"
            raise ChangedValueError(text, changed=list(self.changed.values()))
        self._refuse_attributes_of_tensors()
        reads.settle()
        reads.roots.append(
            ("the module", TreeAttributesCondition(reads.every_name(), reads.any_name_of_program()), self._module)
        )
        self._hooks.forget()
        check = Check()
        changed = check.refusal(reads.roots) or check.refusal(reads.close({id(c) for c, _ in check.bound}))
        if changed is not None:
            self._refuse_unknown()
            # torch sets it otherwise while it traces, or another thread has set it
            raise ChangedValueError(f"the trace saw another value: {changed.reason}")
        self._refuse_lost_objects({id(condition) for condition, _ in check.bound})
        return [
            (text, condition, Argument(self._arguments[i]) if i in self._arguments else value)
            for i, (text, condition, value) in enumerate(reads.roots)
        ]

    def read_in_regions(self) -> list[tuple[str, Condition, Any]]:
        """The same of what backward runs again, for the objects of the trace; called after `conditions`."""
        return self._regions.roots()

    def _refuse_unknown(self) -> None:
        for text, condition, _ in reachable(self._reads.all_roots(), set(), self._reads.values):
            if isinstance(condition, UnknownCondition):
                raise CaptureError(f"the forward can reach {spoken(text)}, {condition.what}, which cannot be watched")

    def _refuse_lost_objects(self, reached: set[int]) -> None:
        """What is returned has to be found again at each call."""
        if any(id(one) not in reached for found in self._returned for one in found.conditions.values()):
            raise CaptureError("the forward returns an object that it is given, or that another call may not find")

    def _refuse_attributes_of_tensors(self) -> None:
        """What somebody has set on an argument, a parameter or a buffer is not on the tensors of the trace; on a tensor
        elsewhere it is, but nothing watches it.
        """
        names, any_name = self._reads.every_name(), self._reads.any_name_of_program()
        given = [leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor)]
        outer = [value for condition, value in self._reads.met() if isinstance(condition, OuterTensorCondition)]
        for tensor in (*given, *(t for _, t in named_tensors(self._module)), *outer):
            there = attributes_of(tensor).keys()
            read = sorted((there if any_name else names & there) - TreeAttributesCondition.OF_TORCH)
            if read:
                raise CaptureError(f"the forward reads attributes that are set on a tensor: {', '.join(read)}")
