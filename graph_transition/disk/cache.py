"""Captured graphs in a folder, so that a restart of a program skips capture.

An entry is one file: a line that names the format, a SHA-256 of all that follows, JSON, and raw bytes (the ONNX model,
constants). It is written under a temporary name and renamed, so a reader sees a whole entry or none, whatever happens
to the writer; processes that write the same entry write the same content. What is damaged, or was put there by
something else, is told once and passed over. The folder's size is bounded; what was not used for longest goes first.

The captured graph is kept, not the compiled one: compiling takes hundredths of a second where capture takes seconds,
and no plan has to be trusted that another processor or another version of the engine made.
Not here: what an entry is found by (key.py), what is in it (stored.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ...capture import CallShape, Captured
from ...capture.attempts import Sizes
from ...options import Options
from ...vouching import vouched_ids
from ..audit import Effect
from ..conditions import Roots
from .key import DiskKey, Unkeyable, key_of
from .stored import NotStorable, Unfit, restore, store
from .stored_conditions import looked_up_again, stored_conditions

__all__ = ["DiskCache", "usage"]

_LOGGER = logging.getLogger("ortmodule")
_MAGIC = b"ORTModule graph 5\n"
_SUFFIXES = (".static", ".dynamic")
_TEMPORARY = ".writing"
_ABANDONED_SECONDS = 3600.0


class DiskCache:
    """The entries of one folder, as one module sees them.

    Args:
        options: `cache_dir` and `cache_dir_mib` say where and how large; the others are part of an entry's key.
    """

    def __init__(self, module: torch.nn.Module, options: Options) -> None:
        self._module = module
        self._options = options
        self._folder = Path(options.cache_dir)
        self._said: set[str] = set()

    def key(self, leaves: Sequence[Any], shape: CallShape, dynamic: Sizes) -> DiskKey | None:
        """The key of a call; None where something that the graph may depend on cannot be told."""
        try:
            return key_of(self._module, leaves, shape, dynamic, self._options)
        except Unkeyable as reason:
            _LOGGER.debug("the graph of %s is not cached: %s", type(self._module).__name__, reason)
        except Exception as error:  # of objects that are asked for what they hold
            self._warn(f"ORTModule does not cache the graph of {type(self._module).__name__}: {error!r}")
        return None

    def load(
        self, key: DiskKey, leaves: Sequence[Any], spec: pytree.TreeSpec
    ) -> tuple[Captured, Sizes, Roots, list[Effect]] | None:
        """The captured graph for a call, its dynamic sizes, its conditions and what its forward leaves behind: of the
        very entry, or of one whose sizes vary and admit it.
        """
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        for path in self._candidates(key):
            start = time.perf_counter()
            try:
                header, sections = _read(path)
                dynamic = frozenset((int(i), int(axis)) for i, axis in header["dynamic"])
                if not _sizes_fit(header["shapes"], dynamic, leaves):
                    continue
                captured = restore(header["facts"], sections, self._module, leaves, spec)
                if dynamic and captured.check(tensors) is not None:
                    continue
                vouched = vouched_ids(self._options.vouched)
                roots, effects = looked_up_again(header["conditions"], self._module, vouched)
                captured.repeats, _ = looked_up_again(header["regions"], self._module, vouched)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except Exception as error:  # whatever a file holds, and objects that are asked for what they hold
                self._warn(f"ORTModule ignores the cache entry {path}: {error}")
                continue
            with contextlib.suppress(OSError):
                os.utime(path)
            captured.seconds = {"load": time.perf_counter() - start}
            return captured, dynamic, roots, effects
        return None

    def store(self, key: DiskKey, captured: Captured, dynamic: Sizes, roots: Roots, effects: Sequence[Effect]) -> None:
        """Writes an entry.

        Args:
            dynamic: its symbolic sizes.
            roots: its conditions.
            effects: what its forward leaves behind.

        A folder that cannot be written to is told once.
        """
        try:
            facts, sections = store(captured, self._module)
            conditions = stored_conditions(roots, effects, self._module)
            regions = stored_conditions(captured.repeats, (), self._module)
        except (NotStorable, Unfit) as reason:
            _LOGGER.debug("the graph of %s is not cached: %s", type(self._module).__name__, reason)
            return
        header = {
            "about": {"module": type(self._module).__qualname__, "torch": torch.__version__, "time": int(time.time())},
            "name": key.name,
            "dynamic": sorted(dynamic),
            "shapes": key.shapes,
            "facts": facts,
            "conditions": conditions,
            "regions": regions,
            "sections": [[name, len(data)] for name, data in sections.items()],
        }
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(self._folder / key.name, _packed(header, sections))
            self._bound()
        except OSError as error:
            self._warn(f"ORTModule cannot write to its cache {self._folder}: {error.strerror or error}")

    def discard(self, key: DiskKey) -> None:
        """Removes the entry of `key`, if it is there."""
        with contextlib.suppress(OSError):
            (self._folder / key.name).unlink()

    def _candidates(self, key: DiskKey) -> Iterator[Path]:
        exact = self._folder / key.name
        yield exact
        try:
            others = sorted(self._folder.glob(f"{key.family}-*.dynamic"))
        except OSError:
            return
        yield from (path for path in others if path != exact)

    def _bound(self) -> None:
        entries = sorted(_entries(self._folder), key=lambda e: e[1].st_mtime)
        total = sum(status.st_size for _, status in entries)
        limit = self._options.cache_dir_mib << 20
        while total > limit and len(entries) > 1:
            path, status = entries.pop(0)
            with contextlib.suppress(OSError):
                path.unlink()
            total -= status.st_size
        now = time.time()
        for path, status in _entries(self._folder, (_TEMPORARY,)):  # of processes that were killed while they wrote
            if now - status.st_mtime > _ABANDONED_SECONDS:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _warn(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            warnings.warn(text, RuntimeWarning, stacklevel=2)


class _Damaged(Exception):
    """The file is no whole entry."""


def usage(folder: str) -> tuple[int, int]:
    """(number, bytes) of the entries in a folder; zeros where there is none."""
    sizes = [status.st_size for _, status in _entries(Path(folder))]
    return len(sizes), sum(sizes)


def _entries(folder: Path, suffixes: tuple[str, ...] = _SUFFIXES) -> list[tuple[Path, os.stat_result]]:
    found = []
    with contextlib.suppress(OSError):
        for item in os.scandir(folder):
            if item.name.endswith(suffixes):
                with contextlib.suppress(OSError):
                    found.append((Path(item.path), item.stat()))
    return found


def _packed(header: dict[str, Any], sections: dict[str, bytes]) -> bytes:
    text = json.dumps(header).encode()
    body = b"".join([len(text).to_bytes(8, "little"), text, *sections.values()])
    return b"".join([_MAGIC, hashlib.sha256(body).hexdigest().encode(), b"\n", body])


def _read(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    data = path.read_bytes()
    if not data.startswith(_MAGIC):
        raise _Damaged("it is not a cache entry of this version")
    start = len(_MAGIC) + 65
    body = memoryview(data)[start:]
    if hashlib.sha256(body).hexdigest().encode() + b"\n" != data[len(_MAGIC) : start]:
        raise _Damaged("its content is damaged")
    length = int.from_bytes(body[:8], "little")
    header = json.loads(bytes(body[8 : 8 + length]))
    if header["name"] != path.name:
        raise _Damaged("it was made for another call")
    sections = {}
    offset = 8 + length
    for name, size in header["sections"]:
        sections[name] = bytes(body[offset : offset + size])
        offset += size
    return header, sections


def _write(path: Path, data: bytes) -> None:
    """Makes `path` appear with `data`, or not at all."""
    number, temporary = tempfile.mkstemp(suffix=_TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _sizes_fit(shapes: Sequence[Sequence[int]], dynamic: Sizes, leaves: Sequence[Any]) -> bool:
    tensors = [(i, leaf) for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    return len(tensors) == len(shapes) and all(
        len(t.shape) == len(shape)
        and all(new == old or (i, axis) in dynamic for axis, (new, old) in enumerate(zip(t.shape, shape, strict=True)))
        for (i, t), shape in zip(tensors, shapes, strict=True)
    )
