"""Options of an ORTModule: what a user may choose, with an environment variable for each.

`Options` says how the engine computes; `DebugOptions` says what it shows. Every field of Options can be overridden by
`ORTMODULE_<FIELD>`, which wins over the code: a run can be changed without an edit.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import os
from collections.abc import Iterable
from typing import Any

from .errors import InvalidArgumentError

__all__ = ["DebugOptions", "LogLevel", "Options"]

_PREFIX = "ORTMODULE_"
# Variables that are not fields of Options: the build's, and DebugOptions'.
_OTHER_VARIABLES = {
    "ORTMODULE_LOG_LEVEL",
    "ORTMODULE_SAVE_ONNX_PATH",
    "ORTMODULE_CUDA",
    "ORTMODULE_PROTOBUF_ROOT",
    "ORTMODULE_TESTS",
    "ORTMODULE_BUILD_TYPE",
}


def _nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as "; did you mean 'dropout'?", or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


class LogLevel(enum.IntEnum):
    """How much ORTModule logs; the names are ONNX Runtime training's."""

    VERBOSE = 0
    DEVINFO = 1
    INFO = 2
    WARNING = 3
    ERROR = 4
    FATAL = 5

    @property
    def logging_level(self) -> int:
        """The level of Python's logging that this one means."""
        return {0: 10, 1: 15, 2: 20, 3: 30, 4: 40, 5: 50}[int(self)]


_CHOICES: dict[str, tuple[str, ...]] = {
    "dropout": ("fast", "torch"),
    "fallback": ("eager", "error"),
    "matmul": ("auto", "aten", "onednn"),
}


@dataclasses.dataclass(frozen=True, init=False)
class Options:
    """How the engine computes.

    Attributes:
        dropout: "fast" (default): counter-based masks, recomputed in backward and never stored; reproducible under
            `torch.manual_seed`, but other draws than eager's. "torch": draws exactly as eager does (for tests and
            convergence work); masks are stored.
        fallback: what happens when a module cannot be captured. "eager" (default): its largest sub-modules that can be
            captured run in the engine and the rest in PyTorch, with one warning that says why. "error": CaptureError.
        matmul: which library multiplies float matrices on the CPU. "auto" (default): measured on the first product of
            each shape class; ATen's own choice where oneDNN is not clearly faster, and always under
            `torch.use_deterministic_algorithms`. "aten" (MKL, as eager) or "onednn": that one.
        cache_size: how many compiled graphs one module keeps; the least recently used goes first.

    Raises:
        InvalidArgumentError: an unknown name or value, in code or in the environment, with the nearest known one.
    """

    dropout: str = "fast"
    fallback: str = "eager"
    matmul: str = "auto"
    cache_size: int = 32

    def __init__(self, **fields: Any) -> None:
        known = {f.name: f for f in dataclasses.fields(self)}
        for name in fields:
            if name not in known:
                raise InvalidArgumentError(f"Options has no field {name!r}{_nearest(name, known)}")
        for name, field in known.items():
            value = fields.get(name, field.default)
            variable = _PREFIX + name.upper()
            if variable in os.environ:
                value = os.environ[variable]
            object.__setattr__(self, name, _checked(name, value))
        _check_variables(known)


def _checked(name: str, value: Any) -> Any:
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            choices = " or ".join(repr(c) for c in _CHOICES[name])
            hint = _nearest(str(value), _CHOICES[name])
            raise InvalidArgumentError(f"Options.{name} should be {choices}, got {value!r}{hint}")
        return value
    try:
        number = int(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"Options.{name} should be a positive integer, got {value!r}") from error
    if number < 1 or isinstance(value, bool):
        raise InvalidArgumentError(f"Options.{name} should be a positive integer, got {value!r}")
    return number


def _check_variables(known: Iterable[str]) -> None:
    names = {_PREFIX + name.upper() for name in known} | _OTHER_VARIABLES
    for variable in os.environ:
        if variable.startswith(_PREFIX) and variable not in names:
            raise InvalidArgumentError(
                f"the environment variable {variable} is not one of ORTModule's{_nearest(variable, names)}"
            )


@dataclasses.dataclass(frozen=True)
class DebugOptions:
    """What ORTModule shows and saves.

    Attributes:
        log_level: messages below it are not logged (logger "ortmodule"). `ORTMODULE_LOG_LEVEL` overrides it.
        save_onnx: write the graph of every stage as an .onnx file.
        onnx_prefix: first part of those files' names; required with save_onnx.
        save_path: an existing, writable folder for them (default: `ORTMODULE_SAVE_ONNX_PATH`, else the current one).

    Raises:
        InvalidArgumentError: a value that does not fit.
    """

    log_level: LogLevel = LogLevel.WARNING
    save_onnx: bool = False
    onnx_prefix: str = ""
    save_path: str = ""

    def __post_init__(self) -> None:
        level = os.environ.get("ORTMODULE_LOG_LEVEL", self.log_level)
        if isinstance(level, str):
            if level.upper() not in LogLevel.__members__:
                hint = _nearest(level.upper(), LogLevel.__members__)
                raise InvalidArgumentError(
                    f"the log level should be one of {list(LogLevel.__members__)}, got {level!r}{hint}"
                )
            level = LogLevel[level.upper()]
        if not isinstance(level, LogLevel):
            raise InvalidArgumentError(f"log_level should be a LogLevel, got {level!r}")
        object.__setattr__(self, "log_level", level)
        path = self.save_path or os.environ.get("ORTMODULE_SAVE_ONNX_PATH", os.curdir)
        object.__setattr__(self, "save_path", path)
        if not isinstance(self.onnx_prefix, str):
            raise InvalidArgumentError(f"onnx_prefix should be a string, got {self.onnx_prefix!r}")
        if self.save_onnx:
            if not self.onnx_prefix:
                raise InvalidArgumentError("save_onnx needs onnx_prefix, the first part of the files' names")
            if not os.path.isdir(path) or not os.access(path, os.W_OK):
                raise InvalidArgumentError(f"save_path {path!r} is not a folder that can be written to")
