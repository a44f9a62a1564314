"""What a page shows of one session, as data that JSON takes: `record_of(session, ...)`.

Not here: where records are kept (folder.py), how they are shown (page.py). The weights of a model are no part of it: of
tensors, only small integers and single numbers are (csrc/transforms/graph_history.h).
"""

from __future__ import annotations

import datetime
import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .. import _C
from ..errors import InvalidArgumentError
from ..memory_report import MemoryOverTime

__all__ = ["FORMAT", "record_of"]

FORMAT = 1
"""The number of the form that a record has."""


def record_of(
    session: _C.Session,
    title: str,
    mode: str,
    sizes: Mapping[str, int],
    times: Sequence[Sequence[Any]] | None = None,
    notes: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Everything that is known of a session.

    Args:
        session: made with `keep_history`, or else without the graphs between its passes.
        title: how the page names it.
        mode: "training" or "inference".
        sizes: of the graph's symbols, for bytes and operations; those of the last profiled run go before them.
        times: rows as `_C.Session.take_times` gives them; None: those since it was last asked, which it forgets.
        notes: further facts by name.

    Returns:
        format, title, mode, created, versions, threads, sizes, notes; inputs and outputs; history (None where it was
        not kept); halves and memory as StepPlan has them; live (bytes by step); placed (`_C.Session.placed_memory`);
        times; statistics.
    """
    statistics = session.statistics()
    sizes = {**sizes, **statistics["sizes"]}
    halves, memory = session.plans(sizes), session.memory_forecast(sizes)
    over_time = MemoryOverTime.of(halves, memory)
    return {
        "format": FORMAT,
        "title": title,
        "mode": mode,
        "created": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "versions": {name: importlib.metadata.version(name) for name in ("ortmodule", "torch")},
        "threads": torch.get_num_threads(),
        "sizes": sizes,
        "notes": dict(notes or {}),
        "inputs": session.input_names,
        "outputs": session.output_names,
        "history": _history_of(session),
        "halves": halves,
        "memory": memory,
        "live": [step.live_bytes for step in over_time.steps],
        "placed": session.placed_memory(),
        "times": [list(row) for row in (session.take_times() if times is None else times)],
        "statistics": statistics,
    }


def _history_of(session: _C.Session) -> dict[str, Any] | None:
    try:
        return session.history()
    except InvalidArgumentError:  # it was not kept
        return None
