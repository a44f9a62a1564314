"""Which line of the user's code something of a trace comes from."""

from __future__ import annotations

import contextlib
import functools
import re
import traceback
from pathlib import Path

import torch

__all__ = ["TORCH_ROOT", "current_source_line", "user_line_of", "user_source_line"]

TORCH_ROOT = str(Path(torch.__file__).parent)
_OUR_ROOT = str(Path(__file__).parent)
_NOT_THE_USERS = (TORCH_ROOT, _OUR_ROOT, contextlib.__file__, functools.__file__, "<")


def user_source_line(error: BaseException) -> str | None:
    """The innermost line of `error`'s traceback that is neither torch's nor ours, as `path:12: code`."""
    frames = traceback.extract_tb(error.__traceback__)
    return _last_user_frame(frames)


def current_source_line() -> str | None:
    """The innermost line of the running stack that is neither torch's nor ours, as `path:12: code`."""
    return _last_user_frame(traceback.extract_stack())


def user_line_of(stack_trace: str | None) -> str | None:
    """The same of a stack trace that torch noted as text."""
    found = re.findall(r'File "([^"]+)", line (\d+), in .*\n\s+(?!File )(.*)', stack_trace or "")
    for path, line, code in reversed(found):
        if not path.startswith(_NOT_THE_USERS):
            return f"{path}:{line}: {code}"
    return None


def _last_user_frame(frames: traceback.StackSummary) -> str | None:
    for frame in reversed(frames):
        if not frame.filename.startswith(_NOT_THE_USERS):
            return f"{frame.filename}:{frame.lineno}: {frame.line}"
    return None
