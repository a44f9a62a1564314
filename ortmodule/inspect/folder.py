"""A folder with a record of each session: how it is filled while a program runs, and read afterwards.

A record is written when its session is compiled, so that it is there whatever happens, and again as the process ends,
with what its runs have shown by then: the times of its nodes, and where its memory lay.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import logging
import os
import re
import threading
from pathlib import Path
from typing import Any

from .. import _C
from ..errors import InvalidArgumentError
from .record import FORMAT, record_of

__all__ = ["flush", "follow", "read"]

_LOGGER = logging.getLogger("ortmodule")
_SUFFIX = ".inspect.json"
_LOCK = threading.Lock()
# Sessions are held until the process ends, to be written then; of many, the last ones.
_MOST_HELD = 32


@dataclasses.dataclass
class _Followed:
    session: _C.Session | None  # None: written for the last time
    path: Path
    title: str
    mode: str
    sizes: dict[str, int]
    times: dict[tuple[str, str, str], list[Any]] = dataclasses.field(default_factory=dict)  # so far, by node

    def write(self) -> None:
        if self.session is not None:
            self._gather(self.session)
            times = list(self.times.values())
            _write_file(record_of(self.session, self.title, self.mode, self.sizes, times), self.path)

    def end(self) -> None:
        try:
            self.write()
        except InvalidArgumentError as error:  # the folder is gone: nothing else may suffer from it
            _LOGGER.warning("%s", error)
        self.session = None

    def _gather(self, session: _C.Session) -> None:
        for phase, op, name, calls, seconds, size, flops, value in session.take_times():
            row = self.times.setdefault((phase, name, value), [phase, op, name, 0, 0.0, 0, 0, value])
            row[3] += calls
            row[4] += seconds
            for place, more in ((5, size), (6, flops)):
                row[place] = None if more is None or row[place] is None else row[place] + more


_followed: list[_Followed] = []


def follow(session: _C.Session, folder: str | os.PathLike[str], title: str, mode: str, sizes: dict[str, int]) -> None:
    """Writes the session's record now and once more as the process ends; every node of every run is timed until then.

    Args:
        session: made with `keep_history`.
        folder: made if need be.
        title, mode, sizes: as in `record_of`.

    Raises:
        InvalidArgumentError: the folder cannot be made or written.
    """
    with _LOCK:
        followed = _Followed(session, _path(folder, title, mode, len(_followed)), title, mode, sizes)
        followed.write()
        if not _followed:
            _C.profile(True)
            atexit.register(_end, os.getpid())
        _followed.append(followed)
        if len(_followed) > _MOST_HELD:
            _followed[-1 - _MOST_HELD].end()


def flush() -> None:
    """Writes the records of the sessions that are followed anew, with what their runs have shown so far. Happens by
    itself as the process ends.

    Raises:
        InvalidArgumentError: a folder is gone, or cannot be written.
    """
    with _LOCK:
        for followed in _followed:
            followed.write()


def _end(process: int) -> None:
    if process != os.getpid():  # of a fork, whose parent writes its own
        return
    with _LOCK:
        for followed in _followed:
            followed.end()


def read(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of a folder, in the order of their files' names.

    Raises:
        InvalidArgumentError: no folder, none in it, or one that cannot be read.
    """
    path = Path(folder)
    if not path.is_dir():
        raise InvalidArgumentError(f"there is no folder {str(path)!r}")
    files = sorted(path.glob(f"*{_SUFFIX}"))
    if not files:
        graphs = " It has .onnx files; one of these can be inspected by itself." if any(path.glob("*.onnx")) else ""
        raise InvalidArgumentError(
            f"the folder {str(path)!r} has no records ({_SUFFIX}): they are written by "
            f"DebugOptions(inspect_path=...), ORTMODULE_INSPECT_PATH and ortmodule.inspect.save.{graphs}"
        )
    return [_read_file(file) for file in files]


def _read_file(file: Path) -> dict[str, Any]:
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"{str(file)!r} cannot be read: {error}") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise InvalidArgumentError(f"{str(file)!r} is no record of this version of ortmodule; let it be written again")
    return record


def _path(folder: str | os.PathLike[str], title: str, mode: str, number: int) -> Path:
    # Ranks of one program share the folder.
    rank = f"_rank{os.environ['RANK']}" if os.environ.get("RANK", "").isdecimal() else ""
    name = re.sub(r"[^\w.-]+", "_", title)[:80]
    return Path(folder) / f"{number:02d}_{name}_{mode}{rank}{_SUFFIX}"


def _write_file(record: dict[str, Any], path: Path) -> None:
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps(record), encoding="utf-8")
        os.replace(fresh, path)  # a reader finds the old one or the new one
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise InvalidArgumentError(f"the record {str(path)!r} cannot be written: {error}") from error
