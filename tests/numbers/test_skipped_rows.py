"""Ignored labels and padding are left out of the computation: losses and gradients are eager's all the same."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ortmodule import Options, ORTModule

VOCABULARY, WIDTH, HEADS, LENGTH, BATCH = 1500, 128, 4, 48, 6
Tensor = torch.Tensor


class Layer(nn.Module):
    def __init__(self, causal: bool, dropout: float) -> None:
        super().__init__()
        self.q, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.k = nn.Linear(WIDTH, WIDTH, bias=False)  # the gradient of its bias is zero but for rounding
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.causal, self.drop = causal, nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (f(x).view(b, n, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, mask, self.drop.p, self.causal)
        x = self.norm1(x + self.drop(self.out(y.transpose(1, 2).reshape(b, n, -1))))
        return self.norm2(x + self.drop(self.down(F.gelu(self.up(x)))))


class Model(nn.Module):
    """`finish` makes the result from the scores, the labels and the last hidden state."""

    def __init__(self, finish: Callable[..., Any], causal: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer(causal, dropout) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        nn.init.normal_(self.words.weight, std=0.1)
        self.head.weight = self.words.weight
        self.finish = finish

    def forward(self, ids: Tensor, labels: Tensor, mask: Tensor | None = None) -> Any:
        x = self.words(ids) + self.places(torch.arange(ids.size(1)))
        for layer in self.layers:
            x = layer(x, mask)
        return self.finish(self.head(x), labels, x)


def mean_loss(scores: Tensor, labels: Tensor, x: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


def sum_loss(scores: Tensor, labels: Tensor, x: Tensor) -> Tensor:
    return F.cross_entropy(scores.view(-1, VOCABULARY), labels.view(-1), reduction="sum", ignore_index=0) / 100


def weighted_loss(scores: Tensor, labels: Tensor, x: Tensor) -> Tensor:
    weight = torch.linspace(0.1, 1, VOCABULARY)
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten(), weight)


def shifted_loss(scores: Tensor, labels: Tensor, x: Tensor) -> Tensor:
    scores = scores[:, :-1, :].contiguous()
    return F.cross_entropy(scores.view(-1, VOCABULARY), labels[:, 1:].reshape(-1))


def log_softmax_loss(scores: Tensor, labels: Tensor, x: Tensor) -> Tensor:
    return F.nll_loss(F.log_softmax(scores.flatten(0, 1), -1), labels.flatten())


def two_losses(scores: Tensor, labels: Tensor, x: Tensor) -> Tensor:
    return mean_loss(scores, labels, x) + 0.5 * F.cross_entropy(scores.tanh().flatten(0, 1), labels.flatten())


def batch(share: float = 0.15, length: int = LENGTH, rows: int = BATCH) -> tuple[Tensor, Tensor]:
    torch.manual_seed(5)
    ids = torch.randint(1, VOCABULARY, (rows, length))
    labels = torch.randint(1, VOCABULARY, (rows, length))
    return ids, torch.where(torch.rand(rows, length) < share, labels, -100)


def lengths(length: int = LENGTH) -> Tensor:
    return torch.tensor([length, length // 2, length // 3, length // 4, 3, 0])


def keys(left: bool = False) -> Tensor:
    places = torch.arange(LENGTH)
    return (places.flip(0) if left else places) < lengths()[:, None]


def operators(model: ORTModule) -> str:
    return "".join(t.session.plan_text() for t in model._manager.transitions())


def check(plain: Model, *args: Tensor | None, scale: float = 1.0, **options: Any) -> ORTModule:
    """Two steps beside eager: losses, every gradient."""
    model = ORTModule(copy.deepcopy(plain), options=Options(fallback="error", **options))
    for _ in range(2):
        plain.zero_grad()
        model.zero_grad()
        (wanted, result) = plain(*args), model(*args)
        torch.testing.assert_close(result, wanted, rtol=2e-5, atol=1e-6, equal_nan=True)
        (scale * wanted).backward()
        (scale * result).backward()
        for (name, theirs), ours in zip(plain.named_parameters(), model.parameters(), strict=True):
            limit = 2e-5 * max(float(theirs.grad.abs().nan_to_num().max()), 1e-4)
            torch.testing.assert_close(
                ours.grad, theirs.grad, rtol=1e-4, atol=limit, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
            )
    return model


@pytest.mark.parametrize(
    "finish", [mean_loss, sum_loss, weighted_loss, shifted_loss, log_softmax_loss, two_losses], ids=lambda f: f.__name__
)
def test_rows_with_ignored_labels(finish: Callable[..., Any]) -> None:
    ids, labels = batch()
    labels = labels.clamp(min=0) if finish is sum_loss else labels
    model = check(Model(finish), ids, labels, scale=2.0)
    assert "LabelRows" in operators(model)


@pytest.mark.parametrize("share", [0.0, 0.004, 0.5, 1.0])
def test_any_share_of_labels(share: float) -> None:
    """None at all gives NaN and zero gradients, as eager."""
    check(Model(mean_loss), *batch(share))


def test_an_invalid_label_is_still_an_error() -> None:
    ids, labels = batch()
    labels[2, 3] = VOCABULARY
    with pytest.raises(IndexError, match=f"Target {VOCABULARY} is out of bounds"):  # as PyTorch says it
        ORTModule(Model(mean_loss), options=Options(fallback="error"))(ids, labels)


def seen(left: bool = False) -> Tensor:
    """The keys, and all of a text that has none: a row of attention without any is NaN."""
    return (keys(left) | ~keys(left).any(1, keepdim=True))[:, None, None, :]


MASKS = {
    "boolean": seen,
    "lowest": lambda left: torch.zeros(BATCH, 1, 1, LENGTH).masked_fill(
        ~keys(left)[:, None, None, :], torch.finfo(torch.float32).min
    ),
    "ten_thousand": lambda left: (~keys(left))[:, None, None, :] * -10000.0,
    "infinite": lambda left: torch.zeros(BATCH, 1, LENGTH, LENGTH).masked_fill(~seen(left), -math.inf),
}


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("name", MASKS)
def test_padding(name: str, left: bool) -> None:
    ids, labels = batch()
    model = check(Model(mean_loss), ids, torch.where(keys(left), labels, -100), MASKS[name](left))
    assert "AttendedRows" in operators(model)


def test_labels_on_padding_count() -> None:
    ids, labels = batch(0.5)
    check(Model(mean_loss), ids, labels, MASKS["lowest"](False))


def test_what_follows_the_last_label_under_a_causal_mask() -> None:
    ids, labels = batch(1.0)
    labels[:, LENGTH // 3 :] = -100
    model = check(Model(mean_loss, causal=True), ids, labels)
    assert "AttendedRows" in operators(model)


def test_outputs_show_every_row() -> None:
    """Scores and hidden states that the caller sees are computed whole, padding included."""
    ids, labels = batch()
    plain = Model(lambda scores, labels, x: (mean_loss(scores, labels, x), x, scores.sum(-1)))
    model = ORTModule(copy.deepcopy(plain), options=Options(fallback="error"))
    mask = MASKS["lowest"](False)
    for wanted, result in zip(plain(ids, labels, mask), model(ids, labels, mask), strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)
    assert "LabelRows" not in operators(model)
    only_loss = ORTModule(copy.deepcopy(plain), options=Options(fallback="error", outputs="loss"))
    loss, x, sums = only_loss(ids, labels, mask)
    torch.testing.assert_close(loss, plain(ids, labels, mask)[0])
    assert x is None and sums is None and "AttendedRows" in operators(only_loss)


def test_a_hidden_state_that_is_used_otherwise_is_whole() -> None:
    ids, labels = batch()
    model = check(Model(lambda s, labels, x: mean_loss(s, labels, x) + x.square().mean()), ids, labels, seen())
    assert "LabelRows" in operators(model) and "AttendedRows" not in operators(model)


def test_eager_dropout_is_not_crossed() -> None:
    ids, labels = batch()
    plain = Model(mean_loss, dropout=0.2).train()
    model = ORTModule(copy.deepcopy(plain), options=Options(fallback="error", dropout="torch"))
    for _ in range(2):
        torch.manual_seed(11)
        wanted = plain(ids, labels, MASKS["lowest"](False))
        torch.manual_seed(11)
        torch.testing.assert_close(model(ids, labels, MASKS["lowest"](False)), wanted)


def test_counter_based_dropout_keeps_the_loss_on_average() -> None:
    ids, labels = batch()
    labels = torch.where(keys(), labels, -100)
    plain = Model(mean_loss, dropout=0.1).train()
    model = ORTModule(copy.deepcopy(plain), options=Options(fallback="error"))
    torch.manual_seed(1)
    draws = [[float(m(ids, labels, seen()).detach()) for _ in range(12)] for m in (plain, model)]
    theirs, ours = map(torch.tensor, draws)
    assert "AttendedRows" in operators(model)
    assert abs(theirs.mean() - ours.mean()) < 4 * (theirs.std() + ours.std()) / math.sqrt(12)
    torch.manual_seed(1)
    again = float(model(ids, labels, seen()).detach())
    torch.manual_seed(1)
    assert again == float(model(ids, labels, seen()).detach())


def test_changing_sizes_run_on_one_graph() -> None:
    plain = Model(mean_loss)
    model = ORTModule(copy.deepcopy(plain), options=Options(fallback="error"))
    for rows, length in ((6, 48), (4, 40), (5, 33), (2, 48)):
        ids, labels = batch(0.2, length, rows)
        mask = torch.arange(length) < torch.tensor([length, 20, 9, 30, 5, 17])[:rows, None]
        labels = torch.where(mask, labels, -100)
        torch.testing.assert_close(model(ids, labels, mask[:, None, None]), plain(ids, labels, mask[:, None, None]))
    assert len(model.report().exports) == 2


def test_gradients_accumulate() -> None:
    ids, labels = batch()
    plain = Model(mean_loss)
    model = ORTModule(copy.deepcopy(plain), options=Options(fallback="error"))
    for m in (plain, model):
        first, second = m(ids, labels), m(ids.flip(0), labels.flip(1))
        (first / 2).backward()
        (second / 2).backward()
    for theirs, ours in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=2e-6)
