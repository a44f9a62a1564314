"""Sequences of different lengths run in one graph: packed through recurrent layers, and under the CTC loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

from tests.support import assert_same_gradients, exports, pair


class Tagger(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], is_sorted: bool, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = kind(4, 6, num_layers=2, batch_first=True, bidirectional=True, **options)
        self.head = nn.LazyLinear(3)
        self.is_sorted = is_sorted

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=self.is_sorted)
        packed, state = self.layer(packed)
        y, counts = pad_packed_sequence(packed, batch_first=True, padding_value=-1.0)
        return self.head(y), counts, state[0] if isinstance(state, tuple) else state


def compare(model: nn.Module, eager: nn.Module, *args: Any) -> None:
    results = []
    for module in (model, eager):
        module.zero_grad()
        result = module(*args)
        sum(t.square().sum() for t in result if t.is_floating_point()).backward()  # type: ignore[union-attr]
        results.append(result)
    for got, want in zip(*results, strict=True):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want)
    assert_same_gradients(model, eager, atol=1e-4)


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_layer_on_packed_sequences_runs_in_one_graph(kind: type[nn.RNNBase], is_sorted: bool) -> None:
    module = Tagger(kind, is_sorted, **({"proj_size": 5} if kind is nn.LSTM and is_sorted else {}))
    module(torch.randn(2, 5, 4), torch.tensor([5, 3]))  # shapes the head
    model, eager = pair(module)
    compare(model, eager, torch.randn(3, 6, 4), torch.tensor([6, 4, 2] if is_sorted else [4, 6, 2]))
    compare(model, eager, torch.randn(4, 8, 4), torch.tensor([8, 8, 3, 1] if is_sorted else [3, 8, 8, 1]))
    compare(model, eager, torch.randn(5, 9, 4), torch.tensor([7, 4, 3, 2, 2]))  # shorter than the padding
    assert exports(model) == 2


class FromPacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.GRU(4, 6)

    def forward(self, packed: nn.utils.rnn.PackedSequence, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, last = self.layer(packed, state)
        return y.data, last


def test_a_packed_argument_with_a_first_state() -> None:
    model, eager = pair(FromPacked())
    for lengths in ((5, 3), (6, 4, 1)):
        packed = pack_sequence([torch.randn(n, 4) for n in lengths])
        compare(model, eager, packed, torch.randn(1, len(lengths), 6))


class Speech(nn.Module):
    def __init__(self, reduction: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head, self.loss = nn.Linear(4, 6), nn.CTCLoss(reduction=reduction)

    def forward(self, x: torch.Tensor, y: torch.Tensor, lengths: Any, steps: Any = None) -> tuple[torch.Tensor]:
        scores = self.head(x).log_softmax(-1).transpose(0, 1)
        steps = [scores.shape[0]] * len(lengths) if steps is None else steps
        return (self.loss(scores, y, steps, lengths),)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_ctc_loss_runs_in_one_graph(reduction: str) -> None:
    model, eager = pair(Speech(reduction))
    for steps, lengths in (((9, 7), (3, 2)), ((12, 12, 8), (4, 1, 3))):
        y = torch.randint(1, 6, (len(steps), max(lengths)))
        compare(model, eager, torch.randn(len(steps), max(steps), 4), y, torch.tensor(lengths), torch.tensor(steps))
    assert exports(model) == 2


def test_the_ctc_loss_takes_lengths_as_lists() -> None:
    model, eager = pair(Speech("sum"))
    for steps in (9, 12):
        compare(model, eager, torch.randn(2, steps, 4), torch.randint(1, 6, (2, 3)), [3, 2])
    assert exports(model) == 2
