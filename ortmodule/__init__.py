"""ORTModule: trains PyTorch models faster with one line, `model = ORTModule(model)`."""

from __future__ import annotations

import importlib
from typing import Any

import torch  # noqa: F401  its libraries must be loaded before ours

from .environment import check_build

check_build()

from .capture.convert.custom_node import register_operator_mapping  # noqa: E402
from .errors import (  # noqa: E402
    CaptureError,
    IndexOutOfRangeError,
    InternalError,
    InvalidArgumentError,
    InvalidGraphError,
    LimitError,
    LinearAlgebraError,
    OperatorNotImplementedError,
    ORTModuleError,
    OutOfMemoryError,
    TerminatedError,
    UnsupportedError,
)
from .extending import cmake_dir, include_dir, load_extension, register_gradient  # noqa: E402
from .memory_report import HeldTensor, MemoryReport, SessionMemory  # noqa: E402
from .options import DebugOptions, LogLevel, Options  # noqa: E402
from .ortmodule import ORTModule, release_memory  # noqa: E402
from .passes import Graph, GraphPass, graph_pass, pass_names  # noqa: E402
from .profiler import NodeTime, Profile, profile  # noqa: E402
from .report import Report  # noqa: E402
from .sessions import (  # noqa: E402
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    InferenceSession,
    IOBinding,
    OrtValue,
    RunOptions,
    SessionOptions,
    set_global_inter_op_threads,
)
from .training import TrainingSession, export_training_artifacts, export_training_graph  # noqa: E402
from .vouching import vouch  # noqa: E402

__all__ = [
    "CaptureError",
    "DebugOptions",
    "ExecutionMode",
    "ExecutionOrder",
    "Graph",
    "GraphOptimizationLevel",
    "GraphPass",
    "HeldTensor",
    "IOBinding",
    "InferenceSession",
    "IndexOutOfRangeError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidGraphError",
    "LimitError",
    "LinearAlgebraError",
    "LogLevel",
    "MemoryReport",
    "NodeTime",
    "ORTModule",
    "ORTModuleError",
    "OperatorNotImplementedError",
    "OutOfMemoryError",
    "Options",
    "OrtValue",
    "Profile",
    "Report",
    "RunOptions",
    "SessionMemory",
    "SessionOptions",
    "TerminatedError",
    "TrainingSession",
    "UnsupportedError",
    "cmake_dir",
    "export_training_artifacts",
    "export_training_graph",
    "graph_pass",
    "include_dir",
    "load_extension",
    "pass_names",
    "register_gradient",
    "register_operator_mapping",
    "profile",
    "release_memory",
    "set_global_inter_op_threads",
    "vouch",
]

_ON_DEMAND = ("debug", "distributed", "graph_transition", "inspect", "optim", "testing")


def __getattr__(name: str) -> Any:
    """Submodules that most programs do without are imported when they are first asked for."""
    if name in _ON_DEMAND:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_DEMAND})
