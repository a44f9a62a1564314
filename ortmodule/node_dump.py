"""Writes what every node of a run took and gave: `DebugOptions(dump_nodes=N)`.

One text file per session; one line per node and value, with type, shape and the figures by which a bad number is
found: smallest, largest, mean, and how many are NaN or infinite. An input is shown as it was when it was made: a later
node may have written over it since.
"""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from typing import Any, TextIO

import torch

from . import _C

__all__ = ["NodeDump"]


class NodeDump:
    """Dumps the first `runs` runs of a session, forward and backward, into `path`."""

    def __init__(self, session: _C.Session, path: Path, runs: int) -> None:
        self._path, self._left = path, runs
        self._known: dict[str, str] = {}
        self._file: TextIO | None = None
        self._first: str | None = None  # the node that a run begins with
        self._lock = threading.Lock()
        self._run = 0
        self._session = weakref.ref(session)
        session.observe(self._step)

    def _step(self, phase: str, node: str, operator: str, given: list[Any], made: list[Any]) -> None:
        with self._lock:
            key = f"{phase} {node} {[name for name, _ in made]}"
            self._first = self._first or key
            if key == self._first:
                self._run += 1
                self._known.clear()
            if self._run > self._left:
                self._close()
                return
            self._file = self._file or open(self._path, "w", encoding="utf-8")
            print(f"run {self._run} {phase} {operator} '{node}'", file=self._file)
            for name, value in given:
                text = self._known.get(name) or describe(value)
                print(f"  in  {name} {text}", file=self._file)
            for name, value in made:
                self._known[name] = describe(value)
                print(f"  out {name} {self._known[name]}", file=self._file)
            self._file.flush()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        session = self._session()
        if session is not None:
            session.observe(None)


def describe(value: Any) -> str:
    """Type, shape and figures of a value, such as `float32[2, 3] min -1 max 4 mean 0.5`."""
    if isinstance(value, list):
        return "[" + ", ".join(map(describe, value)) + "]"
    if not isinstance(value, torch.Tensor):
        return "absent"
    kind = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if value.numel() == 0 or value.dtype.is_complex:
        return kind
    wide = value.detach().double()
    parts = [kind]
    finite = wide[wide.isfinite()]
    if finite.numel():
        parts += [f"{name} {float(getattr(finite, name)()):.6g}" for name in ("min", "max", "mean")]
    counts = {"nan": int(wide.isnan().sum()), "inf": int(wide.isinf().sum())}
    return " ".join([*parts, *(f"{count} {name}" for name, count in counts.items() if count)])
