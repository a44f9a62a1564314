"""What is tried: eager PyTorch, ORTModule, torch.compile, and two that are broken on purpose.

`stale` replays its first trace for every call of the same kind, as a tracer without conditions does; `first` keeps its
first result. The tests ask that both are found out.
"""

from __future__ import annotations

import dataclasses
import tempfile
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


class _Starts:
    """Wraps the module anew for every other call, with one cache on disk, as starts of a program in turn do."""

    def __init__(self, module: nn.Module) -> None:
        from ortmodule import Options

        folder = tempfile.TemporaryDirectory()
        options = Options(dropout="torch", cache_dir=folder.name)
        vars(self).update(module=module, folder=folder, calls=0, made=[], options=options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from ortmodule import ORTModule

        if self.calls % 2 == 0:
            self.made.append(ORTModule(self.module, options=self.options))
        vars(self)["calls"] += 1
        return self.made[-1](*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.module, name)


def _runs_of_entries(wrapped: Any) -> int:
    """Runs of graphs that came from the cache."""
    return sum(
        transition.runs
        for one in wrapped.made
        if any(export.cached for export in one.report().exports)
        for transition in one._manager.transitions()
    )


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
    "starts": Wrapper(_Starts, _runs_of_entries),
    "compile": Wrapper(_compile, reset=_reset_compile),
    "stale": Wrapper(_Stale),
    "first": Wrapper(_First),
}
