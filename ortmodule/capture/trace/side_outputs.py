"""Which attributes of its modules a traced forward sets without having looked at them: `self.aux_loss = ...`.

They are results of the call, to be set again by every other. Which those are only the accesses themselves tell, in
their order. Not here: what the forward reads and what else it changes (graph_transition/audit).
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ... import _C
from ...naming import module_of

__all__ = ["SideOutputs", "holds_fake"]

_REPEATABLE = (bool, int, float, complex, str, type(None), torch.SymInt)  # what a graph can set on a module
_TABLES = ("_parameters", "_buffers", "_modules")  # of what nn.Module.__getattr__ finds
_MISSING = object()
_PATCHING = f"{__package__}.patching"
# What nn.Module keeps for itself; hooks and sub-modules are watched by the transition manager.
_INTERNALS = frozenset({*vars(torch.nn.Module), *vars(torch.nn.Module()), "training", "__class__"})


# What gives all attributes away, by which `copy.copy(module)` takes them.
_ALL_OF_IT = frozenset({"__dict__", "__reduce_ex__", "__reduce__", "__getstate__"})
_UNWATCHED = _INTERNALS - {"training"}


def _is_plain(value: Any) -> bool:
    return value is _MISSING or isinstance(value, (bool, int, float, complex, str, type(None)))


def holds_fake(value: Any) -> bool:
    """Whether a value is or holds a tensor of the trace, which stands for no real one."""
    if isinstance(value, (list, tuple, dict)):
        return any(map(holds_fake, value.values() if isinstance(value, dict) else value))
    return isinstance(value, FakeTensor)


def _is_repeatable(value: Any) -> bool:
    """Whether a graph can set this on a module at each call."""
    if type(value) in (list, tuple, dict):
        return all(map(_is_repeatable, value.values() if type(value) is dict else value))
    return isinstance(value, (*_REPEATABLE, FakeTensor)) or holds_fake(value)


def _is_of_a_program(getattribute: types.FrameType) -> bool:
    """Whether an attribute is asked for by neither torch nor this package, whose patches pass the question on."""
    frame = getattribute.f_back
    while frame is not None and frame.f_globals.get("__name__") == _PATCHING:
        frame = frame.f_back
    return frame is not None and not str(frame.f_globals.get("__name__")).startswith(("torch.", "ortmodule."))


class SideOutputs:
    """The attributes of one trace.

    Args:
        root: the module that is traced.
    """

    def __init__(self, root: torch.nn.Module) -> None:
        self._before = {module: dict(vars(module)) for module in root.modules()}
        self._looked_at: set[tuple[torch.nn.Module, str]] = set()
        self._looked_at_whole: set[torch.nn.Module] = set()  # by `vars(module)` or `copy.copy(module)`
        self._written: dict[tuple[torch.nn.Module, str], None] = {}  # set before it was looked at, in order
        self.writes = 0  # how often a module's attribute was set
        self._running = False  # whether the forward itself runs: torch's export sets attributes around it
        self.heard = _C.HeardPairs()  # looks of which nothing more is to be noted
        self.heard.listens = False

    def record_read(self, module: torch.nn.Module, name: str) -> None:
        """Notes one look at `module.name`, whether it is there or not."""
        if not self._running:
            return
        if name in _ALL_OF_IT:  # nn.Module's own methods ask for `__dict__` as well
            if _is_of_a_program(sys._getframe(1)):
                self._looked_at_whole.add(module)
            return
        if name not in _INTERNALS and module in self._before and (module, name) not in self._written:
            self._looked_at.add((module, name))
        self.heard.add(module, name)

    def record_write(self, module: torch.nn.Module, name: str) -> None:
        """Notes that `module.name` is set by the forward."""
        self.writes += 1
        known = module in self._before and (module, name) not in self._looked_at
        known = known and module not in self._looked_at_whole
        if self._running and known and name not in _INTERNALS and not self._is_torchs_own(module, name):
            self._written[module, name] = None

    @staticmethod
    def _is_torchs_own(module: torch.nn.Module, name: str) -> bool:
        """An RNN's `_flat_weights`."""
        return module_of(type(module)).startswith("torch.") and name[0] == "_"

    def looked_at(self, part: torch.nn.Module) -> set[tuple[torch.nn.Module, str]] | None:
        """(module, name) of what has been looked at so far, or may have been, of a module and those below it; None
        where one of them was looked at as a whole, or is none of those that there were before.
        """
        modules = set(part.modules())
        if not modules.isdisjoint(self._looked_at_whole) or not modules <= self._before.keys():
            return None
        looks = {*self._looked_at, *self._written}  # of what is set first, looks are not noted
        return {(module, name) for module, name in looks if module in modules}

    def repeat(self, looks: Iterable[tuple[torch.nn.Module, str]]) -> None:
        """Notes looks that a block would have had, if it had been run."""
        for module, name in looks:
            self.record_read(module, name)

    def begin(self) -> None:
        """Called before the traced forward."""
        self._running = self.heard.listens = True
        self.heard.clear()
        self._looked_at.clear()
        self._looked_at_whole.clear()
        self._written.clear()

    def finish(self) -> list[tuple[torch.nn.Module, str, Any]]:
        """Called at the end of the traced forward; returns (module, name, value) of what it has set. The modules no
        longer hold it.
        """
        self._running = self.heard.listens = False
        self.heard.clear()
        found = [(m, n, vars(m).get(n, _MISSING)) for m, n in self._written]
        results = [(module, name, value) for module, name, value in found if _is_repeatable(value)]
        for module, name, _ in results:
            self._reset(module, name)
        return results

    def forgotten(self) -> list[str]:
        """Called when all that is known of what the forward has changed is taken back: what of its modules' plain
        attributes is not what it was before. They are given it back.
        """
        root = next(iter(self._before))
        names = {module: name for name, module in root.named_modules()}
        found = []
        for module, before in self._before.items():
            for name in {*before, *vars(module)} - _UNWATCHED:
                now, was = vars(module).get(name, _MISSING), before.get(name, _MISSING)
                if now is was or not (_is_plain(now) and _is_plain(was)) or self._is_torchs_own(module, name):
                    continue
                if type(now) is not type(was) or repr(now) != repr(was):
                    found.append(".".join(part for part in (names.get(module, ""), name) if part))
                    self._reset(module, name)
        return found

    def restore(self) -> None:
        """Gives the attributes that hold tensors of the trace back what they were."""
        self._running = self.heard.listens = False
        self.heard.clear()
        for module, before in self._before.items():
            for name, value in list(vars(module).items()):
                if name not in _INTERNALS and value is not before.get(name, _MISSING) and holds_fake(value):
                    self._reset(module, name)

    def _reset(self, module: torch.nn.Module, name: str) -> None:
        if name in self._before[module]:
            vars(module)[name] = self._before[module][name]
        else:
            vars(module).pop(name, None)
