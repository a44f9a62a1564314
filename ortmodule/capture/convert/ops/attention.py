"""Translators of attention."""

from __future__ import annotations

from typing import Any

import torch

from ..emitter import Emitter
from ..onnx_graph import ORTMODULE, Value
from ..registry import translates


@translates("scaled_dot_product_attention")
def attention(
    c: Emitter,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    rank = query.rank
    symbolic_scale = not isinstance(scale, (int, float, type(None)))
    if rank not in (3, 4) or key.rank != rank or value.rank != rank or dropout_p == 1 or symbolic_scale:
        return NotImplemented
    if attn_mask is not None and attn_mask.rank < 2:
        return NotImplemented
    operands: list[Value | None] = [query, key, value, attn_mask]
    if rank == 3:
        operands = [_with_head(c, v) if v is not None and v.rank == 3 else v for v in operands]
    attributes: dict[str, Any] = dict(is_causal=int(is_causal), scale=None if scale is None else float(scale))
    op = "Attention"
    if dropout_p > 0:
        op, attributes["domain"] = "AttentionDropout", ORTMODULE
        operands.append(c.const(float(dropout_p), torch.float64))
    if rank == 4:
        return c.emit(op, *operands, **attributes)
    shape = (c.shape[0], 1, *c.shape[1:])
    result = c.helper(op, operands, c.dtype, shape, **attributes)
    return c.emit("Squeeze", result, c.sizes([1]))


def _with_head(c: Emitter, x: Value) -> Value:
    return c.helper("Unsqueeze", [x, c.sizes([1])], x.dtype, (x.shape[0], 1, *x.shape[1:]))
