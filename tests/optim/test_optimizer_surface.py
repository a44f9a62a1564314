"""What torch.optim's classes are asked besides a step: groups, state dicts, schedules, closures, GradScaler, copies."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from ortmodule import optim

from .problems import close, parameters, same_bits, set_gradients, train

KINDS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.01, "momentum": 0.9},
    "Adam": {"lr": 0.01},
    "AdamW": {"lr": 0.01, "amsgrad": True},
    "Adafactor": {"lr": 0.01},
    "LAMB": {"lr": 0.01},
}
WITH_TORCHS = [kind for kind in KINDS if hasattr(torch.optim, kind)]


def make(kind: str, ps: Any, **more: Any) -> torch.optim.Optimizer:
    return getattr(optim, kind)(ps, **{**KINDS[kind], **more})


@pytest.mark.parametrize("first", ["ours", "torchs"])
@pytest.mark.parametrize("kind", WITH_TORCHS)
def test_state_dicts_cross_between_torchs_and_ours(kind: str, first: str) -> None:
    classes = [getattr(optim, kind), getattr(torch.optim, kind)]
    before, after = classes if first == "ours" else classes[::-1]
    options = KINDS[kind]
    unbroken, broken = parameters(), parameters()
    train(unbroken, before(unbroken, **options), 6)
    optimizer = before(broken, **options)
    train(broken, optimizer, 3)
    resumed = after(broken, lr=0.9)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert resumed.param_groups[0]["lr"] == options["lr"]
    train(broken, resumed, 3, start=3)
    close(broken, unbroken)
    assert set(optimizer.state_dict()["state"][0]) == set(resumed.state_dict()["state"][0])


@pytest.mark.parametrize("kind", WITH_TORCHS)
def test_groups_and_defaults_are_torchs(kind: str) -> None:
    ours, theirs = make(kind, parameters()), getattr(torch.optim, kind)(parameters(), **KINDS[kind])
    assert ours.defaults == theirs.defaults
    assert [set(group) for group in ours.param_groups] == [set(group) for group in theirs.param_groups]
    assert isinstance(ours, getattr(torch.optim, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_groups_have_settings_of_their_own_and_come_later_too(kind: str) -> None:
    one, two = parameters(), parameters()
    together = make(kind, [{"params": one[:2], "lr": 0.1}, {"params": one[2:4]}])
    apart = [make(kind, two[:2], lr=0.1), make(kind, two[2:4]), make(kind, two[4:], lr=0.5)]
    for step in range(4):
        if step == 2:
            together.add_param_group({"params": one[4:], "lr": 0.5})
        set_gradients(one, step)
        set_gradients(two, step)
        together.step()
        for optimizer in apart[: 3 if step >= 2 else 2]:
            optimizer.step()
    same_bits(one, two)


@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_and_a_rate_in_a_tensor(kind: str) -> None:
    one, two = parameters(), parameters()
    by_number, by_tensor = make(kind, one), make(kind, two, lr=torch.tensor(0.01, dtype=torch.float64))
    schedule = torch.optim.lr_scheduler.ExponentialLR(by_number, 0.5)
    for step in range(4):
        set_gradients(one, step)
        set_gradients(two, step)
        by_number.step()
        by_tensor.step()
        schedule.step()
        by_tensor.param_groups[0]["lr"].mul_(0.5)
    same_bits(one, two)
    assert by_number.param_groups[0]["lr"] == 0.01 * 0.5**4


@pytest.mark.parametrize("kind", KINDS)
def test_a_closure_is_called_with_gradients_and_its_loss_returned(kind: str) -> None:
    p = nn.Parameter(torch.ones(3))
    optimizer = make(kind, [p])

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 3
    assert (p < 1).all()
    optimizer.zero_grad()
    assert p.grad is None


@pytest.mark.parametrize("kind", KINDS)
def test_hooks_of_a_step_run_once(kind: str) -> None:
    if kind in WITH_TORCHS:
        getattr(torch.optim, kind)(parameters())  # its class has torch's wrapper now
    ps, seen = parameters(dtype=torch.float32), []
    optimizer = make(kind, ps)
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    train(ps, optimizer, 1)
    optimizer.param_groups[0]["foreach"] = kind in WITH_TORCHS  # torch's own code
    train(ps, optimizer, 1)
    assert seen == ["before", "after"] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_copies_and_pickles_go_on(kind: str) -> None:
    ps = parameters()
    optimizer = make(kind, ps)
    train(ps, optimizer, 2)
    others = [copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]
    train(ps, optimizer, 2, start=2)
    for other in others:
        own = other.param_groups[0]["params"]
        train(own, other, 2, start=2)
        same_bits(own, ps)


@pytest.mark.parametrize("kind", KINDS)
def test_a_parameter_without_a_gradient_stays_and_gets_no_state(kind: str) -> None:
    ps = parameters()
    optimizer = make(kind, ps)
    before = ps[1].detach().clone()
    for step in range(2):
        set_gradients(ps, step)
        ps[1].grad = None
        optimizer.step()
    assert torch.equal(ps[1], before) and not optimizer.state.get(ps[1])
    for p in ps:
        p.grad = None
    optimizer.step()
    make(kind, parameters()).step()  # nobody has one


@pytest.mark.parametrize("kind", KINDS)
def test_gradscaler_gives_unscaled_steps_and_skips_overflows(kind: str) -> None:
    one, two = parameters(), parameters()
    scaled, plain = make(kind, one), make(kind, two)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    for step in range(4):
        set_gradients(two, step)
        for p, q in zip(one, two, strict=True):
            p.grad = q.grad * 1024
        scaler.scale(torch.ones(()))
        if step == 2:
            before = [p.detach().clone() for p in one]
            count = float(scaled.state[one[0]].get("step", 0))
            one[3].grad.fill_(float("inf"))
            scaler.step(scaled)
            same_bits(one, before)
            assert float(scaled.state[one[0]].get("step", 0)) == count
            scaler.update()
            scaler.update(1024.0)
            continue
        if step == 3:
            scaler.unscale_(scaled)
        scaler.step(scaled)
        scaler.update()
        plain.step()
        same_bits([p.grad for p in one], [q.grad for q in two])
    same_bits(one, two)
    assert not hasattr(scaled, "found_inf")


def test_only_one_call_of_the_engine_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from ortmodule.optim import native

    calls, real = [], native._C.update_parameters
    monkeypatch.setattr(native._C, "update_parameters", lambda *a: (calls.append(a), real(*a)))
    ps = parameters()
    optimizer = optim.AdamW([{"params": ps[:2]}, {"params": ps[2:], "lr": 0.1}])
    train(ps, optimizer, 1)
    assert len(calls) == 1
    optimizer.param_groups[1]["foreach"] = True  # an explicit choice is kept
    train(ps, optimizer, 1)
    assert len(calls) == 2 and len(calls[1][1]) == 1


def test_a_step_under_torch_compile_is_torchs() -> None:
    one, two = parameters(), parameters()
    ours, theirs = optim.AdamW(one), torch.optim.AdamW(two)
    step = torch.compile(ours.step, backend="eager")
    set_gradients(one, 0)
    set_gradients(two, 0)
    step()
    theirs.step()
    torch.testing.assert_close(one, two)


def test_wrong_arguments_raise_what_torch_raises() -> None:
    for kind in ("SGD", "Adam", "AdamW", "LAMB"):
        with pytest.raises(ValueError, match="Invalid learning rate"):
            getattr(optim, kind)(parameters(), lr=-1.0)
    with pytest.raises(TypeError):
        optim.AdamW(parameters(), momentum=0.9)
    for wrong in ({"decay": "apex"}, {"correct_bias": False}, {"state_bits": 4}, {"state_bits": 8, "amsgrad": True}):
        with pytest.raises(ValueError):
            optim.AdamW(parameters(), **wrong)
    for wrong in ({"betas": (0.9, 1.0)}, {"eps": -1.0}, {"ratio": (2.0, 1.0)}):
        with pytest.raises(ValueError):
            optim.LAMB(parameters(), **wrong)
    with pytest.raises(ValueError, match="Cannot combine manual"):
        optim.Adafactor(parameters(), lr=0.1, form="transformers")
