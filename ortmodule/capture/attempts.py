"""Ways to capture a call, tried one after the other: the one loop that tries, and what it tries.

A capture may fail for one choice of symbolic sizes, or where the forward branches, and work for another. An `Attempt`
is one choice; who captures says in which order they come, with what the ones before have failed of at hand.

Not here: the order for a call that an ORTModule is given (graph_transition/attempts.py), one capture (product.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ..errors import CaptureError, SlowCaptureError, UndecidedError, UnfitCallError, UnfitError

__all__ = ["Attempt", "Failures", "Sizes", "first_capture", "from_one_then_two", "with_and_without"]

_T = TypeVar("_T")

# (leaf, axis) of sizes.
Sizes = frozenset[tuple[int, int]]


@dataclasses.dataclass(frozen=True, eq=False)
class Attempt:
    """One way to capture a call.

    Attributes:
        step: which row of the order it belongs to.
        dynamic: the sizes to keep symbolic.
        optional: further ones, to be kept symbolic if the module does not fix them.
        from_one: whether symbolic sizes may be 1; torch's export takes them to be at least 2.
        flags: by flat leaf index, the values of tensors on which the forward branches.
        branching: whether branches on what inputs and buffers hold go the way of this call.
        example: the flat leaves of another call, which is captured in place of this one.
    """

    step: str = "open"
    dynamic: Sizes = frozenset()
    optional: Sizes = frozenset()
    from_one: bool = False
    flags: Mapping[int, Any] = dataclasses.field(default_factory=dict)
    branching: bool = False
    example: Sequence[Any] | None = None


class Failures:
    """What the attempts so far have failed of.

    Args:
        fewer_sizes: whether a capture that takes too long is followed by ones with fewer symbolic sizes; otherwise it
            is the last.

    Attributes:
        reason: what to tell where all fail: the last error of the first step that captures the call itself.
        undecided: whether the last attempt stopped at a branch whose way only the data say.
        unfit: whether its graph does not hold for the call.
        slow: why it took too long, where it did.
    """

    def __init__(self, fewer_sizes: bool = False) -> None:
        self._fewer_sizes = fewer_sizes
        self._step: str | None = None
        self.reason: CaptureError | None = None
        self.undecided = self.unfit = False
        self.slow: str | None = None

    def add(self, attempt: Attempt, error: CaptureError | SlowCaptureError) -> None:
        """Notes why an attempt has failed. Raises a SlowCaptureError that no attempt follows."""
        self.undecided, self.unfit = isinstance(error, UndecidedError), isinstance(error, UnfitError)
        self.slow = None
        if isinstance(error, SlowCaptureError):
            if not self._fewer_sizes:
                raise error
            self.slow, self._step, self.reason = str(error), None, None
        elif attempt.example is None and self._step in (None, attempt.step):
            self._step, self.reason = attempt.step, error


def first_capture(
    attempts: Iterable[Attempt], run: Callable[[Attempt], _T], failures: Failures | None = None
) -> tuple[Attempt, _T]:
    """The first attempt that works, and what it gives.

    Args:
        attempts: in the order in which they are tried; may look at `failures` before each.
        run: makes one.
        failures: receives why those before have failed.

    Raises:
        CaptureError: `failures.reason`, or an attempt's that says that this call is not to be captured.
        SlowCaptureError: an attempt took too long, and none with fewer sizes follows.
    """
    failures = failures or Failures()
    for attempt in attempts:
        try:
            captured = run(attempt)
        except UnfitCallError:  # whichever way it is captured
            raise
        except (CaptureError, SlowCaptureError) as error:
            failures.add(attempt, error)
        else:
            failures.reason = None
            return attempt, captured
    reason, failures.reason = failures.reason, None
    try:
        raise reason or CaptureError("there is no way left to capture the call")
    finally:
        del reason  # its traceback leads here, and to all that the trace held


def from_one_then_two(attempt: Attempt) -> Iterator[Attempt]:
    """With symbolic sizes that may be 1, then, as torch's export has them, with ones of at least 2."""
    if attempt.dynamic:
        yield dataclasses.replace(attempt, from_one=True)
    yield attempt


def with_and_without(attempt: Attempt, optional: Sizes) -> Iterator[Attempt]:
    """With `optional` sizes symbolic where the module allows that, then without; each from 1, then from 2."""
    if optional - attempt.dynamic:
        yield from from_one_then_two(dataclasses.replace(attempt, optional=optional - attempt.dynamic))
    yield from from_one_then_two(attempt)
