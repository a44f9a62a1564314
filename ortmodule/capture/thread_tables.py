"""What a trace puts in place of parameters and buffers is for the tracing thread alone.

torch's export puts its own tensors into the tables of every module (`_parameters`, `_buffers`), for every thread to
see: one that keeps an average of the weights, saves a checkpoint or runs a part of the model at that moment would read
tensors without values. While a capture runs, the tables have two sides: what the tracing thread puts there only it
sees, and it is gone in the end; for the others the modules hold what they held.

Not here: the functions that a capture replaces, which other threads do not see either (patches.py).
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch

__all__ = ["own_tables"]

_NAMES = ("_parameters", "_buffers")
_Members = dict[str, torch.Tensor | None]


class _Table(MutableMapping, dict):  # type: ignore[misc, metaclass]
    """A module's table with a side of its own for one thread; pickled and copied it is a plain dict."""

    def __init__(self, held: _Members, thread: int) -> None:
        dict.__init__(self, held)  # type: ignore[call-overload]  # what code in C sees
        self.held = held
        self.thread: int | None = thread
        self._traced = dict(held)

    def _side(self) -> _Members:
        return self._traced if threading.get_ident() == self.thread else self.held

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
def own_tables(root: torch.nn.Module, thread: int) -> Iterator[None]:
    """Within it, what `thread` puts into the tables of `root`'s modules is seen by `thread` alone."""
    tables: dict[int, _Table] = {}  # by the identity of what is replaced: a wrapper shares its module's tables
    parameters: dict[int, torch.nn.Parameter] = {}  # by the identity of the tensor that each stands for
    replaced: list[tuple[dict[str, Any], str, _Table]] = []
    for holder in _holders(root):
        attributes = vars(holder)
        for name in _NAMES:
            held = attributes.get(name)
            if type(held) is dict:
                if id(held) not in tables:
                    tables[id(held)] = _Table(held, thread)
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
            table.thread = None


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
