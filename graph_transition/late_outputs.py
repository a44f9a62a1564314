"""Which outputs of a training session are computed when somebody looks at them (Options(outputs="lazy")).

A session whose call returns a loss and large tensors beside it gets a second one, of the same graph without these. What
they are, and how they are computed late, is the engine's: Note [Late outputs] in csrc/autograd/late_outputs.h. Here is
the choice, and the hook that has them computed before an optimizer's step changes what they are computed from.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .. import _C
from .info import PostExportProcessedModelInfo

__all__ = ["add_late_outputs"]

# An output below this is computed in less time than it takes to find out whether somebody has read it.
_LEAST_BYTES = 1 << 20
# What is given to a call is read once more, for its sum. An output costs several passes over its elements (it is
# written, read by the loss, and its gradient as well), and what computes it.
_READ_PER_BYTE = 16


def add_late_outputs(
    info: PostExportProcessedModelInfo,
    session: _C.Session,
    sizes: Mapping[str, int],
    build: Callable[[PostExportProcessedModelInfo], _C.Session],
) -> tuple[_C.Session | None, str]:
    """Has a training session compute its large outputs late, where that can be done exactly.

    Args:
        info: the session's.
        sizes: what the graph's symbols are in the call that it is built for.
        build: makes the session of the same graph with fewer outputs.

    Returns:
        That session, and the names of the late outputs, or None and why no output is late.
    """
    if not info.losses:
        return None, "there is no loss among the results"
    if info.captured.mutations:
        return None, "the forward writes a buffer or an argument"
    late = _large(info, session, sizes)
    if not late:
        return None, "no other result is large"
    kept = {output.name for output in info.post_export_processed_model.graph.output} - late.keys()
    read = sum(t.nbytes for t in {id(t): t for t in info.buffer_for_ort_runs.values()}.values())
    if read > _READ_PER_BYTE * sum(late.values()):
        return None, "the other results are small beside the parameters"
    quick = build(info.only(kept))
    if why := session.compute_late(quick):
        return None, why
    _before_steps()
    return quick, ", ".join(late)


def _large(info: PostExportProcessedModelInfo, session: _C.Session, sizes: Mapping[str, int]) -> dict[str, int]:
    """The results that may be late, with their bytes."""
    captured = info.captured
    bases = {ref.view[0].name for ref in captured.result_refs if ref.view is not None}
    left = {ref.name for ref in captured.beside}
    results = {ref.name for ref in captured.outputs if ref.kind == "tensor" and ref.view is None}
    taken = results - bases - left - info.losses
    given = dict(zip(session.output_names, session.output_bytes(dict(sizes)), strict=True))
    return {name: count for name, count in given.items() if name in taken and count >= _LEAST_BYTES}


@functools.cache
def _before_steps() -> None:
    """From now on an optimizer's step finds all late outputs computed that are alive."""

    def settle(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        _C.settle_all_late()

    register_optimizer_step_pre_hook(settle)
