"""Recurrent layers: LSTM, GRU and Elman networks, a node per layer and direction.

On the CPU only. On a GPU one call of PyTorch's library takes all layers, directions and steps at once, and the ATen
node keeps that. Packed sequences are not traced: their lengths are data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..emitter import Emitter
from ..onnx_graph import ORTMODULE, Value
from ..registry import translates


@translates("lstm.input", "ortmodule::lstm")
def lstm(c: Emitter, input: Value, hx: Sequence[Value], params: Sequence[Value], *options: Any) -> Any:
    return _stack(c, "lstm", input, list(hx), params, *options)


@translates("gru.input", "ortmodule::gru")
def gru(c: Emitter, input: Value, hx: Value, params: Sequence[Value], *options: Any) -> Any:
    return _stack(c, "gru", input, [hx], params, *options)


@translates("rnn_tanh.input", "ortmodule::rnn_tanh")
def rnn_tanh(c: Emitter, input: Value, hx: Value, params: Sequence[Value], *options: Any) -> Any:
    return _stack(c, "tanh", input, [hx], params, *options)


@translates("rnn_relu.input", "ortmodule::rnn_relu")
def rnn_relu(c: Emitter, input: Value, hx: Value, params: Sequence[Value], *options: Any) -> Any:
    return _stack(c, "relu", input, [hx], params, *options)


def _stack(
    c: Emitter,
    mode: str,
    x: Value,
    states: list[Value],
    params: Sequence[Value],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    if c.out[0].device.type != "cpu" or x.rank != 3 or any(v.dtype != x.dtype for v in [*states, *params]):
        return NotImplemented
    directions = 2 if bidirectional else 1
    per_node = len(params) // (num_layers * directions)
    dropping = dropout > 0 and train and num_layers > 1
    # PyTorch drops in a sequence whose first axis is time; drawing as it does needs the same order of elements.
    turned = batch_first and dropping
    if turned:
        x = _time_and_batch_swapped(c, x)
        batch_first = False
    used = c.used_outputs()
    firsts = [_parts(c, s, num_layers * directions) for s in states]
    lasts: list[list[Value]] = [[] for _ in states]
    for layer in range(num_layers):
        ys = []
        for direction in range(directions):
            k = layer * directions + direction
            given = list(params[k * per_node : (k + 1) * per_node])
            biases = given[2:4] if has_biases else [None, None]
            projection = given[4 if has_biases else 2 :]
            initial = [s[k] for s in firsts] + [None] * (2 - len(states))
            inputs = [x, *given[:2], *biases, *initial, *projection]
            outputs: list[Value | None] = [c.builder.value(f"{c.name}.y", x.dtype, (*x.shape[:2], states[0].shape[2]))]
            for i, state in enumerate(states):
                last = c.builder.value(f"{c.name}.last", x.dtype, state.shape[1:]) if used[1 + i] else None
                outputs.append(last)
                if last is not None:
                    lasts[i].append(last)
            flags = dict(reverse=direction or None, batch_first=int(batch_first) or None)
            c.builder.node("RecurrentLayer", inputs, outputs, ORTMODULE, mode=mode, **flags)
            ys.append(outputs[0])
        y = ys[0]
        assert y is not None
        x = y
        if bidirectional:
            width = states[0].shape[2]
            shape = (*x.shape[:2], 2 * width if isinstance(width, int) else f"2*({width})")
            x = c.helper("Concat", ys, x.dtype, shape, axis=2)
        if dropping and layer < num_layers - 1:
            controls = [c.const(float(dropout), torch.float64), c.const(True, torch.bool)]
            x = c.helper("Dropout", [x, *controls], x.dtype, x.shape)
    if turned:
        x = _time_and_batch_swapped(c, x)
    return x, *(_stacked(c, last) if last else None for last in lasts)


def _time_and_batch_swapped(c: Emitter, x: Value) -> Value:
    return c.helper("Transpose", [x], x.dtype, (x.shape[1], x.shape[0], x.shape[2]), perm=[1, 0, 2])


def _parts(c: Emitter, state: Value, count: int) -> list[Value]:
    """The states of each layer and direction: `state` [count, batch, size] apart."""
    one = (1, *state.shape[1:])
    parts = [state]
    if count > 1:
        parts = [c.builder.value(f"{c.name}.first", state.dtype, one) for _ in range(count)]
        c.builder.node("Split", [state, c.sizes([1] * count)], parts, axis=0)
    return [c.helper("Squeeze", [p, c.sizes([0])], p.dtype, one[1:]) for p in parts]


def _stacked(c: Emitter, states: list[Value]) -> Value:
    rows = [c.helper("Unsqueeze", [s, c.sizes([0])], s.dtype, (1, *s.shape)) for s in states]
    return rows[0] if len(rows) == 1 else c.helper("Concat", rows, rows[0].dtype, (len(rows), *states[0].shape), axis=0)
