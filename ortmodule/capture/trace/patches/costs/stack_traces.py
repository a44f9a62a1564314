"""Where in the user's code each node was made: the frames that are not torch's, as text.

torch takes the whole stack with each node, a hundred frames of its own among it, looks for the forward in it and writes
out the rest; it is given the user's frames alone, and each line of theirs is written once.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.fx.proxy as fx_proxy

from ....source_lines import TORCH_ROOT
from ...patching import Around, Patch
from ...tracing import TraceState

__all__ = ["PATCHES"]

_BEGIN = str(Path(__file__).parents[2] / "wrapper.py")  # what calls the forward
_NO_FILE = "<string>"  # of code that was made while it ran


class _Line(traceback.FrameSummary):
    """A line of the user's, and the code that it is in."""

    @functools.cached_property
    def text(self) -> str:
        source = f"    {self.line}\n" if self.line else ""
        return f'  File "{self.filename}", line {self.lineno}, in {self.name}\n{source}'


class _Lines(traceback.StackSummary):
    """What is running, the forward first."""

    def format(self, **kwargs: Any) -> list[str]:
        return [line.text for line in self]  # type: ignore[attr-defined]


class _UserFrames:
    """In place of torch's `CapturedTraceback`."""

    def __init__(self, state: TraceState, original: Any) -> None:
        self._state, self._original = state, original
        # By the identity of code, which is kept for it: its lines; None: torch's.
        self._met: dict[int, tuple[types.CodeType, dict[int | None, _Line] | None]] = {}

    def extract(self, **kwargs: Any) -> Any:
        if not self._state.is_here():
            return self._original.extract(**kwargs)
        met, found = self._met, _Lines()
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            known = met.get(id(code))
            if known is None:
                if code.co_filename == _BEGIN:
                    break
                is_torchs = code.co_filename.startswith(TORCH_ROOT) or code.co_filename == _NO_FILE
                known = met[id(code)] = (code, None if is_torchs else {})
            lines = known[1]
            if lines is not None:
                at = frame.f_lineno
                if at not in lines:
                    lines[at] = _Line(code.co_filename, at, code.co_name, lookup_line=False)
                found.append(lines[at])
            frame = frame.f_back
        found.reverse()
        return types.SimpleNamespace(summary=lambda: found)


@contextlib.contextmanager
def _user_frames(state: TraceState) -> Iterator[None]:
    before = fx_proxy.CapturedTraceback
    fx_proxy.CapturedTraceback = _UserFrames(state, before)  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        fx_proxy.CapturedTraceback = before  # type: ignore[misc]


def _from_the_forward_on(original: Any, state: TraceState) -> Any:
    def frames(self: Any, found: Any) -> Any:
        if not isinstance(found, _Lines):
            return original(self, found)
        first = next((i for i, line in enumerate(found) if line.name == "forward"), len(found))
        return _Lines(found[first:])

    return frames


PATCHES = (
    Around(_user_frames),
    Patch(fx_proxy.TracerBase, "_filter_traceback_frames", _from_the_forward_on),
)
