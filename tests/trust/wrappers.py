"""What is tried: eager PyTorch, ORTModule, torch.compile, and two that are broken on purpose.

`stale` replays its first trace for every call of the same kind, as a tracer without conditions does; `first` keeps its
first result. The tests ask that both are found out.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["WRAPPERS", "Wrapper"]


@dataclasses.dataclass(frozen=True)
class Wrapper:
    """make: from a module to a callable; runs: how many calls its engine ran; reset: forgets between programs."""

    make: Callable[[nn.Module], Any]
    runs: Callable[[Any], int] = lambda wrapped: 0
    reset: Callable[[], None] = lambda: None


def _ortmodule(module: nn.Module) -> Any:
    from ortmodule import Options, ORTModule

    return ORTModule(module, options=Options(dropout="torch"))


def _engine_runs(wrapped: Any) -> int:
    """Runs of graphs of the whole module: those of parts, which a fallback leaves to the engine, do not count."""
    return sum(transition.runs for transition in wrapped._manager.transitions())


def _compile(module: nn.Module) -> Any:
    return torch.compile(module, backend="eager")


def _reset_compile() -> None:
    torch._dynamo.reset()


class _Stale:
    """Replays the first trace of each kind of call."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.traces: dict[Any, Any] = {}

    def __call__(self, x: torch.Tensor, **given: Any) -> Any:
        key = (x.shape, x.requires_grad, self.module.training, torch.is_grad_enabled(), sorted(given))
        key_text = str(key)
        if key_text not in self.traces:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self.traces[key_text] = torch.jit.trace(
                        self.module, example_kwarg_inputs={"x": x, **given}, check_trace=False, strict=False
                    )
            except Exception:
                self.traces[key_text] = self.module
        return self.traces[key_text](x=x, **given)


class _First:
    """Gives the first result of each kind of call again."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.results: dict[str, Any] = {}

    def __call__(self, x: torch.Tensor, **given: Any) -> Any:
        key = str((x.shape, self.module.training))
        if key not in self.results:
            self.results[key] = self.module(x, **given)
        return self.results[key]


WRAPPERS = {
    "eager": Wrapper(lambda module: module),
    "ortmodule": Wrapper(_ortmodule, _engine_runs),
    "compile": Wrapper(_compile, reset=_reset_compile),
    "stale": Wrapper(_Stale),
    "first": Wrapper(_First),
}
