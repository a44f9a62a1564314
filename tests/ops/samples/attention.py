"""Rows of attention in all its variants, rotary embeddings and layers that carry a state."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from ..table import Case, Row, ints, rand

Tensor = torch.Tensor


def heads(x: Tensor, count: int) -> Tensor:
    return x.reshape(*x.shape[:2], count, -1).transpose(1, 2)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    lengths: Tensor | None = None,
    *,
    scale: float | None = None,
    is_causal: int = 0,
    q_num_heads: int = 0,
    kv_num_heads: int = 0,
    softcap: float = 0.0,
    qk_matmul_output_mode: int = 0,
    softmax_precision: torch.dtype | None = None,
    left_window_size: int = -1,
    right_window_size: int = -1,
) -> tuple[Tensor, ...]:
    packed = q.dim() == 3
    if packed:
        q, k, v = heads(q, q_num_heads), heads(k, kv_num_heads), heads(v, kv_num_heads)
    if past_key is not None and past_value is not None:
        k, v = torch.cat((past_key, k), 2), torch.cat((past_value, v), 2)
    present = k, v
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    queries, keys = q.shape[2], k.shape[2]
    scores = q @ k.mT * (1 / math.sqrt(q.shape[3]) if scale is None else scale)
    shown = [scores]
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    shown.append(scores)
    offset: Any = past_key.shape[2] if past_key is not None else 0 if lengths is None else lengths - queries
    if isinstance(offset, Tensor):
        offset = offset[:, None, None, None]
    distance = torch.arange(queries)[:, None] + offset - torch.arange(keys)
    allowed = torch.ones(queries, keys, dtype=torch.bool)
    if mask is not None:
        hidden = False if mask.dtype == torch.bool else -math.inf
        mask = F.pad(mask, (0, keys - mask.shape[-1]), value=hidden)
        if mask.dtype == torch.bool:
            allowed = allowed & mask
        else:
            scores = scores + mask
    if is_causal:
        allowed = allowed & (distance >= 0)
    if left_window_size >= 0:
        allowed = allowed & (distance <= left_window_size)
    if right_window_size >= 0:
        allowed = allowed & (distance >= -right_window_size)
    if lengths is not None:
        allowed = allowed & (torch.arange(keys) < lengths[:, None, None, None])
    scores = scores.masked_fill(~allowed, -math.inf)
    shown.append(scores)
    dead = (scores == -math.inf).all(-1, keepdim=True)
    p = torch.softmax(scores.masked_fill(dead, 0).to(softmax_precision or scores.dtype), -1).masked_fill(dead, 0)
    p = p.to(q.dtype)
    y = p @ v
    shown.append(p)
    if packed:
        y = y.transpose(1, 2).flatten(2)
    return y, *present, shown[qk_matmul_output_mode]


def attention_cases(dtype: torch.dtype) -> list[Case]:
    def four(q_heads: int = 2, kv_heads: int = 2, q: int = 3, kv: int = 4) -> tuple[Tensor, Tensor, Tensor]:
        return (
            rand(2, q_heads, q, 4, dtype=dtype),
            rand(2, kv_heads, kv, 4, dtype=dtype),
            rand(2, kv_heads, kv, 5, dtype=dtype),
        )

    def three(q_heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
        return tuple(x.transpose(1, 2).flatten(2) for x in four(q_heads, kv_heads))  # type: ignore[return-value]

    past = rand(2, 2, 2, 4, dtype=dtype), rand(2, 2, 2, 5, dtype=dtype)
    some = torch.tensor([[True, False, True, True], [True, True, False, False], [False, False, False, False]])
    additive = rand(2, 2, 3, 6, dtype=dtype)
    none = None
    gqa = {"q_num_heads": 4, "kv_num_heads": 2}
    return [
        Case(three(2, 2), {"q_num_heads": 2, "kv_num_heads": 2}),
        Case(three(4, 2), {**gqa, "is_causal": 1}),
        Case((*three(4, 2), some), gqa),
        Case((*three(4, 2), rand(3, 4, dtype=dtype)), {**gqa, "softcap": 2.0, "scale": 0.5}),
        Case(four(), {"softcap": 1.5}),
        Case((*four(), some), {"softcap": 1.5, "is_causal": 1}),
        Case((*four(), none, *past), {"is_causal": 1}, outputs=3),
        Case((*four(4, 2), none, *past), outputs=3),
        Case((*four(), additive, *past), outputs=3),
        Case((*four(), additive[0, 0, :, :5], *past), {"is_causal": 1}),
        Case((*four(), none, none, none, ints(4, 2)), {"is_causal": 1}),
        Case((*four(), none, none, none, ints(3, 1))),
        *[Case(four(), {"qk_matmul_output_mode": mode, "softcap": 2.0}, outputs=4) for mode in (0, 1, 3)],
        Case((*four(), rand(3, 4, dtype=dtype)), {"qk_matmul_output_mode": 2}, outputs=4),
        Case(four(), {"softmax_precision": torch.float64}),
        Case(four(q=4), {"left_window_size": 1, "right_window_size": 0}),
        Case(four(q=4), {"left_window_size": 2, "right_window_size": 1, "is_causal": 1}),
    ]


def rotary(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    h = heads(x, num_heads) if x.dim() == 3 else x
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    cos, sin = cos[:, None], sin[:, None]
    turned = rotary_embedding_dim or h.shape[-1]
    part, rest = h[..., :turned], h[..., turned:]
    a, b = (part[..., ::2], part[..., 1::2]) if interleaved else part.chunk(2, -1)
    real, imaginary = a * cos - b * sin, a * sin + b * cos
    y = torch.stack((real, imaginary), -1).flatten(-2) if interleaved else torch.cat((real, imaginary), -1)
    y = torch.cat((y, rest), -1)
    return y.transpose(1, 2).flatten(2) if x.dim() == 3 else y


def contrib_rotary(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, **attributes: int) -> Tensor:
    seq = x.shape[-2]
    if positions.dim() == 1:
        positions = (positions + torch.arange(seq)).expand(x.shape[0], seq)
    return rotary(x, cos, sin, positions, **attributes)


def rotary_cases(dtype: torch.dtype) -> list[Case]:
    x, packed = rand(2, 2, 3, 4, dtype=dtype), rand(2, 3, 8, dtype=dtype)
    table = rand(6, 2, dtype=dtype), rand(6, 2, dtype=dtype)
    direct = rand(2, 3, 2, dtype=dtype), rand(2, 3, 2, dtype=dtype)
    half = rand(2, 3, 1, dtype=dtype), rand(2, 3, 1, dtype=dtype)
    positions = torch.tensor([[0, 5, 2], [1, 1, 4]])
    return [
        Case((x, *table, positions)),
        Case((x, *direct), {"interleaved": 1}),
        Case((packed, *table, positions), {"num_heads": 2}),
        Case((packed, *direct), {"num_heads": 2, "interleaved": 1}),
        Case((x, *half), {"rotary_embedding_dim": 2}),
        Case((packed, *half), {"rotary_embedding_dim": 2, "num_heads": 2, "interleaved": 1}),
    ]


def contrib_rotary_cases(dtype: torch.dtype) -> list[Case]:
    x, packed = rand(2, 2, 3, 4, dtype=dtype), rand(2, 3, 8, dtype=dtype)
    table = rand(6, 2, dtype=dtype), rand(6, 2, dtype=dtype)
    return [
        Case((x, torch.tensor([[0, 5, 2], [1, 1, 4]]), *table)),
        Case((x, ints(2), *table), {"interleaved": 1}),
        Case((packed, ints(0), *table), {"num_heads": 2}),
    ]


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    q_num_heads: int,
    kv_num_heads: int,
    update_rule: str,
    scale: float = 0.0,
) -> tuple[Tensor, Tensor]:
    dtype, wide = q.dtype, torch.float64 if q.dtype == torch.float64 else torch.float32
    group = q_num_heads // kv_num_heads
    q, k, v = (heads(x.to(wide), n) for x, n in ((q, q_num_heads), (k, kv_num_heads), (v, kv_num_heads)))
    s = q.new_zeros(q.shape[0], kv_num_heads, k.shape[3], v.shape[3]) if state is None else state.to(wide)
    out = []
    for t in range(q.shape[2]):
        update = v[:, :, t]
        if decay is not None:
            s = s * heads(decay.to(wide), kv_num_heads)[:, :, t].exp()[..., None]
        if beta is not None:
            gate = beta.to(wide)[:, t][..., None]
            update = gate * (update - torch.einsum("bhdm,bhd->bhm", s, k[:, :, t]))
        s = s + k[:, :, t][..., None] * update[:, :, None]
        out.append(torch.einsum("bhd,bhdm->bhm", q[:, :, t], s.repeat_interleave(group, 1)).flatten(1))
    factor = scale or 1 / math.sqrt(q.shape[3])
    return (torch.stack(out, 1) * factor).to(dtype), s.to(dtype)


def linear_attention_cases(dtype: torch.dtype) -> list[Case]:
    def some(*last: int) -> list[Tensor]:
        return [rand(2, 3, n, dtype=dtype, low=-1, high=1) for n in last]

    state = rand(2, 2, 3, 2, dtype=dtype)
    gqa = {"q_num_heads": 4, "kv_num_heads": 2}
    own = {"q_num_heads": 2, "kv_num_heads": 2}
    return [
        Case((*some(6, 6, 4), state), {**own, "update_rule": "linear"}, outputs=2),
        Case((*some(12, 6, 4), None, *some(2)), {**gqa, "update_rule": "gated", "scale": 0.5}, outputs=2),
        Case((*some(6, 6, 4), None, None, *some(1)), {**own, "update_rule": "delta"}, outputs=2),
        Case((*some(12, 6, 4), state, *some(6, 2)), {**gqa, "update_rule": "gated_delta"}, outputs=2),
    ]


def causal_conv(
    x: Tensor, w: Tensor, b: Tensor | None = None, past: Tensor | None = None, activation: str = "none"
) -> tuple[Tensor, Tensor]:
    k = w.shape[2]
    padded = torch.cat((x.new_zeros(*x.shape[:2], k - 1) if past is None else past, x), 2)
    y = F.conv1d(padded, w, b, groups=x.shape[1])
    return F.silu(y) if activation != "none" else y, padded[:, :, padded.shape[2] - (k - 1) :]


def causal_conv_cases(dtype: torch.dtype) -> list[Case]:
    x, w = rand(2, 3, 5, dtype=dtype), rand(3, 1, 4, dtype=dtype)
    return [
        Case((x, w), outputs=2),
        Case((x, w, rand(3, dtype=dtype)), {"activation": "silu"}, outputs=2),
        Case((x, w, None, rand(2, 3, 3, dtype=dtype)), {"activation": "swish"}, outputs=2),
        Case((x, rand(3, 1, 1, dtype=dtype))),
    ]


ROWS = [
    Row("Attention", attention, attention_cases, tolerance=5e-2, refuses=True),
    Row("RotaryEmbedding", rotary, rotary_cases, tolerance=5e-2, refuses=True),
    Row(
        "RotaryEmbedding",
        contrib_rotary,
        contrib_rotary_cases,
        "com.microsoft",
        tolerance=5e-2,
        symbolic=False,
        refuses=True,
    ),
    Row("LinearAttention", linear_attention, linear_attention_cases, opset=27, tolerance=5e-2, refuses=True),
    Row("CausalConvWithState", causal_conv, causal_conv_cases, opset=27, tolerance=5e-2, refuses=True),
]
