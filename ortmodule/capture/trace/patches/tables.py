"""What a trace does with modules is for the tracing thread alone: parameters and buffers, calls and look-ups.

torch's export puts its own tensors into the tables of every module (`_parameters`, `_buffers`), for every thread to
see: one that keeps an average of the weights, saves a checkpoint or runs a part of the model at that moment would read
tensors without values. While a capture runs, the tables have two sides: what the tracing thread puts there only it
sees, and it is gone in the end; for the others the modules hold what they held.

And while torch traces, every call of a module and every look-up on one goes through its tracer, in every thread; the
others are sent past it. Where a module stands in two places, the tracer's look-ups would give something else in its
place, which is not it (`is`, a key of a dict): here they give it itself.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import torch
from torch.fx.experimental import proxy_tensor

from ... import torch_private
from ..patching import Around, Patch
from ..tracing import TraceState

__all__ = ["PATCHES"]

_NAMES = ("_parameters", "_buffers")
_Members = dict[str, torch.Tensor | None]


class _Table(MutableMapping, dict):  # type: ignore[misc, metaclass]
    """A module's table with a side of its own for one thread; pickled and copied it is a plain dict."""

    def __init__(self, held: _Members, is_traced: Callable[[], bool]) -> None:
        dict.__init__(self, held)  # type: ignore[call-overload]  # what code in C sees
        self.held = held
        self.is_traced = is_traced  # whether the caller's is the tracing thread
        self._traced = dict(held)

    def _side(self) -> _Members:
        return self._traced if self.is_traced() else self.held

    def __getitem__(self, name: str) -> torch.Tensor | None:
        return self._side()[name]

    def __setitem__(self, name: str, value: torch.Tensor | None) -> None:
        self._side()[name] = value

    def __delitem__(self, name: str) -> None:
        del self._side()[name]

    def __contains__(self, name: object) -> bool:
        return name in self._side()

    def __iter__(self) -> Iterator[str]:
        return iter(self._side())

    def __len__(self) -> int:
        return len(self._side())

    def __repr__(self) -> str:
        return repr(self._side())

    def copy(self) -> _Members:
        return dict(self._side())

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> _Members:
        return copy.deepcopy(self._side(), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self._side()),)


@contextlib.contextmanager
def _own_tables(state: TraceState) -> Iterator[None]:
    """Within it, what the tracing thread puts into the tables of the modules is seen by that thread alone."""
    tables: dict[int, _Table] = {}  # by the identity of what is replaced: a wrapper shares its module's tables
    parameters: dict[int, torch.nn.Parameter] = {}  # by the identity of the tensor that each stands for
    replaced: list[tuple[dict[str, Any], str, _Table]] = []
    for holder in _holders(state.module):
        attributes = vars(holder)
        for name in _NAMES:
            held = attributes.get(name)
            if type(held) is dict:
                if id(held) not in tables:
                    tables[id(held)] = _Table(held, state.is_here)
                    if name == "_parameters":
                        _make_parameters(tables[id(held)], parameters)
                table = tables[id(held)]
                attributes[name] = table
                replaced.append((attributes, name, table))
    try:
        yield
    finally:
        for attributes, name, table in replaced:
            if attributes.get(name) is table:
                attributes[name] = table.held
            table.is_traced = _never


def _never() -> bool:
    return False


def _make_parameters(table: _Table, made: dict[int, torch.nn.Parameter]) -> None:
    """Gives the tracing thread a parameter for each plain tensor, as `functional_call` puts there, which torch's export
    refuses.
    """
    for name, value in table.held.items():
        if value is not None and not isinstance(value, torch.nn.Parameter):
            if id(value) not in made:
                made[id(value)] = torch.nn.Parameter(value.detach(), requires_grad=value.requires_grad)
            table[name] = made[id(value)]


def _holders(root: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules, and the wrappers (ORTModules) that stand in their places."""
    found = {id(module): module for module in root.modules()}
    for module in list(found.values()):
        children = vars(module).get("_modules")
        if isinstance(children, dict):
            found.update((id(child), child) for child in children.values() if child is not None)
    return list(found.values())


def _unchanged(original: Any, state: TraceState) -> Any:
    return original


def _called_plainly(tracer: Any, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
    torch_private.pass_through(tracer)
    return torch_private.called_plainly(module, forward, args, kwargs)


def _read_plainly(tracer: Any, name: str, value: Any, cache: Any) -> Any:
    torch_private.pass_through(tracer)
    return torch_private.read_plainly(name, value, cache)


def _plain_look_up(original: Any, state: TraceState) -> Any:
    return _read_plainly


ORDER = -1  # the modules are told apart by their tables before anything else is done to them
PATCHES = (
    Around(_own_tables),
    Patch(proxy_tensor._ModuleStackTracer, "call_module", _unchanged, elsewhere=_called_plainly),
    Patch(proxy_tensor._ModuleStackTracer, "getattr", _plain_look_up, elsewhere=_read_plainly),
)
