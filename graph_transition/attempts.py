"""The ways in which a call is captured, in the order in which they are tried.

    step       of which call                           symbolic sizes   branches
    larger     one in which no varying size is 1       that vary        open
    open       this one                                that vary        open
    flags      this one                                that vary        on bool inputs as they are, else open
    branching  this one                                that vary        as they go now (open ended at one on data)
    present    this one, as open, flags and branching  none             the same
    one size   the same, without the steps before it, once `present` was what worked for the signature

A row is left out where it says nothing new: `larger` where no varying size is 1, `flags` without such inputs, `present`
where no size varies; where the call's earlier graphs decide branches, `branching` comes at once. The rows but `flags`
are tried with further sizes symbolic that the module may fix (where the batch's size changes the sequence's will), then
without these. Each of that is tried with symbolic sizes that may be 1, then with ones of at least 2.

A trace that takes too long ends its rows: they begin anew with the sizes of first axes, then with none.
What the user is told where all fail is the last error of `open`.

Not here: the loop that tries (capture/attempts.py), whether a capture is needed and which sizes were seen to change
(manager.py), one capture (capture/product.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch

from ..capture import Captured, capture_once
from ..capture.attempts import Attempt, Failures, Sizes, first_capture, from_one_then_two, with_and_without
from ..capture.containers.plain_objects import is_taken_apart
from ..errors import CaptureError, UnfitError
from .audit import Audit
from .captured_graph import CapturedGraph, flag_value, is_flag
from .examples import larger_example
from .signature import Call, CallSignature

__all__ = ["CaptureAttempts", "Sizes"]

# Different answers to the branches of one signature, each with graphs of its own; with more, PyTorch runs them better.
# A floating number that is another one time and again is no setting.
_MOST_ANSWERS, _MOST_NUMBERS = 8, 3
# Graphs of one signature whose forward cannot be captured but for one size at a time.
_MOST_SIZES = 4


@dataclasses.dataclass
class Known:
    """What is known of a signature.

    Attributes:
        graphs: those that there are for it.
        one_size: whether its forward was captured for its present sizes alone.
        slow: how many choices of sizes took too long.
        why_slow: what was said of the last of them.
    """

    graphs: Sequence[CapturedGraph] = ()
    one_size: bool = False
    slow: int = 0
    why_slow: str = ""


class CaptureAttempts:
    """Captures the calls of one module; remembers which signatures allow no varying sizes."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._known: dict[CallSignature, Known] = {}

    def capture(
        self, call: Call, dynamic: Sizes, graphs: Sequence[CapturedGraph], audit: Audit
    ) -> tuple[Captured, Sizes]:
        """Captures with these sizes symbolic, or, where the forward allows that not at all, for the present ones.

        Args:
            call: what is captured.
            dynamic: the sizes that should be symbolic.
            graphs: those that there are for the call's signature.
            audit: hears of every trace; in the end of the one that is returned.

        Returns:
            the capture and the sizes that are symbolic in it.

        Raises:
            CaptureError: the call cannot be captured in any way.
        """

        def run(attempt: Attempt) -> Captured:
            if attempt.example is None:
                return capture_once(self._module, call.args, call.kwargs, attempt, audit)
            larger = call.with_leaves(list(attempt.example))
            captured = capture_once(self._module, larger.args, larger.kwargs, attempt, audit)
            failed = captured.check([leaf for leaf in call.leaves if isinstance(leaf, torch.Tensor)])
            if failed is not None:
                raise UnfitError(f"the guard `{failed}` does not hold")
            return captured

        known = self._known.setdefault(call.signature, Known())
        known.graphs, failures = graphs, Failures(fewer_sizes=True)
        try:
            attempt, captured = first_capture(attempts(call, dynamic, known, failures), run, failures)
        finally:
            known.graphs = ()
        known.one_size = known.one_size or attempt.step.startswith("present")
        symbolic = (attempt.dynamic | attempt.optional) - (captured.fixed if attempt.optional else frozenset())
        if known.slow:
            free = ", those of the first axes apart," if symbolic else ""
            captured.specialized.append(f"changed sizes{free} take a graph each: {known.why_slow}")
        return captured, symbolic


def attempts(call: Call, dynamic: Sizes, known: Known, failures: Failures) -> Iterator[Attempt]:
    """Every way to capture a call, as the table above has them.

    Args:
        dynamic: the sizes that should be symbolic.
        known: of the call's signature; notes which sizes take too long.
        failures: why those before have failed.

    Raises:
        CaptureError: there are too many graphs for one more.
    """
    if known.slow and len(known.graphs) >= _MOST_SIZES:
        raise CaptureError(f"{known.why_slow}; it has {_MOST_SIZES} graphs already")
    of_first_axes = frozenset((i, axis) for i, axis in dynamic if axis == 0)
    choices: list[tuple[Sizes, int]] = [(dynamic, 2), (of_first_axes, 1), (frozenset(), 0)]
    for sizes, axes in choices[known.slow :]:
        for attempt in _of_sizes(call, sizes, axes, known, failures):
            yield attempt
            if failures.slow is not None:
                known.slow, known.why_slow = known.slow + 1, failures.slow
                break
        else:
            return


def _of_sizes(call: Call, sizes: Sizes, axes: int, known: Known, failures: Failures) -> Iterator[Attempt]:
    """The rows of the table for one choice of sizes, and of how many first axes may be symbolic with them."""
    if known.one_size:
        if len(known.graphs) >= _MOST_SIZES:
            text = f"the forward cannot be captured for varying sizes; it has {_MOST_SIZES} graphs already"
            raise CaptureError(text)
        yield from _of_call(call, frozenset(), axes, known, failures, "one size: ")
        return
    ones = frozenset((i, axis) for i, axis in sizes if call.leaves[i].shape[axis] == 1)
    if ones:
        yield from _larger(call, sizes, axes, known, failures)
    yield from _of_call(call, sizes - ones, axes, known, failures)
    if sizes - ones:
        yield from _of_call(call, frozenset(), axes, known, failures, "present: ")


def _larger(call: Call, sizes: Sizes, axes: int, known: Known, failures: Failures) -> Iterator[Attempt]:
    """A call some of whose varying sizes are 1, as one in which none is."""
    example = larger_example(call.leaves, known.graphs[-1].shapes, sizes)
    if example is None:
        return
    attempt = Attempt("larger", sizes, example=tuple(example))
    for one in with_and_without(attempt, _others(call.with_leaves(example), sizes, axes)):
        yield one
        if failures.unfit:  # what fails for this call will do so in any way
            return


def _of_call(
    call: Call, sizes: Sizes, axes: int, known: Known, failures: Failures, prefix: str = ""
) -> Iterator[Attempt]:
    """The call itself; where the forward branches, for the present values of flags or the present answers."""
    graphs = known.graphs
    ways = len({tuple((b.line, b.answer) for b in g.captured.branches) for g in graphs if g.captured.branches})
    floating = any(isinstance(b.answer, float) for g in graphs for b in g.captured.branches)
    if ways >= (_MOST_NUMBERS if floating else _MOST_ANSWERS):
        raise CaptureError(f"the forward branches on the values of its inputs, in more than {ways} ways")
    others = _others(call, sizes, axes)
    branching = Attempt(f"{prefix}branching", sizes, branching=True)
    if any(graph.branching for graph in graphs):
        yield from with_and_without(branching, others)
        return
    yield from with_and_without(Attempt(f"{prefix}open", sizes), others)
    undecided = failures.undecided
    flags = {i: flag_value(leaf) for i, leaf in enumerate(call.leaves) if is_flag(leaf)}
    if flags:
        yield from from_one_then_two(Attempt(f"{prefix}flags", sizes, flags=flags))
    if undecided:
        yield from with_and_without(branching, others)


def _others(call: Call, sizes: Sizes, axes: int) -> Sizes:
    """The sizes that may change where these do: those of the first `axes` of every tensor. Of a call that is given an
    object with tensors, a cache say, any may at the next call.
    """
    grows = axes > 0 and any(map(is_taken_apart, call.given))
    return frozenset(
        (i, axis)
        for i, leaf in enumerate(call.leaves)
        if (sizes or grows) and isinstance(leaf, torch.Tensor)
        for axis in range(leaf.dim() if grows else min(axes, leaf.dim()))
        if leaf.shape[axis] > 1
    )
