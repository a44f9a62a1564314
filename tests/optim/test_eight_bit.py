"""States in 8 bits: what is kept of them, how training goes, state dicts of either kind."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ortmodule import _C, optim

from .problems import parameters, same_bits, train


@pytest.mark.parametrize("signed", [True, False])
def test_a_code_is_the_nearest_number_of_the_dynamic_tree(signed: bool) -> None:
    torch.manual_seed(0)
    values = torch.randn(3, 1000) * torch.logspace(-8, 0, 1000)
    values = values if signed else values.abs()
    values[1, :300] = 0
    codes, scales = _C.encode_state(values, signed)
    assert codes.dtype == torch.uint8 and codes.shape == values.shape and scales.numel() == 12
    back = _C.decode_state(codes, scales, signed)
    tree = [0.0]
    for decade in range(7):
        parts = 2 ** (decade if signed else decade + 1)
        tree += [(0.1 + 0.9 * (i + 0.5) / parts) * 10.0 ** (decade - 6) for i in range(parts)]
    tree = [*tree[:-1], 1.0] if signed else [*tree, 1.0]
    tree = [-x for x in tree[:0:-1]] + tree if signed else tree
    table = torch.tensor(tree)
    for block in range(12):
        own = values.flatten()[256 * block : 256 * (block + 1)]
        got = back.flatten()[256 * block : 256 * (block + 1)]
        scale = own.abs().max()
        assert scales[block] == scale
        best = (own[:, None] - table * scale).abs().min(1).values
        wrong = (own - got).abs()
        if not signed:  # what is above zero stays so
            assert ((got > 0) == (own > 0)).all()
            best = torch.where((own > 0) & (own < table[1] * scale), wrong, best)
        torch.testing.assert_close(wrong, best, rtol=1e-3, atol=1e-7 * float(scale))
    again = _C.encode_state(back, signed)
    assert torch.equal(again[0][back != 0], codes[back != 0]) and torch.equal(again[1], scales)


def test_blocks_without_a_scale() -> None:
    values = torch.zeros(768)
    values[300], values[600] = float("nan"), float("inf")
    back = _C.decode_state(*_C.encode_state(values, True), True)
    assert (back[:256] == 0).all() and back[256:].isnan().all()


def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
    x = torch.randn(256, 64)
    return model, x, torch.sin(x @ torch.randn(64, 64) / 8)


@pytest.mark.parametrize(("kind", "lr"), [("Adam", 3e-3), ("AdamW", 3e-3), ("LAMB", 1e-2)])
def test_training_goes_as_with_32_bits(kind: str, lr: float) -> None:
    losses = {}
    for bits in (32, 8):
        model, x, y = problem()
        optimizer = getattr(optim, kind)(model.parameters(), lr=lr, state_bits=bits)
        for _ in range(150):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        losses[bits] = float(loss)
    assert losses[8] == pytest.approx(losses[32], rel=0.1)
    state = optimizer.state[model[0].weight]
    assert state["exp_avg"].dtype == state["exp_avg_sq"].dtype == torch.uint8
    assert state["exp_avg_scales"].numel() == 128 * 64 // 256
    assert optimizer.state[model[0].bias]["exp_avg"].dtype == torch.float32  # small ones stay whole


def test_state_dicts_of_both_kinds_cross() -> None:
    shapes = ((100, 50), (7,))
    eight = parameters(shapes)
    optimizer = optim.AdamW(eight, lr=0.01, state_bits=8)
    train(eight, optimizer, 3)
    saved = copy.deepcopy(optimizer.state_dict())
    assert saved["state"][0]["exp_avg"].dtype == torch.uint8
    same, whole = parameters(shapes), parameters(shapes)
    with torch.no_grad():
        for ps in (same, whole):
            for p, q in zip(ps, eight, strict=True):
                p.copy_(q)
    again = optim.AdamW(same, state_bits=8)
    again.load_state_dict(saved)
    for optimizer_of, dict_of in ((torch.optim.AdamW, optim.full_precision), (optim.AdamW, lambda d: d)):
        other = optimizer_of(whole)
        other.load_state_dict(dict_of(saved))
        assert other.state[whole[0]]["exp_avg"].dtype == torch.float32
    train(eight, optimizer, 3, start=3)
    train(same, again, 3, start=3)
    same_bits(eight, same)
    train(whole, other, 1, start=3)
    back = optim.AdamW(whole, state_bits=8)
    back.load_state_dict(other.state_dict())
    assert back.state[whole[0]]["exp_avg"].dtype == torch.uint8
    train(whole, back, 1, start=4)


def test_layouts_and_16_bit_parameters() -> None:
    p = nn.Parameter(torch.randn(16, 16, 5, 5).contiguous(memory_format=torch.channels_last))
    q = nn.Parameter(torch.randn(100, 100).bfloat16())
    optimizer = optim.AdamW([p, q], lr=0.01, state_bits=8)
    train([p, q], optimizer, 3)
    assert optimizer.state[p]["exp_avg"].stride() == p.stride()
    assert torch.isfinite(p).all() and torch.isfinite(q).all()
