"""nn.Module's own attribute access tells what a forward looks at and sets on its modules, in which order.

torch.export copies the containers in every module's attributes, and puts the copies there in the end, so that `a is b`
would not hold any more after a capture. What a forward changes is found and taken back without that.

Not here: what is made of the accesses (trace/side_outputs.py), of changes (graph_transition/audit).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from ..patching import Around, Patch
from ..tracing import TraceState

__all__ = ["PATCHES"]


@contextlib.contextmanager
def _restored(state: TraceState) -> Iterator[None]:
    try:
        yield
    finally:
        state.side_outputs.restore()


def _module_access(original: Any, state: TraceState) -> Any:
    side_outputs = state.side_outputs

    def getattribute(self: nn.Module, name: str) -> Any:
        side_outputs.record_read(self, name)
        return original(self, name)

    return getattribute


def _module_setting(original: Any, state: TraceState) -> Any:
    def setattribute(self: nn.Module, name: str, value: Any) -> None:
        original(self, name, value)
        if name in vars(self):
            state.side_outputs.record_write(self, name)

    return setattribute


def _no_snapshot(original: Any, state: TraceState) -> Any:
    return lambda module: contextlib.nullcontext()


PATCHES = (
    Around(_restored),
    Patch("torch.export._trace", "_detect_attribute_assignment", _no_snapshot),
    Patch(nn.Module, "__getattribute__", _module_access),
    Patch(nn.Module, "__setattr__", _module_setting),
)
