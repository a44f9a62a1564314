"""Gradients with history, by the engine: each a graph of its own, whose gradients are again one.

`create_graph=True` asks for gradients that can be differentiated. The gradients of a session's graph are themselves a
graph, of the session's inputs and of the gradients that come to its results (csrc/compile/derivative_graph.h). It is
compiled when that is first asked for; where its own gradients are to be differentiated the same is done with it.

The forward is computed again, from the tensors that the call was given. Not here: a graph that has no such form, whose
call PyTorch runs again (higher_order.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from .. import _C
from ..errors import UnsupportedError

__all__ = ["Derivatives"]

Gradients = list[torch.Tensor | None]


class Derivatives:
    """Of one graph.

    Args:
        model: the graph, serialized.
        wanted: the names of those of its inputs whose gradients may be asked for.
        options: of its session.
    """

    def __init__(self, model: Callable[[], bytes], wanted: Sequence[str], options: Mapping[str, Any]) -> None:
        self._model, self._wanted, self._options = model, list(wanted), options
        self._built: dict[tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...]], _Derivative] = {}

    def gradients(
        self,
        given: Sequence[torch.Tensor],
        changed: Sequence[int],
        dys: Mapping[str, torch.Tensor],
        places: Sequence[int],
    ) -> Gradients:
        """The gradients of the wanted inputs, with history; None where one is identically zero or not asked for.

        Args:
            given: the graph's inputs.
            changed: the places of those that were written since the forward.
            dys: gradients of the graph's outputs, by name.
            places: of the wanted inputs those that are asked for.

        Raises:
            UnsupportedError: they cannot be had in this way.
        """
        flowing = tuple(name for name, dy in dys.items() if dy.requires_grad)
        key = (tuple(dys), flowing, tuple(places))
        derivative = self._built.get(key)
        if derivative is None:
            derivative = self._built[key] = _Derivative(
                self._model(), self._wanted, places, list(dys), flowing, self._options
            )
        return derivative.run(given, changed, dys)

    def sessions(self) -> Iterator[_C.Session]:
        """Those that were made so far, and those of their gradients."""
        for derivative in self._built.values():
            yield derivative.session
            yield from derivative.again.sessions()


class _Derivative:
    """The gradients of a graph's inputs `wanted` at some places, from those of its outputs `ys`, of which `flowing`
    have a history.
    """

    def __init__(
        self,
        model: bytes,
        wanted: list[str],
        places: Sequence[int],
        ys: list[str],
        flowing: Sequence[str],
        options: Mapping[str, Any],
    ) -> None:
        model, dys, dxs, self._reads = _C.derivative_graph(model, [wanted[i] for i in places], ys, wanted)
        self._dxs, self._dys, self._count = [places[i] for i in dxs], [ys[i] for i in dys], len(wanted)
        wanted = [*wanted, *(f"{name}_grad" for name in self._dys if name in flowing)]
        self.session = _C.Session(model, "training", wanted, dict(options))
        self.again = Derivatives(lambda: model, wanted, options)
        places = range(len(self.session.input_names))
        self.session.differentiate_again(places, functools.partial(_repeat, self.again), True)

    def run(self, given: Sequence[torch.Tensor], changed: Sequence[int], dys: Mapping[str, torch.Tensor]) -> Gradients:
        if written := set(changed) & set(self._reads):
            names = ", ".join(self.session.input_names[i] for i in sorted(written))
            raise UnsupportedError(f"{names} changed since the forward")
        gradients: Gradients = [None] * self._count
        found = self.session.run([*given, *(dys[name] for name in self._dys)])
        for place, gradient in zip(self._dxs, found, strict=True):
            gradients[place] = gradient
        return gradients


def _repeat(
    derivatives: Derivatives,
    given: Sequence[torch.Tensor],
    changed: Sequence[int],
    random_state: torch.Tensor | None,
    looked: bool,
) -> Callable[..., Gradients]:
    """As `_C.Session.differentiate_again` asks for it."""

    def gradients(
        dys: Mapping[str, torch.Tensor], whole: Sequence[str], of: str | None, wanted: Sequence[int], dxs: Any
    ) -> Gradients:
        return derivatives.gradients(given, changed, dys, wanted)

    return gradients
