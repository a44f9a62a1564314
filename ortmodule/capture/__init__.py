"""Capture: an `nn.Module` in training mode becomes one ONNX graph.

`capture` traces the module for one call with `torch.export`, and converts the trace. The product, `Captured`, holds no
weight: parameters and buffers are graph inputs under the module's own names. What happens on the way is in the
folders beside this file, a stage each: containers/ (a call and a result taken apart into tensors), trace/ (a run of
torch.export, and what is in force meanwhile), rewrite/ (an exported program to one that can be converted) and convert/
(that to ONNX).

Not here: when to capture again (graph_transition) and running the graph (the C++ core).
"""

from __future__ import annotations

from .captured import Captured, Trace
from .containers.flattening import CallShape, flatten_call
from .leaf_names import leaf_names
from .output_refs import OutputRef
from .product import capture, capture_for_call, capture_once
from .result_order import ResultOrder
from .trace.aliases import alias_names

__all__ = [
    "CallShape",
    "Captured",
    "OutputRef",
    "ResultOrder",
    "Trace",
    "alias_names",
    "capture",
    "capture_for_call",
    "capture_once",
    "flatten_call",
    "leaf_names",
]
