"""Parameters as they may lie in memory, and what goes wrong: errors that change nothing, memory that is shared."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule import InvalidArgumentError, optim

from .problems import close, parameters, same_bits, set_gradients, train

KINDS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.01, "momentum": 0.9},
    "AdamW": {"lr": 0.01},
    "Adafactor": {"lr": 0.01},
    "LAMB": {"lr": 0.01},
}
EVERY = pytest.mark.parametrize("kind", KINDS)


def make(kind: str, ps: Any) -> torch.optim.Optimizer:
    return getattr(optim, kind)(ps, **KINDS[kind])


def spaced(p: Tensor) -> Tensor:
    """The same values with gaps between them."""
    wide = torch.full((*p.shape, 2), 7.0)
    wide[..., 0] = p
    return wide[..., 0]


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels last": lambda p: p.clone().contiguous(memory_format=torch.channels_last),
    "transposed": lambda p: p.transpose(0, 1).contiguous().transpose(0, 1),
    "with gaps": spaced,
    "a slice": lambda p: torch.cat([p, p])[p.shape[0] :],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@EVERY
def test_any_layout_gives_the_same_numbers(kind: str, layout: str) -> None:
    (plain,) = parameters([(4, 6, 5, 3)])
    other = nn.Parameter(LAYOUTS[layout](plain.detach()))
    one, two = make(kind, [plain]), make(kind, [other])
    for step in range(4):
        set_gradients([plain], step)
        # In the parameter's own layout, and in another.
        other.grad = LAYOUTS[layout](plain.grad) if step % 2 else plain.grad.clone()
        one.step()
        two.step()
    close([plain], [other])
    assert other.stride() == LAYOUTS[layout](plain.detach()).stride()
    if layout == "with gaps":
        assert (other.detach().as_strided((4, 6, 5, 3), other.stride(), 1) == 7).all()


@EVERY
def test_memory_and_gradients_are_kept(kind: str) -> None:
    ps = parameters()
    optimizer = make(kind, ps)
    set_gradients(ps, 0)
    places, versions = [p.data_ptr() for p in ps], [p._version for p in ps]
    gradients = [p.grad for p in ps]
    values = [g.clone() for g in gradients]
    optimizer.step()
    assert [p.data_ptr() for p in ps] == places
    assert all(p._version > v for p, v in zip(ps, versions, strict=True)), "autograd has to see that it was written"
    assert all(p.grad is g for p, g in zip(ps, gradients, strict=True))
    same_bits([p.grad for p in ps], values)


def test_a_saved_parameter_that_a_step_writes_is_an_error_in_backward() -> None:
    p = nn.Parameter(torch.ones(3))
    optimizer = optim.SGD([p], lr=0.1)
    loss = (p * p).sum()
    p.grad = torch.ones(3)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate parameters")
@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_shared_memory_is_updated_one_after_another_as_by_torch(kind: str) -> None:
    results = []
    for module in (optim, torch.optim):
        flat = torch.linspace(-1, 1, 40000)
        overlapping = [nn.Parameter(flat[:30000]), nn.Parameter(flat[10000:])]
        same = nn.Parameter(torch.ones(5))
        optimizer = getattr(module, kind)([*overlapping, same, same], **KINDS[kind])
        for step in range(3):
            set_gradients(overlapping, step)
            same.grad = torch.full((5,), 0.5)
            optimizer.step()
        results.append([flat, same.detach()])
    close(*results)


@EVERY
def test_a_parameter_may_get_other_memory_between_steps(kind: str) -> None:
    one, two = parameters(), parameters()
    first, second = make(kind, one), make(kind, two)
    for step in range(3):
        train(one, first, 1, start=step)
        train(two, second, 1, start=step)
        for p in two:
            p.data = p.data.clone()
    same_bits(one, two)


def test_a_parameter_that_changes_its_type_is_an_error_or_goes_on() -> None:
    ps = parameters()
    optimizer = optim.AdamW(ps, lr=0.01)
    train(ps, optimizer, 1)
    for p in ps:
        p.grad = None
        p.data = p.data.bfloat16()
    train(ps, optimizer, 1)  # states stay float
    assert optimizer.state[ps[0]]["exp_avg"].dtype == torch.float32
    for p in ps:
        p.grad = None
        p.data = p.data.double()
    with pytest.raises(InvalidArgumentError, match="a state of Float"):
        train(ps, optimizer, 1)


def snapshot(ps: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> list[Tensor]:
    states = [value for p in ps for value in optimizer.state[p].values()]
    return [t.detach().clone() for t in (*ps, *states)]


@pytest.mark.parametrize("kind", ["AdamW", "LAMB", "Adafactor"])
def test_an_error_changes_nothing(kind: str) -> None:
    ps = parameters()
    optimizer = make(kind, [{"params": ps[:3]}, {"params": ps[3:]}])
    train(ps, optimizer, 2)
    before = snapshot(ps, optimizer)
    set_gradients(ps, 2)
    last = optimizer.state[ps[3]]
    name = "variance" if kind == "Adafactor" else "exp_avg_sq"
    kept, last[name] = last[name], torch.zeros(7)
    with pytest.raises(InvalidArgumentError, match=r"^\[.*\] a parameter of shape \[1\] cannot be updated: "):
        optimizer.step()
    last[name] = kept
    for wrong in (torch.zeros(2), torch.zeros((), dtype=torch.int64), torch.zeros((), device="meta")):
        kept, last["step"] = last["step"], wrong
        with pytest.raises(InvalidArgumentError, match="its step is no single float"):
            optimizer.step()
        last["step"] = kept
    same_bits(snapshot(ps, optimizer), before)
    optimizer.step()


def test_what_cannot_be_updated_is_refused() -> None:
    p = nn.Parameter(torch.ones(1).expand(4))
    p.grad = torch.ones(4)
    with pytest.raises(InvalidArgumentError, match="one place in memory; clone it first"):
        optim.AdamW([p]).step()
    embedding = nn.Embedding(5, 3, sparse=True)
    embedding(torch.tensor([1, 1])).sum().backward()
    for kind in ("AdamW", "Adam", "LAMB", "Adafactor"):
        with pytest.raises(RuntimeError, match="sparse gradients"):
            getattr(optim, kind)(embedding.parameters()).step()
    number = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    number.grad = torch.ones(3, dtype=torch.complex64)
    for kind in ("LAMB", "Adafactor"):
        with pytest.raises(RuntimeError, match="complex"):
            getattr(optim, kind)([number]).step()


def test_sparse_gradients_are_sgds_as_in_torch() -> None:
    results = []
    for module in (optim, torch.optim):
        torch.manual_seed(0)
        embedding, dense = nn.Embedding(50, 3, sparse=True), nn.Parameter(torch.ones(4))
        optimizer = module.SGD([{"params": [embedding.weight]}, {"params": [dense]}], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            (embedding(torch.tensor([1, 7, 1])).sum() + dense.sum()).backward()
            optimizer.step()
        results.append([embedding.weight.detach(), dense.detach()])
    same_bits(*results)


@EVERY
def test_empty_parameters_and_numbers_that_are_none(kind: str) -> None:
    ps = parameters([(0,), (3, 0), (2, 2)])
    optimizer = make(kind, ps)
    set_gradients(ps, 0)
    ps[2].grad[0, 0] = float("nan")
    optimizer.step()
    assert ps[2][0, 0].isnan() and ps[0].numel() == 0


def test_negated_and_conjugated_gradients_are_what_they_mean() -> None:
    results = []
    for resolve in (lambda t: t, lambda t: t.resolve_conj().resolve_neg()):
        p = nn.Parameter(torch.ones(3, dtype=torch.complex64))
        p.grad = resolve(torch.tensor([1 + 2j, 3j, 1], dtype=torch.complex64).conj())
        q = nn.Parameter(torch.ones(3))
        q.grad = resolve(torch.tensor([1 + 2j, 3j, 1], dtype=torch.complex64).conj().imag)
        assert p.grad.is_conj() == q.grad.is_neg() == (not results)
        optim.AdamW([p, q], lr=0.1).step()
        results.append([p.detach(), q.detach()])
    same_bits(*results)


@pytest.mark.parametrize("kind", ["AdamW", "LAMB"])
def test_an_interrupt_leaves_whole_steps(kind: str) -> None:
    def fresh() -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
        ps = parameters(((300, 400), (50,), (200, 300)))
        set_gradients(ps, 0)
        return ps, make(kind, [{"params": ps[:2]}, {"params": ps[2:]}])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for trial in range(6):
            ps, optimizer = fresh()
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.002 + 0.003 * trial)
                while True:
                    optimizer.step()
            except KeyboardInterrupt:
                pass
            assert torch.is_grad_enabled()
            counts = {float(optimizer.state[p].get("step", 0.0)) for p in ps}
            assert len(counts) == 1
            others, again = fresh()
            for _ in range(int(counts.pop())):
                again.step()
            same_bits(ps, others)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
