"""The process's threads for nodes that run side by side, which several sessions may share."""

from __future__ import annotations

from .. import _C
from ..errors import InvalidArgumentError

__all__ = ["set_global_inter_op_threads"]


def set_global_inter_op_threads(threads: int, *, allow_spinning: bool = True) -> None:
    """How many nodes run side by side, over all sessions that are made from now on with `use_per_session_threads` off.

    Args:
        threads: from 1 on. Where it is never said, it is `torch.get_num_threads()` when the first such session is made.
        allow_spinning: threads look for work for some hundred microseconds, one at a time, before they sleep.

    Raises:
        InvalidArgumentError: no such number.
    """
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 4096:
        raise InvalidArgumentError(f"threads should be a number from 1 to 4096, got {threads!r}")
    if not isinstance(allow_spinning, bool):
        raise InvalidArgumentError(f"allow_spinning should be True or False, got {allow_spinning!r}")
    _C.set_global_inter_op_threads(threads, allow_spinning)
