"""Writes what the nodes of a session's runs took and gave, as they run: one text file per session.

One line per node and value, with type, shape and the figures by which a bad number is found: smallest, largest, mean,
standard deviation, and how many are NaN or infinite. An input is shown as it was when it was made: a later node may
have written over it since. Each line is on disk before the next node runs, also where that one ends the process.

Not here: who asks for it (dumping.py, DebugOptions).
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any, TextIO

import torch

from .. import _C
from ..globs import Choice
from ..options import DebugOptions
from .statistics import read_statistics

__all__ = ["NodeDump", "describe", "dump_as_asked", "next_path"]

_NUMBERS: Counter[str] = Counter()  # of the files that this process has begun


class NodeDump:
    """Dumps the first `runs` runs of a session, forward and backward.

    Args:
        session: what is looked at.
        path: of the text.
        runs: how many.
        choice: which nodes.
        tensors: whether whole tensors are written too, with torch.save, into a folder named as the text.
    """

    def __init__(
        self, session: _C.Session, path: Path, runs: int, choice: Choice | None = None, tensors: bool = False
    ) -> None:
        self.path, self._left = path, runs
        self._choice = choice or Choice()
        self._folder = path.with_suffix("") if tensors else None
        self._known: dict[str, str] = {}
        self._chosen: dict[str, bool] = {}
        self._file: TextIO | None = None
        self._lock = threading.Lock()
        self._run = self._values = 0
        self._observation = session.observe(self._step, self._begin)

    def _begin(self, half: str) -> bool:
        with self._lock:
            if half == "forward":
                self._run += 1
                self._known.clear()
            if self._run > self._left:
                self._end()
            return self._run <= self._left

    def _step(self, phase: str, node: str, operator: str, given: list[Any], made: list[Any]) -> None:
        with self._lock:
            if not self._left:
                return
            key = f"{phase} {node} {[name for name, _ in made]}"
            if key not in self._chosen:
                self._chosen[key] = self._choice.takes([name for name, _ in made], node, operator)
            if self._chosen[key]:
                self._write(phase, node, operator, given, made)

    def _write(self, phase: str, node: str, operator: str, given: list[Any], made: list[Any]) -> None:
        self._file = self._file or open(self.path, "w", encoding="utf-8")
        print(f"run {self._run} {phase} {operator} '{node}'", file=self._file)
        for name, value in given:
            print(f"  in  {name} {self._known.get(name) or describe(value)}", file=self._file)
        for name, value in made:
            self._known[name] = describe(value)
            print(f"  out {name} {self._known[name]}{self._saved(name, value)}", file=self._file)
        self._file.flush()

    def _saved(self, name: str, value: Any) -> str:
        """Writes a whole value; what its line says of that."""
        if self._folder is None or value is None:
            return ""
        self._values += 1
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"run{self._run}_{self._values:05d}_{re.sub(r'[^A-Za-z0-9_.-]', '_', name)[:80]}.pt"
        parts = value if isinstance(value, list) else [value]
        copies = [part.detach().cpu().clone() for part in parts]  # without the rest of its storage
        torch.save(copies if isinstance(value, list) else copies[0], path)
        return f" in {path.name}"

    def end(self) -> None:
        """Nothing more is written."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._left = 0
        self._observation.end()


def describe(value: Any) -> str:
    """Type, shape and figures of a value, such as `float32[2, 3] min -1 max 4 mean 0.5 std 1.2`."""
    if isinstance(value, list):
        return "[" + ", ".join(map(describe, value)) + "]"
    if not isinstance(value, torch.Tensor):
        return "absent"
    kind = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return " ".join(filter(None, (kind, next(read_statistics(*_C.value_statistics(value))).figures())))


def next_path(folder: Path, prefix: str, mode: str) -> Path:
    """Where the next session's text goes: `<folder>/<prefix>_nodes_<number>_<mode>.txt`."""
    key = str((folder / prefix).resolve())
    _NUMBERS[key] += 1
    return folder / f"{prefix}_nodes_{_NUMBERS[key] - 1:02d}_{mode}.txt"


def dump_as_asked(session: _C.Session, debug: DebugOptions, prefix: str, mode: str) -> None:
    """Dumps a session as its model's options, or the environment's variables, say."""
    if not debug.dump_nodes:
        return
    choice = Choice(debug.dump_names, debug.dump_operators)
    NodeDump(session, next_path(Path(debug.save_path), prefix, mode), debug.dump_nodes, choice, debug.dump_tensors)
