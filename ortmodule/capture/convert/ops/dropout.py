"""Translators of dropout."""

from __future__ import annotations

from typing import Any

import torch

from ..emitter import Emitter
from ..onnx_graph import Value
from ..registry import translates


@translates("dropout", "native_dropout")
def dropout(c: Emitter, input: Value, p: float, train: bool | None) -> Any:
    pair = isinstance(c.out, (list, tuple))
    mask_used = pair and c.used_outputs()[1]
    if not train or p == 0 or p == 1:
        if mask_used or (p == 1 and train):
            return NotImplemented
        return (input, None) if pair else input
    inputs = [input, c.const(float(p), torch.float64), c.const(True, torch.bool)]
    return c.emit_many("Dropout", inputs, [True, mask_used]) if pair else c.emit("Dropout", *inputs)
