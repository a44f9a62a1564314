"""Stages that are runs of an nn.Sequential's children: each is given the one tensor that the one before returns.

Not here: any other module (graph_stages.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

__all__ = ["SequentialStages", "problem"]


class SequentialStages:
    """Args:
    model: an nn.Sequential.
    cuts: names of the children with which stages but the first begin.
    own: the numbers of this rank's stages.
    wrap: what a stage is wrapped in; None: nothing.

    Attributes:
        handed: what stages hand on, by name.
        model: what this rank trains.
    """

    def __init__(
        self, model: nn.Module, cuts: Sequence[str], own: Sequence[int], wrap: Callable[[nn.Module], nn.Module] | None
    ) -> None:
        pieces = _pieces(model, cuts)
        self.handed = [[""] for _ in cuts]
        modules = [_sequence(pieces[s]) for s in own]
        self.modules = {s: m if wrap is None else wrap(m) for s, m in zip(own, modules, strict=True)}
        whole = _sequence([child for s in own for child in pieces[s]])
        self.model = self.modules[own[0]] if len(own) == 1 else whole
        self._last = len(cuts)

    def plan(self, args: tuple[Any, ...], kwargs: dict[str, Any], whole: bool) -> SequentialStages:
        """Itself: every call is cut alike."""
        del args, kwargs, whole
        return self

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The one tensor that the first stage is given."""
        return [*args, *kwargs.values()]

    def run(
        self, stage: int, leaves: Sequence[Any], handed: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], Any]:
        """What a stage hands on, and the result of the last."""
        made = self.modules[stage](handed[""] if stage else leaves[0])
        if stage == self._last:
            return {}, made
        if not isinstance(made, torch.Tensor):
            raise TypeError(f"stage {stage} returns {type(made).__name__}: the next one is handed one tensor")
        return {"": made}, None

    def train(self, mode: bool) -> None:
        for module in self.modules.values():
            module.train(mode)


def _sequence(children: Sequence[tuple[str, nn.Module]]) -> nn.Sequential:
    out = nn.Sequential()
    for name, child in children:
        out.add_module(name, child)
    return out


def _pieces(model: nn.Module, cuts: Sequence[str]) -> list[list[tuple[str, nn.Module]]]:
    """The model's children by stage."""
    out: list[list[tuple[str, nn.Module]]] = [[]]
    for name, child in model.named_children():
        if name in cuts:
            out.append([])
        out[-1].append((name, child))
    return out


def problem(model: Any, cuts: Any) -> str | None:
    """Why a model cannot be cut so."""
    if type(model).forward is not nn.Sequential.forward:
        return (
            f"without example= a pipeline is cut from an nn.Sequential, got {type(model).__name__}: give a batch as "
            "example=, whose graph is cut"
        )
    if not isinstance(cuts, list | tuple):
        return f"an nn.Sequential is cut at names of its children, got cuts={cuts!r}: or give example="
    names = [name for name, _ in model.named_children()]
    if unknown := [name for name in cuts if name not in names[1:]]:
        return f"no stage can begin with '{unknown[0]}': the children after the first are {', '.join(names[1:])}"
    if sorted(cuts, key=names.index) != list(cuts) or len(set(cuts)) < len(cuts):
        return f"the cuts are not in the order of the model's children: {', '.join(cuts)}"
    stage_of: dict[torch.Tensor, int] = {}
    for i, children in enumerate(_pieces(model, cuts)):
        for name, child in children:
            for own, p in child.named_parameters():
                if stage_of.setdefault(p, i) != i:
                    return (
                        f"{name}.{own} is a parameter of an earlier stage, too: give example=, so that its gradients "
                        "are summed over the stages"
                    )
    return None
