"""nn.TransformerEncoder leaves padded positions away in evaluation without gradients: its results there are 0."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn as nn

from ortmodule import ORTModule


@pytest.mark.parametrize(
    ("training", "gradients", "frozen"),
    [(True, True, False), (False, True, False), (False, False, False), (False, True, True), (True, False, False)],
)
def test_an_encoder_gives_at_padding_what_pytorch_gives(training: bool, gradients: bool, frozen: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    eager = nn.TransformerEncoder(layer, 2).train(training).requires_grad_(not frozen)
    model = ORTModule(copy.deepcopy(eager))
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    with warnings.catch_warnings(), torch.set_grad_enabled(gradients):
        warnings.simplefilter("ignore")
        for _ in range(3):
            x = torch.randn(2, 5, 8)
            want = eager(x, src_key_padding_mask=padding)
            torch.testing.assert_close(model(x, src_key_padding_mask=padding), want)
            torch.testing.assert_close(model(x), eager(x))
    left_out = not training and (frozen or not gradients)
    assert bool((want[1, 3:] == 0).all()) == left_out
    assert model.report().fallback == ("whole" if left_out else "none")
