"""The ways in which a call is captured, tried one after the other: sizes symbolic or fixed, branches open or decided.

Not here: whether a capture is needed and which sizes were seen to change (manager.py), one capture (ortmodule.capture).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence

import torch

from ..capture import Captured, capture
from ..capture.compat import is_undecided
from ..errors import CaptureError, SlowCaptureError
from .captured_graph import CapturedGraph, flag_value, is_flag
from .examples import larger_example
from .signature import Call, CallSignature

__all__ = ["CaptureAttempts", "Sizes"]

# Different answers to the branches of one signature, each with graphs of its own; with more, PyTorch runs them better.
_MOST_ANSWERS = 8
# Graphs of one signature whose forward cannot be captured but for one size at a time.
_MOST_SIZES = 4

# (leaf, axis) of sizes that are symbolic.
Sizes = set[tuple[int, int]]


class CaptureAttempts:
    """Captures the calls of one module; remembers which signatures allow no varying sizes."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._one_size: set[CallSignature] = set()  # whose forward was captured for its present sizes alone
        self._too_slow: dict[CallSignature, tuple[int, str]] = {}  # how many choices of sizes took too long, and why

    def capture(self, call: Call, dynamic: Sizes, graphs: Sequence[CapturedGraph]) -> tuple[Captured, Sizes]:
        """Captures with these sizes symbolic, or, where the forward allows that not at all, for the present ones.

        Args:
            call: what is captured.
            dynamic: the sizes that should be symbolic.
            graphs: those that there are for the call's signature.

        Returns:
            the capture and the sizes that are symbolic in it.

        Raises:
            CaptureError: the call cannot be captured in any way.
        """
        slow, why = self._too_slow.get(call.signature, (0, ""))
        if slow and len(graphs) >= _MOST_SIZES:
            raise CaptureError(f"{why}; it has {_MOST_SIZES} graphs already")
        batch = {(i, axis) for i, axis in dynamic if axis == 0}
        choices: list[tuple[Sizes, int]] = [(dynamic, 2), (batch, 1), (set(), 0)]
        for choice, axes in choices[slow:]:
            try:
                captured, symbolic = self._these_or_none(call, choice, axes, graphs)
            except SlowCaptureError as error:  # never where no size is symbolic
                slow, why = slow + 1, str(error)
                self._too_slow[call.signature] = slow, why
                continue
            if slow:
                free = ", those of the first axes apart," if symbolic else ""
                captured.specialized.append(f"changed sizes{free} take a graph each: {why}")
            return captured, symbolic
        raise CaptureError(why)

    def _these_or_none(
        self, call: Call, dynamic: Sizes, axes: int, graphs: Sequence[CapturedGraph]
    ) -> tuple[Captured, Sizes]:
        """Captures with these sizes symbolic, and with more among the first `axes` of each tensor where that goes."""
        ones = {(i, axis) for i, axis in dynamic if call.leaves[i].shape[axis] == 1}
        if call.signature not in self._one_size:
            with contextlib.suppress(CaptureError):
                if ones:
                    return self._larger(call, dynamic, axes, graphs[-1].shapes)
            dynamic = dynamic - ones
            try:
                return self._open_or_decided(call, dynamic, axes, graphs)
            except CaptureError as error:
                if not dynamic:
                    raise
                try:
                    captured = self._open_or_decided(call, set(), axes, graphs)
                except CaptureError:
                    raise error from None
                self._one_size.add(call.signature)
                return captured
        if len(graphs) >= _MOST_SIZES:
            raise CaptureError(f"the forward cannot be captured for varying sizes; it has {_MOST_SIZES} graphs already")
        return self._open_or_decided(call, set(), axes, graphs)

    def _larger(
        self, call: Call, dynamic: Sizes, axes: int, earlier: Sequence[tuple[int, ...] | None]
    ) -> tuple[Captured, Sizes]:
        """Captures a call some of whose varying sizes are 1, as one in which none is."""
        example = larger_example(call.leaves, earlier, dynamic)
        if example is None:
            raise CaptureError("no call is known in which every varying size is larger than 1")
        captured, dynamic = self._symbolic(call.with_leaves(example), dynamic, axes)
        failed = captured.check([leaf for leaf in call.leaves if isinstance(leaf, torch.Tensor)])
        if failed is not None:
            raise CaptureError(f"the guard `{failed}` does not hold")
        return captured, dynamic

    def _open_or_decided(
        self, call: Call, dynamic: Sizes, axes: int, graphs: Sequence[CapturedGraph]
    ) -> tuple[Captured, Sizes]:
        """Captures; where the forward branches on a flag that it is given as a tensor, for the flag's present value,
        and where it branches on what its inputs or the module's buffers hold, for the present answers.
        """
        ways = len({tuple((b.line, b.answer) for b in g.captured.branches) for g in graphs if g.captured.branches})
        if ways >= _MOST_ANSWERS:
            raise CaptureError(f"the forward branches on the values of its inputs, in more than {ways} ways")
        if any(g.branching for g in graphs):
            return self._symbolic(call, dynamic, axes, branching=True)
        try:
            return self._symbolic(call, dynamic, axes)
        except CaptureError as error:
            flags = {i: flag_value(leaf) for i, leaf in enumerate(call.leaves) if is_flag(leaf)}
            with contextlib.suppress(CaptureError):
                if flags:
                    decided = capture(self._module, call.args, call.kwargs, dynamic_dims=dynamic or None, flags=flags)
                    return decided, dynamic
            with contextlib.suppress(CaptureError):
                if is_undecided(error):
                    return self._symbolic(call, dynamic, axes, branching=True)
            raise

    def _symbolic(self, call: Call, dynamic: Sizes, axes: int, branching: bool = False) -> tuple[Captured, Sizes]:
        """Captures with these sizes symbolic; returns which ones are.

        Where one size changes, the batch's or the sequence's, the other will: the first `axes` of every tensor are
        kept symbolic with it where the module allows that.
        """
        others = {
            (i, axis)
            for i, leaf in enumerate(call.leaves)
            if dynamic and isinstance(leaf, torch.Tensor)
            for axis in range(min(axes, leaf.dim()))
            if leaf.shape[axis] > 1
        }
        attempt = functools.partial(capture, self._module, call.args, call.kwargs, branching=branching)
        if not others - dynamic:
            return attempt(dynamic_dims=dynamic or None), dynamic
        try:
            captured = attempt(dynamic_dims=dynamic, optional_dims=others)
        except CaptureError:
            return attempt(dynamic_dims=dynamic), dynamic
        return captured, (dynamic | others) - captured.fixed
