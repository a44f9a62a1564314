"""Recurrent layers and the CTC loss: a trace would unroll them over time, or read how long the sequences are.

`_VF.lstm` and its like become operators whose sequence length stays symbolic (library.py).

torch's own shape rules for packed sequences and the CTC loss read the data (how long the sequences are), which a trace
does not have. Here: the operators that stand for torch's in a trace, with shape rules that give what is not known a
symbol of its own, and the calls that are led to them. The converter writes the `aten` operators that they stand for.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from ...autocast import in_float32, recurrent
from ..library import LIBRARY
from ..patching import Patch
from ..tracing import TraceState

__all__ = ["PATCHES", "STANDS_FOR"]

_LAYERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_PARAMETERS = "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional"
# Operators that only a trace knows, and the aten operator and overload that each stands for.
STANDS_FOR = {f"ortmodule::{name}_packed": (f"aten::{name}", "data") for name in _LAYERS}
STANDS_FOR["ortmodule::pack_padded"] = ("aten::_pack_padded_sequence", "")
STANDS_FOR["ortmodule::pad_packed"] = ("aten::_pad_packed_sequence", "")
STANDS_FOR["ortmodule::ctc_loss"] = ("aten::ctc_loss", "Tensor")

LIBRARY.define(
    f"lstm_packed(Tensor data, Tensor batch_sizes, Tensor[] hx, {_PARAMETERS}) -> (Tensor, Tensor, Tensor)",
)
for _name in _LAYERS[1:]:
    LIBRARY.define(f"{_name}_packed(Tensor data, Tensor batch_sizes, Tensor hx, {_PARAMETERS}) -> (Tensor, Tensor)")
LIBRARY.define("pack_padded(Tensor input, Tensor lengths, bool batch_first) -> (Tensor, Tensor)")
LIBRARY.define(
    "pad_packed(Tensor data, Tensor batch_sizes, bool batch_first, Scalar padding_value, SymInt total_length)"
    " -> (Tensor, Tensor)"
)
LIBRARY.define(
    "ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, "
    "int reduction, bool zero_infinity) -> Tensor"
)


def _recurrent_shapes(
    data: torch.Tensor, batch_sizes: torch.Tensor, hx: Any, params: list[torch.Tensor], has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    states = hx if isinstance(hx, (list, tuple)) else [hx]
    width = states[0].shape[-1] * (2 if bidirectional else 1)
    return (data.new_empty((data.shape[0], width)), *(torch.empty_like(state) for state in states))


for _name in _LAYERS:
    torch.library.register_fake(f"ortmodule::{_name}_packed", _recurrent_shapes, lib=LIBRARY)


@torch.library.register_fake("ortmodule::pack_padded", lib=LIBRARY)
def _packed_shapes(input: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    context = torch.library.get_ctx()
    data = input.new_empty((context.new_dynamic_size(), *input.shape[2:]))
    return data, lengths.new_empty((context.new_dynamic_size(),))


@torch.library.register_fake("ortmodule::pad_packed", lib=LIBRARY)
def _padded_shapes(
    data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, padding_value: float, total_length: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.library.get_ctx().new_dynamic_size()
    steps = batch_sizes.shape[0] if isinstance(total_length, int) and total_length < 0 else total_length
    leading = (rows, steps) if batch_first else (steps, rows)
    return data.new_empty((*leading, *data.shape[1:])), batch_sizes.new_empty((rows,))


@torch.library.register_fake("ortmodule::ctc_loss", lib=LIBRARY)
def _ctc_shape(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: torch.Tensor, target_lengths: torch.Tensor,
    blank: int, reduction: int, zero_infinity: bool,
) -> torch.Tensor:  # fmt: skip
    each = reduction == 0 and log_probs.dim() == 3
    return log_probs.new_empty((log_probs.shape[1],) if each else ())


def _packed_recurrent(
    name: str, data: torch.Tensor, batch_sizes: torch.Tensor, hx: Any, params: Any, has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool,
) -> Any:  # fmt: skip
    """What `torch._VF.<name>` computes of a packed sequence, as one operator of the trace."""
    operator = getattr(torch.ops.ortmodule, f"{name}_packed")
    states = list(hx) if name == "lstm" else hx
    settings = (has_biases, num_layers, float(dropout), train, bidirectional)
    return recurrent(name, lambda x, h, p: operator(x, batch_sizes, h, p, *settings), data, states, list(params))


def _pad_packed(original: Any, state: TraceState) -> Any:
    def pad(
        data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, padding_value: float, total_length: Any
    ) -> Any:  # fmt: skip
        longest: Any = batch_sizes.shape[0]
        same = isinstance(total_length, torch.SymInt) and isinstance(longest, torch.SymInt)
        if same and total_length.node.expr == longest.node.expr:
            total_length = -1  # as long as the longest, whatever that is
        return torch.ops.ortmodule.pad_packed(data, batch_sizes, batch_first, padding_value, total_length)

    return pad


def _pack_padded(original: Any, state: TraceState) -> Any:
    return torch.ops.ortmodule.pack_padded


def _ctc_loss(original: Any, state: TraceState) -> Any:
    def loss(
        log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0,
        reduction: int = 1, zero_infinity: bool = False,
    ) -> Any:  # fmt: skip
        given = (n if isinstance(n, torch.Tensor) else _numbers(n) for n in (input_lengths, target_lengths))
        return torch.ops.ortmodule.ctc_loss(in_float32(log_probs), targets, *given, blank, reduction, zero_infinity)

    return loss


def _numbers(lengths: Any) -> torch.Tensor:
    if any(isinstance(n, torch.SymInt) for n in lengths):
        return torch.stack([torch.full((), n, dtype=torch.int64) for n in lengths])
    return torch.tensor(lengths, dtype=torch.int64)


def _layer_forward(original: Any, state: TraceState) -> Any:
    """A recurrent layer that takes the number of sequences from what is known of it, not from the data."""

    def forward(self: Any, input: Any, hx: Any = None) -> Any:
        if not isinstance(input, PackedSequence):
            return original(self, input, hx)
        self._update_flat_weights()
        data, batch_sizes, order, back = input
        rows: Any = batch_sizes[0].item() if order is None else order.shape[0]
        is_lstm = self.mode == "LSTM"
        layers = self.num_layers * (2 if self.bidirectional else 1)
        widths = (self.proj_size or self.hidden_size, self.hidden_size)
        if hx is None:
            made = [data.new_zeros((layers, rows, width)) for width in widths]
            states: Any = tuple(made) if is_lstm else made[0]
        else:
            for state, width in zip(hx if is_lstm else (hx,), widths, strict=False):
                if state.dim() != 3 or state.shape[0] != layers or state.shape[2] != width:
                    expected, got = (layers, "batch", width), tuple(state.shape)
                    raise RuntimeError(f"Expected hidden size {expected}, got {got}")
            states = self.permute_hidden(hx, order)
        name = {"LSTM": "lstm", "GRU": "gru", "RNN_TANH": "rnn_tanh", "RNN_RELU": "rnn_relu"}[self.mode]
        result = _packed_recurrent(
            name, data, batch_sizes, states, self._flat_weights, self.bias, self.num_layers, self.dropout,
            self.training, self.bidirectional,
        )  # fmt: skip
        hidden = self.permute_hidden(tuple(result[1:]) if is_lstm else result[1], back)
        return PackedSequence(result[0], batch_sizes, order, back), hidden

    return forward


def _recurrent(name: str, original: Any, state: TraceState) -> Any:
    operator = getattr(torch.ops.ortmodule, name)

    def call(x: torch.Tensor, hx: Any, params: Any, *rest: Any) -> Any:
        if rest and isinstance(rest[0], (list, tuple)):  # the packed-sequence form has batch_sizes in second place
            return _packed_recurrent(name, x, hx, params, *rest)
        bias, layers, dropout, train, bidirectional, batch_first = rest
        states = list(hx) if name == "lstm" else hx
        settings = (bias, layers, float(dropout), train, bidirectional, batch_first)
        return recurrent(name, lambda *operands: operator(*operands, *settings), x, states, list(params))

    return call


PATCHES = (
    *(Patch(torch._VF, name, functools.partial(_recurrent, name)) for name in _LAYERS),
    Patch(torch._VF, "_pack_padded_sequence", _pack_padded),
    Patch(torch._VF, "_pad_packed_sequence", _pad_packed),
    Patch(torch, "ctc_loss", _ctc_loss),
    *(Patch(layer, "forward", _layer_forward) for layer in (nn.LSTM, nn.GRU, nn.RNN)),
)
