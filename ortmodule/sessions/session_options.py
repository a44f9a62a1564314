"""What a session may be told besides its model, and what one run may be told.

Not here: what ORTModule may be told (ortmodule/options.py), and what the options do (csrc/compile, csrc/runtime).
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, overload

from .. import _C
from ..errors import InvalidArgumentError, nearest
from ..extending import load_libraries
from ..passes import GraphPass, checked_names, checked_passes, session_passes
from .ort_value import OrtValue

__all__ = ["ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "RunOptions", "SessionOptions"]

_T = TypeVar("_T")
_MOST_THREADS = 4096


class ExecutionOrder(enum.Enum):
    """In which order the nodes of a graph are issued; the results are the same."""

    DEFAULT = "default"
    PRIORITY_BASED = "priority_based"
    MEMORY_EFFICIENT = "memory_efficient"


class ExecutionMode(enum.Enum):
    """How many nodes of a graph run at a time."""

    ORT_SEQUENTIAL = "sequential"
    ORT_PARALLEL = "parallel"


class GraphOptimizationLevel(enum.IntEnum):
    """Which of the engine's passes run on a graph."""

    ORT_DISABLE_ALL = 0
    """Those alone without which it cannot run."""
    ORT_ENABLE_BASIC = 1
    """Those that keep every result bit for bit, too."""
    ORT_ENABLE_EXTENDED = 2
    """Those that may change the order of a sum, too; elementwise work is fused."""
    ORT_ENABLE_ALL = 99
    """All."""


class _Setting(Generic[_T]):
    """An attribute that is checked when it is set."""

    def __init__(self, default: _T, check: Callable[[str, Any], _T], doc: str) -> None:
        self.default, self.check, self.__doc__ = default, check, doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.where = name, f"{owner.__name__}.{name}"

    @overload
    def __get__(self, held: None, owner: type) -> _Setting[_T]: ...

    @overload
    def __get__(self, held: Any, owner: type) -> _T: ...

    def __get__(self, held: Any, owner: type) -> Any:
        return self if held is None else held.__dict__.get(self.name, self.default)

    def __set__(self, held: Any, value: Any) -> None:
        held.__dict__[self.name] = self.check(self.where, value)


def _flag(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{where} should be True or False, got {value!r}")
    return value


def _count(where: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise InvalidArgumentError(f"{where} should be a number from 0 on, below 2**63, got {value!r}")
    return value


def _threads(where: str, value: Any) -> int:
    if _count(where, value) > _MOST_THREADS:
        raise InvalidArgumentError(f"{where} should be at most {_MOST_THREADS}, got {value}")
    return value


def _severity(where: str, value: Any) -> int:
    if _count(where, value) > 4:
        raise InvalidArgumentError(f"{where} should be a number from 0 (all) to 4 (what is fatal), got {value}")
    return value


def _seconds(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise InvalidArgumentError(f"{where} should be a number of seconds from 0 on, got {value!r}")
    return float(value)


def _path(where: str, value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise InvalidArgumentError(f"{where} should be a path, got {value!r}")
    return os.fspath(value)


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{where} should be a text, got {value!r}")
    return value


def _one_of(kind: type[enum.Enum]) -> Callable[[str, Any], Any]:
    def check(where: str, value: Any) -> Any:
        try:
            return kind(value)
        except ValueError as error:
            names = [f"{kind.__name__}.{one.name}" for one in kind]
            raise InvalidArgumentError(f"{where} should be one of {names}, got {value!r}") from error

    return check


class _Checked:
    """An object that has the attributes of its class and no others."""

    def __setattr__(self, name: str, value: Any) -> None:
        known = [option for base in type(self).__mro__ for option, what in vars(base).items() if _is_option(what)]
        if not name.startswith("_") and name not in known:
            raise InvalidArgumentError(f"{type(self).__name__} has no option {name!r}{nearest(name, known)}")
        super().__setattr__(name, value)


def _is_option(member: Any) -> bool:
    return isinstance(member, _Setting) or (isinstance(member, property) and member.fset is not None)


class SessionOptions(_Checked):
    """What an InferenceSession may be told besides its model. A session takes them as they are when it is made.

    Raises:
        InvalidArgumentError: an attribute is set that is no option (the nearest one is named), or to what it cannot be.
    """

    execution_mode = _Setting(
        ExecutionMode.ORT_SEQUENTIAL,
        _one_of(ExecutionMode),
        "Whether nodes that do not wait for one another run side by side, on the CPU.",
    )
    inter_op_num_threads = _Setting(
        0,
        _threads,
        "How many nodes run side by side in parallel mode; 0: as many as the graph has, at most "
        "torch.get_num_threads() divided by `intra_op_num_threads`.",
    )
    inter_op_allow_spinning = _Setting(
        True, _flag, "The session's own threads look for work for some hundred microseconds before they sleep."
    )
    use_deterministic_compute = _Setting(
        False,
        _flag,
        "On the CPU, products and convolutions have the bits of torch's own kernels, as under "
        "torch.use_deterministic_algorithms, which is followed wherever it is set.",
    )
    log_severity_level = _Setting(
        2, _severity, 'What is logged (logger "ortmodule.sessions"): 0 all, 1 what was built, 2 warnings, 3, 4.'
    )
    log_verbosity_level = _Setting(0, _count, "From 1 on, severity 0 has the plan as well.")
    logid = _Setting("", _text, "How the lines of a session's log begin.")
    use_per_session_threads = _Setting(
        True,
        _flag,
        "Whether nodes that run side by side have threads of the session's own. False: the process's, which "
        "`set_global_thread_pool_sizes` makes.",
    )
    execution_order = _Setting(ExecutionOrder.DEFAULT, _one_of(ExecutionOrder), "In which order nodes are issued.")
    graph_optimization_level = _Setting(
        GraphOptimizationLevel.ORT_ENABLE_ALL, _one_of(GraphOptimizationLevel), "Which of the engine's passes run."
    )
    optimized_model_filepath = _Setting("", _path, "Where the graph that runs is written as ONNX; empty: nowhere.")
    enable_mem_pattern = _Setting(
        True, _flag, "On the CPU, places of a run's large values are learned from runs and kept for the next one."
    )
    enable_mem_reuse = _Setting(
        True,
        _flag,
        "A value's memory serves others of the same run when nobody reads it any more. False, for debugging: every "
        "value of a run stays, as it was made, until the run has ended.",
    )
    enable_profiling = _Setting(False, _flag, "Note when each node runs; `InferenceSession.end_profiling` writes it.")
    inspect_path = _Setting(
        "",
        _path,
        "A folder for a record of the session, of which `python -m ortmodule.inspect` makes a page; empty: none. "
        "`ORTMODULE_INSPECT_PATH` overrides it.",
    )
    profile_file_prefix = _Setting("ortmodule_profile", _path, "How the path of the file begins that it is written to.")
    intra_op_num_threads = _Setting(
        0,
        _threads,
        "How many threads one operator may use; 0: as many as torch.get_num_threads() says at each run, in parallel "
        "mode its part of what it says when the session is made.",
    )
    allow_aten_operators = _Setting(
        False, _flag, "Let the model call operators of PyTorch by their names (ATen nodes), some of which read files."
    )
    external_data_root = _Setting(
        "", _path, "Links in the model's folder are followed to external data in this one; empty: they are refused."
    )
    weights_folder = _Setting(
        "",
        _path,
        "Where tensors of 1 MiB or more that the model has in its own bytes are put aside, in a file without a name "
        "that goes with the session: those that kernels lay out anew take no memory beside that. Empty: nowhere.",
    )
    max_tensor_bytes = _Setting(64 << 30, _count, "How many bytes the model's tensors may have together.")
    max_nodes = _Setting(
        500_000,
        _count,
        "How many nodes a model may have, with those of bodies and functions, as often as it calls them.",
    )
    max_nesting = _Setting(32, _count, "How deep bodies may lie in bodies, and functions may call functions.")
    max_run_bytes = _Setting(
        0,
        _count,
        "How many bytes a run's values may have at one time, on the CPU; 0: no value is larger than free memory.",
    )
    max_seconds = _Setting(
        0.0, _seconds, "How long making the session may take, and each run, looked at between nodes; 0: any time."
    )

    def __init__(self) -> None:
        self._libraries: list[str] = []
        self._passes: tuple[GraphPass, ...] = ()
        self._disabled: tuple[str, ...] = ()
        self._sizes: dict[str, int] = {}
        self._sizes_by_denotation: dict[str, int] = {}
        self._initializers: dict[str, OrtValue] = {}
        self._keep_history = False  # what passes do to the graph, for tools

    def register_custom_ops_library(self, path: str | os.PathLike[str]) -> None:
        """Loads a shared library of custom operators, built with `ortmodule/custom_op.h` (see `include_dir`).

        Its operators are known from then on, in every session of the process.

        Raises:
            InvalidArgumentError: there is no such file, it is no library, it lacks the symbol
                `OrtmoduleRegisterCustomOps`, was built for another version of the interface, describes an operator that
                is not sound, or one that exists already. Nothing of it is registered then.
        """
        load_libraries([path])
        self._libraries.append(os.fspath(path))

    def register_pass(self, graph_pass: GraphPass) -> None:
        """Adds a pass (`ortmodule.graph_pass`) to those that sessions with these options run on their graph.

        Raises:
            InvalidArgumentError: no pass, or one whose name another one has.
        """
        self._passes = checked_passes("SessionOptions.register_pass", (*self._passes, graph_pass))

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Gives a size that the model calls by a name (a `dim_param`) a number, which inputs must have from then on.

        Raises:
            InvalidArgumentError: no size. A name that the model does not have is an error when the session is made.
        """
        self._sizes[_text("the name of a dimension", name)] = _count(f"the dimension {name!r}", size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """The same for all sizes with this denotation ("DATA_BATCH")."""
        self._sizes_by_denotation[_text("a denotation", denotation)] = _count(f"the dimension {denotation!r}", size)

    def add_initializer(self, name: str, value: OrtValue) -> None:
        """Takes `value` for the model's initializer `name`. Sessions hold its memory and make no copy of it: nobody may
        change it while they live. An initializer in an external file need not have its file then.

        Raises:
            InvalidArgumentError: no OrtValue of a tensor. Another type or shape than the model's, and a name that it
                does not have, are errors when the session is made.
        """
        if not isinstance(value, OrtValue) or not value.is_tensor():
            raise InvalidArgumentError(f"the initializer {name!r} should be an OrtValue of a tensor, got {value!r}")
        self._initializers[_text("the name of an initializer", name)] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[OrtValue]) -> None:
        """`add_initializer` for each of several."""
        for name, value in zip(names, values, strict=True):
            self.add_initializer(name, value)

    @property
    def passes(self) -> tuple[GraphPass, ...]:
        """The passes that were registered, in their order."""
        return self._passes

    @property
    def disabled_passes(self) -> tuple[str, ...]:
        """Names of the engine's passes (`ortmodule.pass_names()`) that are left out."""
        return self._disabled

    @disabled_passes.setter
    def disabled_passes(self, names: Sequence[str]) -> None:
        self._disabled = checked_names("SessionOptions.disabled_passes", names)

    @property
    def custom_op_libraries(self) -> tuple[str, ...]:
        """The libraries that were registered through these options."""
        return tuple(self._libraries)


_LEVELS = {0: "required", 1: "basic", 2: "extended", 99: "extended"}


def inspect_path_of(settings: SessionOptions) -> str:
    """The folder for the record of a session with these settings; "": none."""
    return os.environ.get("ORTMODULE_INSPECT_PATH", settings.inspect_path)


def compile_options(settings: SessionOptions, fed: frozenset[str], training: bool) -> dict[str, Any]:
    """How the core takes them; `fed`: initializers that each run is given; `training`: RunOptions.training_mode."""
    level = settings.graph_optimization_level
    return {
        "order": settings.execution_order.value,
        "level": _LEVELS[int(level)],
        "fusion": level >= GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        "memory_pattern": settings.enable_mem_pattern,
        "memory_reuse": settings.enable_mem_reuse,
        "threads": settings.intra_op_num_threads,
        "parallel": settings.execution_mode is ExecutionMode.ORT_PARALLEL,
        "inter_op_threads": settings.inter_op_num_threads,
        "own_pool": settings.use_per_session_threads,
        "spin": settings.inter_op_allow_spinning,
        "deterministic": settings.use_deterministic_compute,
        "aten_operators": settings.allow_aten_operators,
        "external_data_root": settings.external_data_root,
        "weights_folder": settings.weights_folder,
        "limits": {
            "tensor_bytes": settings.max_tensor_bytes,
            "nodes": settings.max_nodes,
            "nesting": settings.max_nesting,
            "run_bytes": settings.max_run_bytes,
            "seconds": settings.max_seconds,
        },
        "free_dimensions": dict(settings._sizes),
        "free_dimensions_by_denotation": dict(settings._sizes_by_denotation),
        "keep_history": settings._keep_history or bool(inspect_path_of(settings)),
        "initializers": {name: value.engine_value for name, value in settings._initializers.items() if name not in fed},
        "fed": fed,
        "training_mode": training,
        **session_passes(settings.passes, settings.disabled_passes),
    }


class RunOptions(_Checked):
    """What one run, or several, may be told.

    Raises:
        InvalidArgumentError: an attribute is set that is no option (the nearest one is named), or to what it cannot be.
    """

    tag = _Setting("", _text, "A name for the run, for who reads logs.")
    logid = _Setting("", _text, "How the lines of these runs' log begin; empty: as the session's.")
    log_severity_level = _Setting(2, _severity, "0: each run with these options is logged, with what it took.")
    only_execute_path_to_fetches = _Setting(
        True, _flag, "Compute what the outputs that are asked for need, and nothing else."
    )
    training_mode = _Setting(
        False,
        _flag,
        "Dropout without the input training_mode and BatchNormalization without the attribute of that name do what "
        "they do in training: drop by torch's generator, normalize with the batch's own statistics (the model's stay "
        "as they are). Nodes that say themselves what they do go on doing it.",
    )

    def __init__(self) -> None:
        self._stop = _C.RunStop()

    @property
    def terminate(self) -> bool:
        """Whether runs with these options are to end: set from another thread, it ends those that go on before their
        next node with TerminatedError, and later ones at once, until it is False again."""
        return self._stop.asked

    @terminate.setter
    def terminate(self, value: bool) -> None:
        if _flag("RunOptions.terminate", value):
            self._stop.ask()
        else:
            self._stop.take_back()
