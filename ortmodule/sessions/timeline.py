"""Runs as a timeline for chrome://tracing and Perfetto."""

from __future__ import annotations

import datetime
import json
import os

from .. import _C

__all__ = ["write_timeline"]


def write_timeline(trace: _C.RunTrace, prefix: str) -> str:
    """Writes what was noted to a new file whose path begins with `prefix`; returns the path."""
    process = os.getpid()
    events = [
        {
            "name": name or op,
            "cat": "Node" if op else "Session",
            "ph": "X",
            "ts": round(1e6 * begin, 3),
            "dur": round(1e6 * seconds, 3),
            "pid": process,
            "tid": thread,
            "args": {"op_name": op, "provider": provider} if op else {},
        }
        for name, op, provider, thread, begin, seconds in trace.take()
    ]
    path = f"{prefix}_{datetime.datetime.now():%Y-%m-%d_%H-%M-%S_%f}.json"
    with open(path, "x", encoding="utf-8") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)
    return path
