"""`functools.lru_cache` under ORTModule: what it holds, forgets and loses, as in eager."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from ortmodule import Options, ORTModule
from ortmodule.graph_transition.conditions import caches

SCALE, SIZE = 2.0, 3
SAID: list[float] = []
WEIGHT = nn.Parameter(torch.ones(2, 3))


@functools.lru_cache(maxsize=8)
def made_class(key: int) -> type:
    return type("Made", (), {"scale": SCALE})


@functools.lru_cache(maxsize=8)
def table(key: int) -> dict[str, float]:
    return {"scale": SCALE, "other": 5.0}


@functools.lru_cache(maxsize=1)
def last(key: int) -> float:
    return SCALE * key


@functools.lru_cache(maxsize=2)
def last_two(key: int) -> float:
    return SCALE * key


@functools.cache
def unbounded(key: int = 1, *, times: int = 1) -> float:
    return SCALE * key * times


@functools.lru_cache
def mask(size: int) -> torch.Tensor:
    return torch.ones(size) * SCALE


@functools.lru_cache
def typed_mask(size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((1,), float(size)).to(dtype) * SCALE


@functools.lru_cache(maxsize=1)
def of_tensor(given: torch.Tensor) -> torch.Tensor:
    return given.sum(1, keepdim=True) * SCALE


@functools.lru_cache(maxsize=1)
def last_mask(size: int) -> torch.Tensor:
    return torch.ones(3) * size * SCALE


@functools.cache
def said(key: int) -> float:
    SAID.append(SCALE)
    return SCALE


CACHES = (made_class, table, last, last_two, unbounded, mask, typed_mask, of_tensor, last_mask, said)


def scale(value: float) -> None:
    global SCALE
    SCALE = value


def size(value: int) -> None:
    global SIZE
    SIZE = value


class Net(nn.Module):
    def __init__(self, read: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.linear, self.read = nn.Linear(3, 3), read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.read(self.linear(x))


Step = Callable[[], Any]


def nothing() -> None:
    """A call like the one before."""


def again(cached: Any, *keys: int) -> Step:
    """Forgets all results, and asks for some anew under another scale."""

    def step() -> None:
        scale(SCALE + 3.0)
        cached.cache_clear()
        for key in keys:
            cached(key)

    return step


PROGRAMS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Sequence[Step]]] = {
    "a class": (
        lambda y: y * made_class(1).scale,  # type: ignore[attr-defined]
        (nothing, nothing, lambda: scale(3.0), made_class.cache_clear, nothing, again(made_class, 1), nothing),
    ),
    "a dictionary": (
        lambda y: y * table(1)["scale"],
        (nothing, lambda: scale(3.0), table.cache_clear, again(table, 1), lambda: table(1).update(scale=9.0), nothing),
    ),
    "the last of two": (
        lambda y: y * last(1) * last(2),
        (nothing, nothing, lambda: last(5), lambda: scale(3.0), nothing, lambda: last(1), nothing),
    ),
    "the last two of three": (
        lambda y: y * last_two(1) + last_two(2) + last_two(3),
        (lambda: (last_two(1), scale(3.0)), nothing, nothing, lambda: last_two(9), lambda: scale(4.0), nothing),
    ),
    "by a keyword": (
        lambda y: y * unbounded(2, times=3),
        (nothing, lambda: unbounded(5), lambda: unbounded(9, times=4), again(unbounded), lambda: scale(1.0), nothing),
    ),
    "a tensor": (
        lambda y: y * mask(3),
        (nothing, nothing, lambda: scale(3.0), nothing, mask.cache_clear, lambda: mask(3), again(mask, 3), nothing,
         lambda: mask(3).mul_(2.0), nothing),
    ),
    "a tensor with a history": (
        lambda y: y * of_tensor(WEIGHT),
        (nothing, nothing, lambda: scale(3.0), nothing, lambda: WEIGHT.data.mul_(2.0), of_tensor.cache_clear, nothing),
    ),
    "two tensors": (
        lambda y: y * typed_mask(3, torch.float32) + typed_mask(4, torch.float32),
        (nothing, nothing, lambda: scale(9.0), nothing, typed_mask.cache_clear, lambda: typed_mask(3, torch.float32),
         lambda: scale(1.0), nothing),
    ),
}  # fmt: skip


def results_of(run: Any, steps: Sequence[Step]) -> list[torch.Tensor]:
    scale(2.0)
    WEIGHT.data.fill_(1.0)
    for cached in CACHES:
        cached.cache_clear()
    found = []
    for step in steps:
        step()
        found.append(run(torch.ones(2, 3)).detach().clone())
    return found


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_forward_finds_what_it_finds_in_eager(program: str) -> None:
    read, steps = PROGRAMS[program]
    torch.manual_seed(0)
    eager = Net(read)
    model = ORTModule(eager)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # where results are lost, the call runs in PyTorch
        found = results_of(model, steps)
    torch.testing.assert_close(found, results_of(eager, steps))
    if not program.startswith("the last"):
        assert model.report().fallback == "none" and model.report().exports


def test_what_others_ask_makes_no_new_graph() -> None:
    model = ORTModule(Net(lambda y: y * unbounded(2, times=3)))
    results_of(model, [nothing, *(functools.partial(unbounded, key) for key in range(5))])
    assert len(model.report().exports) == 1


def test_a_tensor_is_kept_by_a_call_in_pytorch() -> None:
    model = ORTModule(Net(lambda y: y * mask(3)), options=Options(fallback="error"))
    results_of(model, [nothing])
    assert not model.report().exports and mask.cache_info().currsize == 1
    model(torch.ones(2, 3))
    model(torch.ones(2, 3))
    assert len(model.report().exports) == 1 and mask.cache_info().misses == 1


@pytest.mark.parametrize(
    "read",
    [lambda y: y * of_tensor(y), lambda y: y * last_mask(1) * last_mask(2)],
    ids=["of a tensor of the call", "more than the cache takes"],
)
def test_tensors_that_no_call_finds_again_are_computed(read: Callable[[torch.Tensor], torch.Tensor]) -> None:
    eager = Net(read)
    model = ORTModule(eager, options=Options(fallback="error"))
    steps = [nothing, nothing, lambda: scale(3.0), nothing]
    found = results_of(model, steps)
    for cached in CACHES:
        assert cached.cache_info().currsize == 0
    torch.testing.assert_close(found, results_of(eager, steps))
    assert len(model.report().exports) == 2


def test_a_cache_that_each_call_fills_runs_in_pytorch() -> None:
    sizes = iter(range(1, 20))
    model = ORTModule(Net(lambda y: y * mask(SIZE).sum()))
    with pytest.warns(UserWarning, match="mask keeps tensors of the forward, of one call after the other"):
        results_of(model, [lambda: size(next(sizes))] * 18)


def test_a_trace_that_fails_leaves_a_cache_as_it_was() -> None:
    def read(y: torch.Tensor) -> torch.Tensor:
        held = said(1) + said(2)
        return y * held * len(repr(y.tolist()))  # which no trace knows

    eager, heard = Net(read), []
    for run in (eager, ORTModule(eager)):
        SAID.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            results_of(run, [lambda: said(2), nothing])
        heard.append((list(SAID), caches.results_in(said)))
    assert heard[0] == heard[1] and heard[0][0] == [2.0, 2.0]


def test_a_failing_trace_leaves_none_in_a_cache_that_is_vouched_for() -> None:
    model = ORTModule(Net(lambda y: y * mask(3) * len(repr(y.tolist()))), options=Options(vouched=(mask,)))
    with pytest.warns(UserWarning, match="runs in PyTorch"):
        results_of(model, [nothing])
    assert type(mask(3)) is torch.Tensor and mask(3).sum() == 6.0


@pytest.mark.parametrize("most", [2, None])
def test_a_cache_is_filled_with_what_it_held(most: int | None) -> None:
    kept = [object(), {"a": 1}, int]

    @functools.lru_cache(maxsize=most)
    def ask(key: int, **further: int) -> Any:
        return kept[key]

    ask(0), ask(1, a=2)
    before = caches.results_in(ask)
    assert [result for _, result in before] == kept[:2]
    ask(2)
    caches._refill(ask, before)
    assert caches.results_in(ask) == before and ask.cache_info().currsize == 2
    assert ask(0) is kept[0] and ask(1, a=2) is kept[1] and ask.cache_info().hits == 2
    ask(2)  # pushes out the one that was used least recently, where the cache has a bound
    assert ask.cache_info().currsize == (2 if most else 3)
    ask(0)
    assert ask.cache_info().misses == (2 if most else 1)
    ask.cache_clear()
    assert caches.results_in(ask) == []


def test_a_cache_that_is_vouched_for_holds_no_tensor_of_a_trace() -> None:
    model = ORTModule(Net(lambda y: y * mask(3)), options=Options(fallback="error", vouched=(mask,)))
    found = results_of(model, [nothing, nothing])
    torch.testing.assert_close(found[0], found[1])
    assert len(model.report().exports) == 1 and type(mask(3)) is torch.Tensor and mask(3).sum() == 6.0
