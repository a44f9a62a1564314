"""Sessions over ONNX models: InferenceSession, its options, its values and their bindings."""

from .element_types import NodeArg
from .inference_session import InferenceSession, ModelMetadata
from .io_binding import IOBinding
from .ort_value import OrtValue
from .session_options import ExecutionMode, ExecutionOrder, GraphOptimizationLevel, RunOptions, SessionOptions
from .threads import set_global_inter_op_threads

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "set_global_inter_op_threads",
]
