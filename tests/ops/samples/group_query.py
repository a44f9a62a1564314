"""Rows of com.microsoft's GroupQueryAttention and MatMulNBits: what decoders of a quantized model hold."""

from __future__ import annotations

import math

import torch

from ..table import Case, Row, rand
from .attention import heads

MICROSOFT = "com.microsoft"
Tensor = torch.Tensor


def turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: int) -> Tensor:
    """x[heads, seq, size], caches [seq, r / 2]."""
    half = cos.shape[-1]
    first, second = (
        (x[..., : 2 * half : 2], x[..., 1 : 2 * half : 2]) if interleaved else x[..., : 2 * half].chunk(2, -1)
    )
    pair = first * cos - second * sin, first * sin + second * cos
    y = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat((y, x[..., 2 * half :]), -1)


def group_query(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    past_k,
    past_v,
    last,
    total,
    cos=None,
    sin=None,
    positions=None,
    bias=None,
    sink=None,
    *,
    num_heads,
    kv_num_heads,
    do_rotary=0,
    rotary_interleaved=0,
    local_window_size=-1,
    softcap=0.0,
    scale=0.0,
    smooth_softmax=0,
):
    """One sequence at a time."""
    if k is None:
        size = q.shape[2] // (num_heads + 2 * kv_num_heads)
        q, k, v = q.split([num_heads * size, kv_num_heads * size, kv_num_heads * size], 2)
    q, k, v = heads(q, num_heads), heads(k, kv_num_heads), heads(v, kv_num_heads)
    queries, total = q.shape[2], int(total)
    length = max(total, 0 if past_k is None else past_k.shape[2])
    ys, keys, values = [], [], []
    for b in range(q.shape[0]):
        start = 0 if total == queries else int(last[b]) + 1 - queries
        place = torch.arange(start, start + queries)
        qb, kb, vb = q[b], k[b], v[b]
        if do_rotary:
            at = place if positions is None else positions[b]
            qb, kb = (turned(t, cos[at], sin[at], rotary_interleaved) for t in (qb, kb))
        rest = kb.new_zeros(kv_num_heads, length - start - queries, kb.shape[2])
        kb = torch.cat(([past_k[b, :, :start]] if start else []) + [kb, rest], 1)
        vb = torch.cat(([past_v[b, :, :start]] if start else []) + [vb, rest], 1)
        keys.append(kb)
        values.append(vb)
        group = num_heads // kv_num_heads
        scores = qb @ kb[:, :total].repeat_interleave(group, 0).mT * (scale or 1 / math.sqrt(qb.shape[2]))
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        if bias is not None:
            scores = scores + bias[b % bias.shape[0]]
        j = torch.arange(total)
        hidden = j > place[:, None]
        if local_window_size >= 0:
            hidden = hidden | (j <= place[:, None] - local_window_size)
        scores = scores.masked_fill(hidden, -math.inf)
        if smooth_softmax or sink is not None:
            extra = scores.new_zeros(num_heads) if sink is None else sink
            scores = torch.cat((scores, extra[:, None, None].expand(-1, queries, 1)), -1)
        weights = torch.softmax(scores, -1)[..., :total]
        ys.append((weights @ vb[:, :total].repeat_interleave(group, 0)).transpose(0, 1).flatten(1))
    return torch.stack(ys), torch.stack(keys), torch.stack(values)


def group_query_cases(dtype: torch.dtype) -> list[Case]:
    def number(n: int) -> Tensor:
        return torch.tensor(n, dtype=torch.int32)

    def lasts(*n: int) -> Tensor:
        return torch.tensor(n, dtype=torch.int32)

    # Heads of 16 elements: the package rotates nothing smaller.
    q, k, v = rand(2, 3, 64, dtype=dtype), rand(2, 3, 32, dtype=dtype), rand(2, 3, 32, dtype=dtype)
    one = tuple(rand(2, 1, n, dtype=dtype) for n in (64, 32, 32))
    past = rand(2, 2, 4, 16, dtype=dtype), rand(2, 2, 4, 16, dtype=dtype)
    angle = rand(8, 8, dtype=torch.float64, high=3)
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    few = {"num_heads": 4, "kv_num_heads": 2}
    turns = {**few, "do_rotary": 1}
    return [
        Case((q, k, v, None, None, lasts(2, 2), number(3)), few, outputs=3),
        Case((torch.cat((q, k, v), 2), None, None, None, None, lasts(2, 2), number(3)), few, outputs=3),
        Case((*one, *past, lasts(4, 4), number(5)), {**few, "scale": 0.3}, outputs=3),
        Case((*one, *past, lasts(4, 4), number(5), cos, sin), turns, outputs=3),
        Case((q, k, v, None, None, lasts(2, 2), number(3), cos, sin), {**turns, "rotary_interleaved": 1}),
        Case((q, k, v, None, None, lasts(2, 2), number(3)), {**few, "local_window_size": 2, "softcap": 1.5}),
        Case((q, k, v, None, None, lasts(2, 2), number(3)), {**few, "smooth_softmax": 1}),
        # Sequences of different lengths: the shorter one's cache ends in zeros.
        Case((*one, *past, lasts(4, 2), number(5)), few, stock=False),
        Case(
            (
                q,
                k,
                v,
                *past,
                lasts(6, 6),
                number(7),
                None,
                None,
                None,
                rand(2, 4, 3, 7, dtype=dtype),
                rand(4, dtype=dtype),
            ),
            few,
            stock=False,
        ),
    ]


def matmul_nbits(a, b, scales, zeros=None, g_idx=None, bias=None, *, K, N, block_size, bits=4):  # type: ignore[no-untyped-def]
    blocks = -(-K // block_size)

    def numbers(packed: Tensor) -> Tensor:
        return torch.stack([(packed.int() >> s) & (2**bits - 1) for s in range(0, 8, bits)], -1).flatten(-2)

    w = numbers(b.view(N, blocks, -1)).to(a.dtype)
    origin = torch.tensor(2 ** (bits - 1))
    if zeros is not None:
        z = numbers(zeros.view(N, -1))[:, :blocks] if zeros.dtype == torch.uint8 else zeros.view(N, blocks)
        origin = z.to(a.dtype)[..., None]
    w = ((w - origin) * scales.view(N, blocks, 1)).flatten(1)[:, :K]
    return a @ w.T if bias is None else a @ w.T + bias


def matmul_nbits_cases(dtype: torch.dtype) -> list[Case]:
    def octets(*shape: int) -> Tensor:
        return torch.randint(0, 256, shape, dtype=torch.uint8)

    def scale(n: int) -> Tensor:
        return rand(n, dtype=dtype, low=0.01, high=0.1)

    how = {"K": 32, "N": 3, "block_size": 16, "bits": 4}
    a = rand(2, 3, 32, dtype=dtype)
    return [
        Case((a, octets(3, 2, 8), scale(6)), how),
        Case((a[0], octets(3, 2, 8), scale(6), octets(3)), how),
        Case((a, octets(3, 2, 8), scale(6), None, None, rand(3, dtype=dtype)), how),
        Case((rand(4, 40, dtype=dtype), octets(3, 3, 8), scale(9), octets(6)), {**how, "K": 40}),
        Case((a, octets(3, 2, 16), scale(6), octets(6)), {**how, "bits": 8}),
        Case((a, octets(3, 2, 8), scale(6), rand(6, dtype=dtype, low=2, high=9)), how, stock=False),
        Case((a, octets(3, 2, 4), scale(6)), {**how, "bits": 2}, stock=False),
    ]


LOOSE = 5e-2
ROWS = [
    Row("GroupQueryAttention", group_query, group_query_cases, MICROSOFT, tolerance=LOOSE, refuses=True),
    Row("MatMulNBits", matmul_nbits, matmul_nbits_cases, MICROSOFT, grads=(0, 2, 5), tolerance=LOOSE, refuses=True),
]
