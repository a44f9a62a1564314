"""Capture: an `nn.Module` in training mode becomes one ONNX graph.

`capture` traces the module for one call with `torch.export`, and converts the trace. The product, `Captured`, holds no
weight: parameters and buffers are graph inputs under the module's own names. What happens on the way is in the files
beside this one: export.py and regions.py (the trace), patches.py, library.py, function_call.py, assigned.py, writes.py
and data_writes.py (what torch would lose), compat.py (what of torch is private), trials.py (shapes that torch has no
rule for), converter.py, ops/ and graph.py (the conversion), guards.py (when the graph holds).

Not here: when to capture again (graph_transition) and running the graph (the C++ core).
"""

from __future__ import annotations

from .export import flatten_call
from .product import Captured, OutputRef, Trace, capture, capture_for_call, leaf_names

__all__ = ["Captured", "OutputRef", "Trace", "capture", "capture_for_call", "flatten_call", "leaf_names"]
