"""What a step of a model or a run of a session will run and hold, before it runs: `ortmodule.debug.plan(model, batch)`.

Not here: the plan itself (csrc/plan, csrc/runtime/memory_forecast.h), and what a step that ran has held
(ortmodule/memory_report.py).
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Mapping
from typing import Any

import torch

from ..capture.trace.tracing import LOCK
from ..errors import InvalidArgumentError
from ..graph_transition.ready_session import BoundSession
from ..memory_report import MemoryOverTime
from ..ortmodule import ORTModule
from ..sessions import InferenceSession

__all__ = ["StepPlan", "call_of", "plan"]


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """The plan of one call's graph.

    Attributes:
        halves: "forward" and, where the call records gradients, "backward": `name`, `streams` (the device of each),
            `waits_at_end` and `steps` in the order in which they are issued, each with `kind` ("LaunchKernel",
            "Transfer", "WaitOnEP"), `stream`, `waits_for` (`kind`: "WaitOnEP", by the stream, or "Barrier", by the
            host; and the number of a `notification`), `notifies` (the number that it gives), `provider` (empty where
            there is but the host), `op`, `node`, `inputs` and `outputs` (`name`, `type`, `slot` and `bytes`),
            `release` (slots that are let go of after it), `bytes` (of its inputs and outputs, each whole; None of a
            view, which moves nothing unless it must copy), `flops` (multiplications and additions) and `seconds` (the
            mean of the runs that were profiled). Numbers are None where they are not known before the run.
        memory: `peak_forward_bytes`, `saved_bytes` (what forward keeps for backward), `peak_backward_bytes`,
            `arena_bytes` and `blocks`: each storage with the `value`, `op` and `node` that it is made for, `bytes`, the
            steps `first` and `end` in [first, end) of which it is alive (counted through both halves), its `offset` in
            an arena, and whether it is `saved`. Inputs, parameters and what kernels need within themselves are not
            counted. `complete` is False where sizes are not known before the run.
        text: the halves as text.
    """

    halves: list[dict[str, Any]]
    memory: dict[str, Any]
    text: str

    def to_json(self) -> str:
        """Halves and memory as one JSON object."""
        return json.dumps({"halves": self.halves, "memory": self.memory})

    def memory_over_time(self) -> MemoryOverTime:
        """The bytes that are held while each step runs. Printable, and `to_json()`."""
        return MemoryOverTime.of(self.halves, self.memory)

    def __str__(self) -> str:
        return self.text


def call_of(module: torch.nn.Module, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call: a mapping's as keywords, a tuple's or list's in order, else the one argument."""
    if isinstance(batch, Mapping):
        try:
            inspect.signature(module.forward).bind(**batch)
        except TypeError:
            return (batch,), {}
        return (), dict(batch)
    return (tuple(batch), {}) if isinstance(batch, tuple | list) else ((batch,), {})


def plan(model: ORTModule | InferenceSession, batch: Any) -> StepPlan:
    """The plan of one call; captures and compiles it if need be, and runs nothing.

    Args:
        model: an ORTModule in the mode (train or eval, with gradients or under `torch.no_grad()`) of the call, or an
            InferenceSession.
        batch: a mapping of keyword arguments, a tuple or list of positional ones, or the one argument; of a session,
            what it is fed with: a mapping of an array or a tensor for each input, of which the sizes alone are read.

    Raises:
        InvalidArgumentError: `model` is neither, or the inputs of a session are not those of its model.
        CaptureError: the call runs in PyTorch; `model.report()` says which do.
    """
    if isinstance(model, InferenceSession):
        sizes = model._sizes_of(batch)
        (session,) = model._sessions()
        return StepPlan(session.plans(sizes), session.memory_forecast(sizes), session.plan_text(sizes))
    if type(model) is not ORTModule:
        raise InvalidArgumentError(f"plan takes an ORTModule or an InferenceSession, got {type(model).__name__}")
    args, kwargs = call_of(model.module, batch)
    with LOCK:
        ready, leaves = model._manager.use_cache_or_reconstruct_post_processed_model(args, kwargs)
    if isinstance(ready, BoundSession):
        ready = ready.transition
    sizes = ready.info.symbol_values(leaves)
    session = ready.session
    return StepPlan(session.plans(sizes), session.memory_forecast(sizes), session.plan_text(sizes))
