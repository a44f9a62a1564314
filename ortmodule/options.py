"""Options of an ORTModule: what a user may choose, with an environment variable for each.

`Options` says how the engine computes; `DebugOptions` says what it shows. Every field of Options can be overridden by
`ORTMODULE_<FIELD>`, which wins over the code: a run can be changed without an edit.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .errors import InvalidArgumentError, nearest
from .globs import globs
from .passes import GraphPass, checked_names, checked_passes
from .reference_variables import WITHOUT_EFFECT, fallback_policy, note_variables_without_effect

__all__ = ["DebugOptions", "LogLevel", "Options"]

_PREFIX = "ORTMODULE_"
# Variables that are not fields of Options: the build's, DebugOptions', and where generated CUDA kernels are kept.
_OTHER_VARIABLES = {
    "ORTMODULE_LOG_LEVEL",
    "ORTMODULE_SAVE_ONNX_PATH",
    "ORTMODULE_DUMP_NODES",
    "ORTMODULE_DUMP_NAMES",
    "ORTMODULE_DUMP_OPERATORS",
    "ORTMODULE_DUMP_TENSORS",
    "ORTMODULE_INSPECT_PATH",
    "ORTMODULE_KERNEL_CACHE",
    "ORTMODULE_CUDA",
    "ORTMODULE_PROTOBUF_ROOT",
    "ORTMODULE_TESTS",
    "ORTMODULE_BUILD_TYPE",
    "ORTMODULE_FALLBACK_POLICY",
}


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


# Fields that are functions and objects.
_NOT_IN_THE_ENVIRONMENT = {"vouched", "passes"}
_CHOICES: dict[str, tuple[str, ...]] = {
    "dropout": ("fast", "torch"),
    "fallback": ("eager", "error"),
    "outputs": ("lazy", "all", "loss"),
    "matmul": ("auto", "aten", "onednn"),
    "execution_order": ("default", "priority_based", "memory_efficient"),
}


Provider = str | tuple[str, Mapping[str, str]]
_NAMES_OF_ONNXRUNTIME = {"CPUExecutionProvider": "cpu", "CUDAExecutionProvider": "cuda"}


@dataclasses.dataclass(frozen=True, init=False)
class Options:
    """How the engine computes.

    Attributes:
        dropout: "fast" (default): counter-based masks, recomputed in backward and never stored; reproducible under
            `torch.manual_seed`, but other draws than eager's. "torch": draws exactly as eager does (for tests and
            convergence work); masks are stored.
        fallback: what happens when a module cannot be captured. "eager" (default): its largest sub-modules that can be
            captured run in the engine and the rest in PyTorch, with one warning that says why. "error": CaptureError.
            `ORTMODULE_FALLBACK_POLICY` (FALLBACK_DISABLE: "error") overrides it as well.
        outputs: "lazy" (default): a call returns what the module returns. In one that records gradients and returns a
            loss, on the CPU, large outputs (from 1 MiB on) beside it are computed when something first looks at their
            elements, or at a backward or before a write of what they are computed from while they are alive; dropped
            unread they cost nothing, as with "loss". They show what they were in the forward; where they can no longer
            be computed, because something wrote a parameter's memory past torch's operators, looking at them is an
            error (see docs/lazy_outputs.md). "all": a call computes all of them. "loss": in a call that records
            gradients only the scalar floating outputs are computed; every other tensor of the result is None, in the
            same structure.
            What only they need is then not computed: logits need not exist whole, and rows that are padding or whose
            label is ignored are left out. Calls without gradients (evaluation under `torch.no_grad()`) return
            everything. A module without a scalar floating output raises InvalidArgumentError.
        custom_op_libraries: paths of shared libraries whose operators the module needs (see docs/extending.md); in the
            environment separated by the path separator.
        matmul: which library multiplies float matrices on the CPU. "auto" (default): by a rule on sizes, types, threads
            and the processor; ATen's own choice where oneDNN is not clearly faster, and always under
            `torch.use_deterministic_algorithms`. "aten" (MKL, as eager) or "onednn": that one.
        fusion: whether clusters of elementwise operators, dropout and sums run as one kernel each on the CPU
            (default True). 16-bit values are then rounded at the end of a cluster, and where the forward itself
            converts to their type, instead of after every operator.
        memory_budget: what forward may keep for backward: bytes (above 1), or a fraction (above 0, up to 1) of what
            it would keep if backward recomputed nothing. What does not fit is recomputed, the cheapest per byte first.
            None (default): only what is nearly free is recomputed (activations, normalizations with known statistics,
            dropout, casts). "all": nothing is.
        passes: passes over the module's graph written in Python (`ortmodule.graph_pass`), in the order in which they
            run.
        disabled_passes: names of the engine's passes (`ortmodule.pass_names()`) that are left out; in the environment
            separated by commas.
        vouched: functions and objects that give the same each time, though a capture cannot see into them; a forward
            that uses them need not run in PyTorch (see `ortmodule.vouch`).
        execution_order: in which order a graph's nodes run, in each half of a step. "default": the module's.
            "priority_based": sizes and other values on the host as soon as they can be had. "memory_efficient":
            greedily what frees most and makes least memory, where that holds less at its peak than the module's order.
            Random draws keep their order, and every order gives the same numbers.
        providers: execution providers in order of priority, each a name ("cuda:1", or one that a library registers) or
            a pair of a name and options ("operators": what it runs alone, "except": what it leaves to others). Each
            node runs on the first that can, with copies between devices where they are needed; inputs and outputs stay
            on the module's device. Empty (default): the module's device, and the host for sizes. In the environment
            separated by commas.
        cache_size: how many compiled graphs one module keeps; the least recently used goes first.
        cache_dir: a folder (made if need be) that keeps captured graphs from run to run, so that a restart skips
            capture. Empty (default): none. Entries are found by the module's code and state, the call's types, the
            settings and the versions; processes may share it, and it may be deleted at any time.
        cache_dir_mib: how many MiB that folder may take; what was not used for longest goes first.

    Raises:
        InvalidArgumentError: an unknown name or value, in code or in the environment, with the nearest known one.
    """

    dropout: str = "fast"
    fallback: str = "eager"
    outputs: str = "lazy"
    matmul: str = "auto"
    fusion: bool = True
    memory_budget: float | int | str | None = None
    execution_order: str = "default"
    providers: tuple[tuple[str, dict[str, str]], ...] = ()
    cache_size: int = 32
    cache_dir: str = ""
    cache_dir_mib: int = 1024
    custom_op_libraries: tuple[str, ...] = ()
    passes: tuple[GraphPass, ...] = ()
    disabled_passes: tuple[str, ...] = ()
    vouched: tuple[Any, ...] = ()

    def __init__(self, **fields: Any) -> None:
        known = {f.name: f for f in dataclasses.fields(self)}
        for name in fields:
            if name not in known:
                raise InvalidArgumentError(f"Options has no field {name!r}{nearest(name, known)}")
        for name, field in known.items():
            value = fields.get(name, field.default)
            variable = _PREFIX + name.upper()
            if variable in os.environ and name not in _NOT_IN_THE_ENVIRONMENT:
                value = os.environ[variable]
            elif name == "fallback":
                value = fallback_policy() or value
            object.__setattr__(self, name, _checked(name, value))
        _check_variables(known)


def for_parts(options: Options) -> Options:
    """The options of a sub-module that is run on its own: all its outputs are wanted, whatever the environment says."""
    parts = copy.copy(options)
    object.__setattr__(parts, "outputs", "all")
    return parts


def _checked(name: str, value: Any) -> Any:
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            choices = " or ".join(repr(c) for c in _CHOICES[name])
            hint = nearest(str(value), _CHOICES[name])
            raise InvalidArgumentError(f"Options.{name} should be {choices}, got {value!r}{hint}")
        return value
    if name == "memory_budget":
        return _checked_budget(value)
    if name == "vouched":
        if not isinstance(value, list | tuple):
            raise InvalidArgumentError(f"Options.{name} should be a tuple of functions and objects, got {value!r}")
        return tuple(value)
    if name == "fusion":
        return _checked_bool(f"Options.{name}", value)
    if name == "passes":
        return checked_passes("Options.passes", value)
    if name == "providers":
        return checked_providers("Options.providers", value)
    if name == "disabled_passes":
        return checked_names("Options.disabled_passes", value)
    if name == "cache_dir":
        if not isinstance(value, str | os.PathLike):
            raise InvalidArgumentError(f"Options.{name} should be the path of a folder, got {value!r}")
        return os.path.expanduser(os.fspath(value)) if value else ""
    if name == "custom_op_libraries":
        paths = value.split(os.pathsep) if isinstance(value, str) else value
        if not isinstance(paths, list | tuple) or not all(isinstance(p, str | os.PathLike) for p in paths):
            raise InvalidArgumentError(f"Options.{name} should be a tuple of paths, got {value!r}")
        return tuple(os.fspath(p) for p in paths if p)
    try:
        number = int(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"Options.{name} should be a positive integer, got {value!r}") from error
    if number < 1 or isinstance(value, bool):
        raise InvalidArgumentError(f"Options.{name} should be a positive integer, got {value!r}")
    return number


def _checked_bool(name: str, value: Any) -> bool:
    known = {"1": True, "true": True, "0": False, "false": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in known:
        return known[value.lower()]
    raise InvalidArgumentError(f"{name} should be True or False, got {value!r}")


def _checked_budget(value: Any) -> float | str | None:
    if value is None or value in ("all", "none", "None", ""):
        return "all" if value == "all" else None
    try:
        number = float(value)
        if number > 0 and not isinstance(value, bool) and number < float("inf"):
            return number
    except (TypeError, ValueError):
        pass
    raise InvalidArgumentError(
        "Options.memory_budget should be bytes, a fraction above 0 and up to 1, 'all' or None, got " + repr(value)
    )


def _check_variables(known: Iterable[str]) -> None:
    names = {_PREFIX + name.upper() for name in known} | _OTHER_VARIABLES | WITHOUT_EFFECT.keys()
    note_variables_without_effect()
    for variable in os.environ:
        if variable.startswith(_PREFIX) and variable not in names:
            raise InvalidArgumentError(
                f"the environment variable {variable} is not one of ORTModule's{nearest(variable, names)}"
            )


@dataclasses.dataclass(frozen=True)
class DebugOptions:
    """What ORTModule shows and saves.

    Attributes:
        log_level: messages below it are not logged (logger "ortmodule"). `ORTMODULE_LOG_LEVEL` overrides it.
        save_onnx: write the graph of every stage as `<save_path>/<onnx_prefix>_<stage>_<mode>.onnx`. The stages, in
            order: torch_exported, resolved, optimized_pre_grad, gradient, optimized, recompute, fusion,
            execution_model, and portable (forward in standard operators); without a gradient resolved is followed by
            optimized. The mode is training, or inference where the module is in eval mode or nothing is recorded.
        onnx_prefix: first part of those files' names; required with save_onnx.
        save_path: an existing, writable folder for them (default: `ORTMODULE_SAVE_ONNX_PATH`, else the current one).
        dump_nodes: for how many runs of each session the nodes' inputs and outputs are written (type, shape, smallest,
            largest, mean, standard deviation, NaN and infinities) to
            `<save_path>/<onnx_prefix>_nodes_<number>_<mode>.txt`; 0 (default): none. Without a prefix that of the
            module's class stands there. `ORTMODULE_DUMP_NODES` overrides it, for InferenceSessions as well.
        dump_names, dump_operators: globs of which one has to fit the name of a node or of a value that it makes, and
            its operator; a list, or one text with commas between. `ORTMODULE_DUMP_NAMES` and
            `ORTMODULE_DUMP_OPERATORS` override them.
        dump_tensors: write whole outputs too, with torch.save, into a folder beside the text that is named like it.
            `ORTMODULE_DUMP_TENSORS` overrides it.
        inspect_path: a folder (made if need be) for a record of each session, of which `python -m ortmodule.inspect`
            makes a page: what each pass did to the graph, the plan, memory, and, as the process ends, the times of its
            nodes, which are measured in every run then. Empty (default): none. `ORTMODULE_INSPECT_PATH` overrides it,
            and is for InferenceSessions, too.

    Raises:
        InvalidArgumentError: a value that does not fit.
    """

    log_level: LogLevel = LogLevel.WARNING
    save_onnx: bool = False
    onnx_prefix: str = ""
    save_path: str = ""
    dump_nodes: int = 0
    dump_names: str | Sequence[str] = ()
    dump_operators: str | Sequence[str] = ()
    dump_tensors: bool = False
    inspect_path: str = ""

    def __post_init__(self) -> None:
        # Each message begins with ONNX Runtime training's own, which scripts may look for.
        level = os.environ.get("ORTMODULE_LOG_LEVEL", self.log_level)
        if isinstance(level, str) and level.upper() in LogLevel.__members__:
            level = LogLevel[level.upper()]
        if not isinstance(level, LogLevel):
            hint = nearest(str(level).upper(), LogLevel.__members__)
            raise InvalidArgumentError(
                f"Expected log_level of type LogLevel, got {type(level)}. Or one of {list(LogLevel.__members__)} "
                f"(ORTMODULE_LOG_LEVEL too), not {level!r}{hint}"
            )
        object.__setattr__(self, "log_level", level)
        path = self.save_path or os.environ.get("ORTMODULE_SAVE_ONNX_PATH", os.curdir)
        object.__setattr__(self, "save_path", path)
        if not isinstance(self.onnx_prefix, str):
            raise InvalidArgumentError(
                f"Expected name prefix of type str, got {type(self.onnx_prefix)}. onnx_prefix={self.onnx_prefix!r}"
            )
        self._set_dump()
        inspected = os.environ.get("ORTMODULE_INSPECT_PATH", self.inspect_path)
        if not isinstance(inspected, str | os.PathLike):
            raise InvalidArgumentError(f"inspect_path should be the path of a folder, got {inspected!r}")
        object.__setattr__(self, "inspect_path", os.fspath(inspected))
        if self.save_onnx and not self.onnx_prefix:
            raise InvalidArgumentError(
                "onnx_prefix must be provided when save_onnx is set. It is the first part of the files' names"
            )
        if self.save_onnx or self.dump_nodes:
            if not os.path.isdir(path) or not os.access(path, os.W_OK):
                raise InvalidArgumentError(f"Directory {path} is not writable. save_path should be a folder that is")

    def _set_dump(self) -> None:
        dump = os.environ.get("ORTMODULE_DUMP_NODES", self.dump_nodes)
        if isinstance(dump, str) and dump.isdecimal():
            dump = int(dump)
        if not isinstance(dump, int) or dump < 0:
            raise InvalidArgumentError(f"dump_nodes should be a number of runs, got {dump!r}")
        object.__setattr__(self, "dump_nodes", int(dump))
        names = os.environ.get("ORTMODULE_DUMP_NAMES", self.dump_names)
        operators = os.environ.get("ORTMODULE_DUMP_OPERATORS", self.dump_operators)
        object.__setattr__(self, "dump_names", globs("dump_names", names))
        object.__setattr__(self, "dump_operators", globs("dump_operators", operators))
        tensors = _checked_bool(
            "DebugOptions.dump_tensors", os.environ.get("ORTMODULE_DUMP_TENSORS", self.dump_tensors)
        )
        object.__setattr__(self, "dump_tensors", tensors)


def checked_providers(where: str, value: Any) -> tuple[tuple[str, dict[str, str]], ...]:
    """(name, options) of each provider, in order of priority.

    Args:
        where: how errors name the argument.
        value: a list of names, or of pairs of a name and a mapping of options; names separated by commas as one text.

    Raises:
        InvalidArgumentError: anything else.
    """
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list | tuple):
        raise InvalidArgumentError(f"{where} should be a list of names, got {value!r}")
    checked = []
    for one in value:
        name, options = (one, {}) if isinstance(one, str) else _pair(where, one)
        texts = {str(k): ",".join(map(str, v)) if isinstance(v, list | tuple) else str(v) for k, v in options.items()}
        checked.append((_NAMES_OF_ONNXRUNTIME.get(name, name), texts))
    return tuple(checked)


def _pair(where: str, one: Any) -> tuple[str, Mapping[str, Any]]:
    if isinstance(one, list | tuple) and len(one) == 2 and isinstance(one[0], str) and isinstance(one[1], Mapping):
        return one[0], one[1]
    raise InvalidArgumentError(f"{where} should hold names, or (name, options), got {one!r}")
