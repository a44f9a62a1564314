"""Records what the values of every step were: `with ortmodule.debug.record(model, "runs/a"): train()`.

The statistics are taken by the core while a half runs (csrc/runtime/run_recorder.h); here they get names and are
appended to a file (recording.py). Two recordings are compared by `diff` (divergence.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import importlib.metadata
import itertools
import os
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import _C
from ..errors import InvalidArgumentError
from ..globs import Choice, globs
from ..ortmodule import ORTModule
from ..sessions import InferenceSession
from .following import FollowedSession, follow
from .recording import Layout, RecordingWriter, file_of

__all__ = ["Recorder", "record"]


def record(
    model: ORTModule | InferenceSession,
    directory: str | os.PathLike[str],
    *,
    every: int = 1,
    names: str | Sequence[str] = (),
    operators: str | Sequence[str] = (),
    figures: bool = True,
    inference: bool = False,
    first_step: int = 0,
    calls_per_step: int = 1,
    overwrite: bool = False,
) -> Recorder:
    """Records statistics of every value of each step: of inputs, weights and buffers as a forward is given them, of
    what each node makes, forward and backward, and of the gradients. Records from now on, until the Recorder is closed.

    A step is a call of the model and what runs until the next one. Values that a fused kernel keeps to itself are not
    there to be looked at; nodes in the bodies of control flow are not either. What PyTorch runs (fallback) is not
    recorded. A recorder that cannot write warns once and stops; the training goes on.

    Args:
        model: an ORTModule, or an InferenceSession, of which each run is a step, and whose weights are constants.
        directory: where `rank<k>.recording` is written, k being torch.distributed's rank or that of torchrun; made if
            it is not there.
        every: record each `every`-th step: those whose number it divides.
        names: globs, of which one has to fit the name of a value or of the node that makes it; a list, or one text with
            commas between. None: all.
        operators: globs over the operators of nodes ("Gemm", "ai.ortmodule::*"). What no node makes is recorded all the
            same.
        figures: False records fingerprints alone, which is quicker: equal or not, and not by how much.
        inference: count and record calls without gradients as well.
        first_step: the number of the first step, for a run that goes on from a checkpoint.
        calls_per_step: how many calls make a step (gradient accumulation).
        overwrite: replace a recording that is there.

    Raises:
        InvalidArgumentError: an argument that does not fit, or there is a recording in the directory already.
    """
    how = _How(
        every, globs("names", names), globs("operators", operators), figures, inference, first_step, calls_per_step
    )
    how.check()
    if not isinstance(directory, str | os.PathLike):
        raise InvalidArgumentError(f"directory should be a path, got {type(directory).__name__}")
    if not isinstance(model, InferenceSession) and type(model) is not ORTModule:
        raise InvalidArgumentError(f"record expects an ORTModule or InferenceSession, got {type(model).__name__}")
    path = file_of(directory, _rank())
    if path.exists() and not overwrite:
        raise InvalidArgumentError(f"{path} is there already; pass another directory, or overwrite=True")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return Recorder(model, path, how)
    except OSError as error:
        raise InvalidArgumentError(f"cannot record to {path}: {error}") from error


@dataclasses.dataclass(frozen=True)
class _How:
    """What `record` was asked for."""

    every: int
    names: tuple[str, ...]
    operators: tuple[str, ...]
    figures: bool
    inference: bool
    first_step: int
    calls_per_step: int

    def check(self) -> None:
        for name, least in (("every", 1), ("first_step", 0), ("calls_per_step", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidArgumentError(f"{name} should be a whole number, {least} or more, got {value!r}")
        for name in ("figures", "inference"):
            if not isinstance(value := getattr(self, name), bool):
                raise InvalidArgumentError(f"{name} should be True or False, got {value!r}")


class Recorder:
    """What `record` gives: a context manager, or closed by hand.

    Attributes:
        path: the file.
    """

    def __init__(self, model: ORTModule | InferenceSession, path: Path, how: _How) -> None:
        self.path, self._how = path, how
        self._choice = Choice(how.names, how.operators)
        self._calls = 0
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._open = True
        self._observations: list[_C.Observation] = []
        self._of_session = isinstance(model, InferenceSession)
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        facts = {"rank": _rank(), "torch": torch.__version__, "ortmodule": _version(), "started": started}
        self._writer = RecordingWriter(path, {**facts, **dataclasses.asdict(how)})
        self._ends: list[Callable[[], None]] = [follow("record", model, self._follow)]
        if isinstance(model, nn.Module):
            # The wrapper's own hook, of which the graphs of the wrapped module know nothing.
            self._ends.append(nn.Module.register_forward_pre_hook(model, _CountsCalls(self, model)).remove)

    @property
    def step(self) -> int:
        """The number of the step that runs now, or ran last; `first_step` before the first one."""
        return self._how.first_step + max(self._calls - 1, 0) // self._how.calls_per_step

    def close(self) -> None:
        """Ends the recording. Warns of globs that fitted nothing."""
        with self._lock:
            was_open, self._open = self._open, False
            with contextlib.suppress(OSError):  # then its end is not said, as in a recording that was cut
                self._writer.close()
        for end in self._ends:
            end()
        for observation in self._observations:
            observation.end()
        self._ends, self._observations = [], []
        if was_open and (idle := self._choice.idle()):
            warnings.warn(f"recording {self.path}: {idle}", stacklevel=2)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.close()

    def _follow(self, one: FollowedSession) -> None:
        if one.mode != "training" and not self._how.inference and not self._of_session:
            return

        module, mode, kinds = one.module, one.mode, one.kinds  # not `one`, whose session would hold itself

        def choose(half: str, values: list[tuple[str, str, str, str]]) -> tuple[int, list[int]]:
            named = [
                (kinds.get(name, kind) if kind == "input" else kind, name, node, operator)
                for kind, name, node, operator in values
            ]
            taken = [self._takes(*value) for value in named]
            layout = Layout(module, mode, half, tuple(v for v, t in zip(named, taken, strict=True) if t))
            with self._lock:
                number = next(self._numbers)
                if self._open:
                    self._writer.layout(number, layout)
            return number, [int(t) for t in taken]

        every = self._how.every if self._of_session else 1
        observation = one.session.record(choose, self._write, self._how.figures, every)
        observation.enable(self._of_session or self.step % self._how.every == 0)
        self._observations.append(observation)

    def _takes(self, kind: str, name: str, node: str, operator: str) -> bool:
        if kind == "constant" and not self._of_session:
            return False  # in training they are numbers of the program
        return self._choice.takes([name], node, operator)

    def _count(self) -> None:
        """A call of the model begins."""
        if not self._how.inference and not torch.is_grad_enabled():
            return
        with self._lock:
            self._calls += 1
        on = self.step % self._how.every == 0
        for observation in self._observations:
            observation.enable(on)

    def _write(self, layout: int, run: int, numbers: bytes, forms: bytes, whole: bool) -> None:
        with self._lock:
            if not self._open:
                return
            try:
                step = self._how.first_step + run if self._of_session else self.step
                self._writer.half(step, layout, numbers, forms, whole)
                return
            except OSError as error:
                failed = error
            self._open = False
        warnings.warn(f"recording {self.path} ended: {failed}", stacklevel=2)


class _CountsCalls:
    """A forward pre-hook of the wrapper; copies of the model are not counted."""

    def __init__(self, recorder: Recorder | None = None, model: ORTModule | None = None) -> None:
        self._recorder = weakref.ref(recorder) if recorder else None
        self._model = weakref.ref(model) if model is not None else None

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        recorder = self._recorder() if self._recorder else None
        if recorder and self._model and self._model() is module:
            recorder._count()

    def __reduce__(self) -> Any:
        return _CountsCalls, ()


def _rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    given = os.environ.get("RANK", "0")
    return int(given) if given.isdecimal() else 0


def _version() -> str:
    try:
        return importlib.metadata.version("ortmodule")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
