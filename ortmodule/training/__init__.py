"""Training without an nn.Module: artifacts, the session that trains from them, the two halves of a graph."""

from .artifacts import export_training_artifacts
from .training_agent import OrtValueCache, PartialGraphExecutionState, TrainingAgent
from .training_graph import export_training_graph
from .training_session import TrainingSession

__all__ = [
    "OrtValueCache",
    "PartialGraphExecutionState",
    "TrainingAgent",
    "TrainingSession",
    "export_training_artifacts",
    "export_training_graph",
]
