"""A recording: the file that `record` appends to half by half, and its reader.

`<directory>/rank<k>.recording` holds a line that says what it is, and then frames: a tag, the number of bytes and their
CRC-32, and the bytes. HEAD says where and when; PLAN names the values of a plan, once; FORM has their types, sizes and
counts, whenever these change; HALF has the numbers of one half of a run; DONE stands where the recording was closed. A
frame is written at once, when its half is through, so that a process that is killed leaves all that came to its end.
Numbers are little-endian.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError
from .statistics import Statistics, read_statistics

__all__ = ["Layout", "RecordedHalf", "RecordedStep", "RecordedValue", "Recording", "RecordingWriter", "recordings"]

_MAGIC = b"ortmodule recording 2\n"
_FRAME = struct.Struct("<4sII")
_FORM = struct.Struct("<I")  # layout
_HALF = struct.Struct("<qI?")  # step, layout, whole


@dataclasses.dataclass(frozen=True)
class RecordedValue:
    """One value of a step.

    Attributes:
        kind: "input" (of a call), "weight", "buffer", "constant", "node" (what a node made), "gradient of output"
            (which backward is given; `name` is the output's) or "gradient" (which it makes; `name` is the input's or
            weight's).
        name: in the graph.
        node, operator: what makes it; "" where no node does.
        statistics: what it was.
    """

    kind: str
    name: str
    node: str
    operator: str
    statistics: Statistics

    @property
    def label(self) -> str:
        """By which recordings are matched: the name, "gradient of <name>", "gradient of output <name>"."""
        return label_of(self.kind, self.name)

    def __str__(self) -> str:
        maker = f" made by {self.operator} '{self.node}'" if self.node or self.operator else ""
        title = "" if self.kind in ("node", "gradient", "gradient of output") else f"{self.kind} "
        return f"{title}'{self.label}'{maker}"


def label_of(kind: str, name: str) -> str:
    return {"gradient": "gradient of ", "gradient of output": "gradient of output "}.get(kind, "") + name


@dataclasses.dataclass(frozen=True)
class Layout:
    """What is recorded of a plan: `module`, `mode` and `half` as in RecordedHalf; of each value kind, name, node and
    operator."""

    module: str
    mode: str
    half: str
    values: tuple[tuple[str, str, str, str], ...]


@dataclasses.dataclass(frozen=True)
class RecordedHalf:
    """A forward or a backward.

    Attributes:
        layout: what was recorded of it.
        whole: False where it did not come to its end: then its first values are there.
        numbers, forms: of its values, packed.
    """

    layout: Layout
    whole: bool
    numbers: bytes
    forms: bytes

    @property
    def module(self) -> str:
        """Qualified name of the sub-module that ran, "" for the whole."""
        return self.layout.module

    @property
    def half(self) -> str:
        """ "forward" or "backward"."""
        return self.layout.half

    @functools.cached_property
    def values(self) -> tuple[RecordedValue, ...]:
        """In the order of execution: what is given comes before the nodes."""
        return tuple(
            RecordedValue(*value, statistics)
            for value, statistics in zip(self.layout.values, read_statistics(self.numbers, self.forms), strict=False)
        )


@dataclasses.dataclass(frozen=True)
class RecordedStep:
    """What ran in a step, in the order in which it ended."""

    number: int
    halves: tuple[RecordedHalf, ...]

    def values(self) -> Iterator[RecordedValue]:
        """All values, half by half."""
        for half in self.halves:
            yield from half.values


class RecordingWriter:
    """Appends to the file of a recording. Its caller sees to it that one thread writes at a time."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._file = open(path, "wb", buffering=0)
        self._forms: dict[int, bytes] = {}
        self._file.write(_MAGIC)
        self._append(b"HEAD", json.dumps(header).encode())

    def layout(self, number: int, layout: Layout) -> None:
        body = json.dumps({"number": number, **dataclasses.asdict(layout)}).encode()
        self._append(b"PLAN", zlib.compress(body, 1))

    def half(self, step: int, layout: int, numbers: bytes, forms: bytes, whole: bool) -> None:
        form = b""
        if self._forms.get(layout) != forms:
            self._forms[layout] = forms
            form = _framed(b"FORM", _FORM.pack(layout) + zlib.compress(forms, 1))
        self._write(form + _framed(b"HALF", _HALF.pack(step, layout, whole) + numbers))

    def close(self, done: bool = True) -> None:
        """`done`: says in the file that the recording ended as it should."""
        if not self._file.closed:
            if done:
                self._append(b"DONE", b"{}")
            self._file.close()

    def _append(self, tag: bytes, body: bytes) -> None:
        self._write(_framed(tag, body))

    def _write(self, frames: bytes) -> None:
        data = memoryview(frames)
        while data:
            data = data[self._file.write(data) :]


def _framed(tag: bytes, body: bytes) -> bytes:
    return _FRAME.pack(tag, len(body), zlib.crc32(body)) + body


class Recording:
    """Reads a recording; a sequence of its steps.

    Args:
        directory: what `record` was given, or the file.
        rank: of which process.

    Attributes:
        path: the file.
        header: "rank", "torch", "ortmodule", "started", "every", "figures" and what was chosen.
        steps: the numbers of the recorded steps, ascending.
        closed: False where the process ended, or goes on, without closing it; then the last step may be cut short.

    Raises:
        InvalidArgumentError: there is none, or it is damaged.
    """

    def __init__(self, directory: str | os.PathLike[str], rank: int = 0) -> None:
        self.path = _path_of(directory, rank)
        self.header: dict[str, Any] = {}
        self.closed = False
        self._layouts: dict[int, Layout] = {}
        # step -> of each half offset, bytes, checksum, and the form that holds for it
        self._places: dict[int, list[tuple[int, int, int, bytes]]] = {}
        with open(self.path, "rb") as file:
            self._scan(file)
        self.steps = tuple(sorted(self._places))

    def _scan(self, file: Any) -> None:
        if file.readline(len(_MAGIC)) != _MAGIC:
            raise InvalidArgumentError(f"{self.path} is no recording, or one of another version")
        end = os.fstat(file.fileno()).st_size
        forms: dict[int, bytes] = {}
        while len(head := file.read(_FRAME.size)) == _FRAME.size:
            tag, size, checksum = _FRAME.unpack(head)
            start = file.tell()
            if start + size > end:  # the process was killed while it wrote this
                return
            if tag == b"HALF":
                step, layout, _ = _HALF.unpack(file.read(_HALF.size))
                self._places.setdefault(step, []).append((start, size, checksum, forms.get(layout, b"")))
                file.seek(start + size)
                continue
            body = self._checked(file.read(size), checksum, start)
            if tag == b"FORM":
                forms[_FORM.unpack_from(body)[0]] = zlib.decompress(body[_FORM.size :])
            elif tag == b"PLAN":
                fields = json.loads(zlib.decompress(body))
                number, values = fields.pop("number"), tuple(tuple(value) for value in fields.pop("values"))
                self._layouts[number] = Layout(**fields, values=values)
            elif tag == b"HEAD":
                self.header = json.loads(body)
            elif tag == b"DONE":
                self.closed = True
                return
            else:
                raise InvalidArgumentError(f"{self.path} is damaged at byte {start}")

    def _checked(self, body: bytes, checksum: int, start: int) -> bytes:
        if zlib.crc32(body) != checksum:
            raise InvalidArgumentError(f"{self.path} is damaged at byte {start}")
        return body

    def step(self, number: int) -> RecordedStep:
        """The step of that number.

        Raises:
            InvalidArgumentError: it was not recorded, or is damaged.
        """
        if number not in self._places:
            said = f"steps {self.steps[0]} to {self.steps[-1]}" if self.steps else "no step"
            raise InvalidArgumentError(f"{self.path} has {said}, and not step {number}")
        with open(self.path, "rb") as file:
            return RecordedStep(number, tuple(self._half(file, *place) for place in self._places[number]))

    def _half(self, file: Any, start: int, size: int, checksum: int, forms: bytes) -> RecordedHalf:
        file.seek(start)
        body = self._checked(file.read(size), checksum, start)
        _, layout, whole = _HALF.unpack_from(body)
        return RecordedHalf(self._layouts[layout], whole, body[_HALF.size :], forms)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[RecordedStep]:
        return (self.step(number) for number in self.steps)

    def __str__(self) -> str:
        values = sum(len(layout.values) for layout in self._layouts.values())
        range_ = f", {self.steps[0]} to {self.steps[-1]}" if self.steps else ""
        ended = "" if self.closed else "; it was not closed"
        return f"{self.path}: {len(self)} steps{range_}; {values} values in {len(self._layouts)} plans{ended}"


def file_of(directory: str | os.PathLike[str], rank: int) -> Path:
    """Where a process records."""
    return Path(directory) / f"rank{rank}.recording"


def recordings(directory: str | os.PathLike[str]) -> dict[int, Recording]:
    """Those of all processes, by rank; of a file, that one under 0.

    Raises:
        InvalidArgumentError: there is none, or one is damaged.
    """
    _check_path(directory)
    ranks = _ranks_in(Path(directory)) or [0]
    return {rank: Recording(directory, rank) for rank in ranks}


def _ranks_in(directory: Path) -> Sequence[int]:
    names = (path.stem.removeprefix("rank") for path in directory.glob("rank*.recording"))
    return sorted(int(name) for name in names if name.isdecimal())


def _check_path(directory: Any) -> None:
    if not isinstance(directory, str | os.PathLike):
        raise InvalidArgumentError(f"a recording is a folder's path, got {type(directory).__name__}")


def _path_of(directory: str | os.PathLike[str], rank: int) -> Path:
    _check_path(directory)
    path = Path(directory)
    if path.is_file():
        return path
    if file_of(path, rank).is_file():
        return file_of(path, rank)
    if ranks := _ranks_in(path):
        raise InvalidArgumentError(f"{path} has the recordings of ranks {list(ranks)}, and none of {rank}")
    raise InvalidArgumentError(f"{path} holds no recording" if path.exists() else f"{path} does not exist")
