"""`torch._check` and its kin, which a forward calls about numbers of its inputs: it goes on where they hold.

torch's tracing takes a check's word for it, and leaves a node in the graph that looks again. Here the question is asked
as a branch's is: its answer is a condition of the graph.

Not here: how questions are answered (trace/branches.py), assertions about tensors, which the engine has.
"""

from __future__ import annotations

from typing import Any

import torch

from ..... import _C
from ...patching import Patch
from ...tracing import TraceState

__all__ = ["PATCHES"]

_CHECKS = [name for name in vars(torch) if name.startswith("_check") and name != "_check_with"]


def _asked(original: Any, state: TraceState) -> Any:
    if state.audit is None and state.branches is None:  # a graph by itself, of whatever the caller gives it
        return original

    def check(cond: Any, *args: Any, **kwargs: Any) -> Any:
        holds = not isinstance(cond, torch.SymBool) or bool(cond)
        return original(cond if holds else False, *args, **kwargs)

    return check


def _of_programs(state: TraceState) -> _C.Callers:
    return _C.Callers(lambda scope: not str(scope.get("__name__")).startswith(("torch.", "ortmodule.")))


PATCHES = tuple(Patch(torch, name, _asked, only=_of_programs) for name in _CHECKS)
