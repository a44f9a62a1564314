"""MixedPrecision and DynamicLossScaler: masters, rounding, overflows, checkpoints, other people's optimizers."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import pytest
import torch
from torch import nn

from ortmodule import optim

from .problems import close, parameters, same_bits, set_gradients

LOW = [torch.bfloat16, torch.float16]
KINDS: list[tuple[Any, dict[str, Any]]] = [
    (optim.AdamW, {"lr": 0.01}),
    (optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    (optim.LAMB, {"lr": 0.01}),
    (optim.Adafactor, {"lr": 0.01}),
    (torch.optim.AdamW, {"lr": 0.01}),
    (torch.optim.RMSprop, {"lr": 0.01}),
]


def step_both(low: list[nn.Parameter], whole: list[nn.Parameter], step: int, scale: float = 1.0) -> None:
    """The same gradients, rounded to 16 bits, for both."""
    set_gradients(whole, step)
    for p, q in zip(low, whole, strict=True):
        p.grad = (q.grad * scale).to(p.dtype)
        q.grad = p.grad.float() / scale


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize(
    ("kind", "options"), KINDS, ids=lambda v: f"{v.__module__}.{v.__name__}" if isinstance(v, type) else ""
)
def test_masters_take_the_steps_of_float32(kind: Any, options: dict[str, Any], dtype: torch.dtype) -> None:
    low = parameters(dtype=dtype)
    whole = [nn.Parameter(p.detach().float()) for p in low]
    mixed, plain = optim.MixedPrecision(kind, low, **options), kind(whole, **options)
    for step in range(20):
        step_both(low, whole, step)
        mixed.step()
        plain.step()
    masters = [state["master"] for state in mixed.state_dict()["state"].values()]
    close(masters, whole)
    same_bits(low, [master.to(dtype) for master in masters])
    assert mixed.param_groups[0]["params"][0] is low[0]
    mixed.zero_grad()
    assert low[0].grad is None


def test_small_updates_are_not_lost() -> None:
    ends = {}
    for name, options in {
        "masters": {},
        "none": None,
        "drawn": {"masters": False, "stochastic_rounding": True},
    }.items():
        torch.manual_seed(0)
        p = nn.Parameter(torch.ones(10000, dtype=torch.bfloat16))
        optimizer = optim.SGD([p], lr=1e-4)
        if options is not None:
            optimizer = optim.MixedPrecision(optimizer, **options)
        for _ in range(200):
            p.grad = torch.ones_like(p)
            optimizer.step()
        ends[name] = float(p.float().mean())
    assert ends["none"] == 1.0
    assert ends["masters"] == pytest.approx(0.98, abs=4e-3)
    assert ends["drawn"] == pytest.approx(0.98, abs=1e-3)


def test_stochastic_rounding_is_of_the_seed_and_keeps_what_is_exact() -> None:
    def run(seed: int, inner: Any = optim.SGD) -> torch.Tensor:
        torch.manual_seed(seed)
        p = nn.Parameter(torch.ones(5000, dtype=torch.bfloat16))
        optimizer = optim.MixedPrecision(inner, [p], lr=1.0, stochastic_rounding=True)
        p.grad = torch.full_like(p, 0.001)
        optimizer.step()
        return p.detach()

    assert torch.equal(run(1), run(1)) and not torch.equal(run(1), run(2))
    for inner in (optim.SGD, torch.optim.SGD):
        assert float(run(3, inner).float().mean()) == pytest.approx(0.999, abs=1e-4)
    p = nn.Parameter(torch.tensor([1.0, math.inf, math.nan, -0.5], dtype=torch.bfloat16))
    optimizer = optim.MixedPrecision(optim.SGD, [p], lr=1.0, masters=False, stochastic_rounding=True)
    p.grad = torch.zeros_like(p)
    optimizer.step()
    torch.testing.assert_close(p.detach().float(), torch.tensor([1.0, math.inf, math.nan, -0.5]), equal_nan=True)


def test_without_masters_states_are_float32() -> None:
    low = parameters(dtype=torch.bfloat16)
    optimizer = optim.MixedPrecision(optim.AdamW, low, masters=False, lr=0.01)
    for step in range(2):
        set_gradients(low, step)
        optimizer.step()
    assert optimizer.state[low[0]]["exp_avg"].dtype == torch.float32
    other = optim.MixedPrecision(optim.AdamW, low, masters=False)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert other.state[low[0]]["exp_avg"].dtype == torch.float32


def test_a_checkpoint_goes_on_to_the_last_bit() -> None:
    for kind in (optim.AdamW, torch.optim.AdamW):
        low, other = parameters(dtype=torch.float16), parameters(dtype=torch.float16)
        mixed = optim.MixedPrecision(kind, low, lr=0.01, loss_scaler=optim.DynamicLossScaler(64.0))
        for step in range(3):
            set_gradients(low, step)
            mixed.step()
        file = io.BytesIO()
        torch.save({"optimizer": mixed.state_dict(), "weights": [p.detach() for p in low]}, file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        resumed = optim.MixedPrecision(kind, other, loss_scaler=optim.DynamicLossScaler())
        resumed.load_state_dict(saved["optimizer"])
        with torch.no_grad():
            for p, value in zip(other, saved["weights"], strict=True):
                p.copy_(value)
        assert resumed.loss_scaler is not None and resumed.loss_scaler.get_scale() == 64.0
        for step in range(3, 6):
            for ps, optimizer in ((low, mixed), (other, resumed)):
                set_gradients(ps, step)
                optimizer.step()
        same_bits(low, other)
        masters = [[s["master"] for s in o.state_dict()["state"].values()] for o in (mixed, resumed)]
        same_bits(*masters)


def test_masters_follow_parameters_that_somebody_writes() -> None:
    low = parameters(dtype=torch.bfloat16)
    mixed = optim.MixedPrecision(optim.SGD, low, lr=0.0)
    set_gradients(low, 0)
    mixed.step()
    with torch.no_grad():
        low[0].fill_(3.0)
    low[1].data = torch.full_like(low[1], 2.0)
    mixed.step()
    assert (low[0] == 3).all() and (low[1] == 2).all()


def test_frozen_whole_and_unused_parameters_live_together() -> None:
    low, whole = nn.Parameter(torch.ones(3).bfloat16()), nn.Parameter(torch.ones(3))
    unused = nn.Parameter(torch.ones(2).bfloat16())
    mixed = optim.MixedPrecision(optim.AdamW([{"params": [low, unused]}, {"params": [whole], "lr": 0.1}], lr=0.1))
    low.grad, whole.grad = torch.ones(3).bfloat16(), torch.ones(3)
    mixed.step()
    assert (unused == 1).all() and torch.allclose(whole, torch.full((3,), 0.8990)) and (low < 1).all()
    mixed.add_param_group({"params": [nn.Parameter(torch.ones(2).half())]})
    mixed.param_groups[2]["params"][0].grad = torch.ones(2).half()
    mixed.step()
    assert (mixed.param_groups[2]["params"][0] < 1).all()
    schedule = torch.optim.lr_scheduler.ExponentialLR(mixed, 0.5)
    mixed.step()
    schedule.step()
    assert mixed.optimizer.param_groups[0]["lr"] == 0.05
    again = copy.deepcopy(mixed)
    assert again.param_groups[0]["params"][0] is not low


def test_an_overflow_is_skipped_and_halves_the_scale() -> None:
    low = parameters(dtype=torch.float16)
    whole = [nn.Parameter(p.detach().float()) for p in low]
    scaler = optim.DynamicLossScaler(1024.0, growth_interval=3)
    mixed = optim.MixedPrecision(optim.AdamW, low, lr=0.01, loss_scaler=scaler)
    plain = optim.AdamW(whole, lr=0.01)
    step_both(low, whole, 0, 1024.0)
    mixed.step()
    plain.step()
    before = [p.detach().clone() for p in low]
    step_both(low, whole, 1, 1024.0)
    low[2].grad.view(-1)[5] = math.inf
    mixed.step()
    same_bits(low, before)
    assert scaler.get_scale() == 512.0 and float(mixed.state[low[0]]["step"]) == 1
    for step in range(2, 5):
        step_both(low, whole, step, 512.0)
        mixed.step()
        plain.step()
    assert scaler.get_scale() == 1024.0
    close([s["master"] for s in mixed.state_dict()["state"].values()], whole)


def test_clipping_is_part_of_the_step() -> None:
    for kind in (optim.AdamW, torch.optim.SGD):
        low = parameters(dtype=torch.bfloat16)
        whole = [nn.Parameter(p.detach().float()) for p in low]
        scaler = optim.DynamicLossScaler(8.0)
        mixed, plain = optim.MixedPrecision(kind, low, lr=0.01, loss_scaler=scaler), kind(whole, lr=0.01)
        for step, most in enumerate((0.1, 1e6)):
            step_both(low, whole, step, 8.0)
            norm = mixed.clip_grad_norm_(most)
            torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(whole, most), rtol=1e-2, atol=0)
            mixed.step()
            plain.step()
        torch.testing.assert_close(
            [s["master"] for s in mixed.state_dict()["state"].values()], [*whole], rtol=1e-2, atol=1e-4
        )


def test_backward_scales_the_loss() -> None:
    p = nn.Parameter(torch.ones(2).half())
    mixed = optim.MixedPrecision(optim.SGD, [p], lr=1.0, loss_scaler=optim.DynamicLossScaler(4.0))
    mixed.backward(p.sum())
    assert (p.grad == 4).all()
    mixed.step()
    assert (p == 0).all()


def test_wrong_uses_are_said() -> None:
    p = nn.Parameter(torch.ones(2).bfloat16())
    with pytest.raises(ValueError, match=r"for the optimizers of ortmodule\.optim"):
        optim.MixedPrecision(torch.optim.SGD, [p], masters=False)
    with pytest.raises(ValueError, match="belong to a class"):
        optim.MixedPrecision(optim.SGD([p]), lr=0.1)
    begun = optim.AdamW([p])
    p.grad = torch.ones_like(p)
    begun.step()
    with pytest.raises(ValueError, match="has states already"):
        optim.MixedPrecision(begun)


# -- the scaler by itself ---------------------------------------------------------------------------------------------


def test_the_scaler_steps_an_ordinary_optimizer() -> None:
    one, two = parameters(), parameters()
    ours, plain = torch.optim.SGD(one, lr=0.1), torch.optim.SGD(two, lr=0.1)
    scaler = optim.DynamicLossScaler(256.0)
    for step in range(3):
        set_gradients(two, step)
        for p, q in zip(one, two, strict=True):
            p.grad = scaler.scale(q.grad)
        if step == 1:
            scaler.unscale_(ours)
            with pytest.raises(RuntimeError, match="already been called"):
                scaler.unscale_(ours)
        scaler.step(ours)
        scaler.update()
        plain.step()
    same_bits(one, two)
    one[0].grad[0, 0] = math.nan
    before = one[0].detach().clone()
    scaler.step(ours)
    scaler.update()
    assert torch.equal(one[0], before) and scaler.get_scale() == 128.0
    with pytest.raises(RuntimeError, match="comes after step"):
        scaler.update()


def test_the_scale_has_bounds_a_state_and_one_decision() -> None:
    found: list[bool] = []

    def agree(own: bool) -> bool:
        found.append(own)
        return True

    scaler = optim.DynamicLossScaler(2.0, growth_interval=1, min_scale=1.0, max_scale=4.0)
    for overflow, scale in ((False, 4.0), (False, 4.0), (True, 2.0), (True, 1.0), (True, 1.0)):
        scaler.update(overflow)
        assert scaler.get_scale() == scale
    other = optim.DynamicLossScaler(16.0)
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 1.0
    assert optim.DynamicLossScaler(agree=agree).overflows([torch.ones(3)]) and found == [False]
    for wrong in ({"growth_factor": 1.0}, {"backoff_factor": 1.0}, {"init_scale": 0.5}):
        with pytest.raises(ValueError):
            optim.DynamicLossScaler(**wrong)
