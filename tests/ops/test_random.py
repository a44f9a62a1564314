"""PhiloxDropout: its statistics, its reproducibility, and that backward sees the mask of forward."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ortmodule.testing import node_model

OWN = "ai.ortmodule"


def drop(x: torch.Tensor, ratio: float) -> torch.Tensor:
    state = node_model("RandomState", [], domain=OWN).session([]).run([])[0]
    return drop_with(state, x, ratio)


def drop_with(state: torch.Tensor, x: torch.Tensor, ratio: float, stream: int = 0) -> torch.Tensor:
    inputs = [x, torch.tensor(ratio, dtype=torch.float64), state]
    built = node_model("PhiloxDropout", inputs, {"stream": stream}, domain=OWN, constants=[1])
    return built.session(["x0"] if x.requires_grad else []).run([x, state])[0]


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.manual_seed(11)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
def test_mean_and_variance_are_those_of_a_scaled_bernoulli(ratio: float) -> None:
    n = 1_000_000
    y = drop(torch.ones(n), ratio).double()
    # Five standard errors.
    assert abs(y.mean() - 1) < 5 * (ratio / (1 - ratio) / n) ** 0.5
    kept = (y != 0).double()
    assert abs(kept.mean() - (1 - ratio)) < 5 * (ratio * (1 - ratio) / n) ** 0.5
    assert torch.equal(y[y != 0], torch.full_like(y[y != 0], float(torch.tensor(1 / (1 - ratio)))))


def test_neighbours_rows_and_blocks_are_independent() -> None:
    kept = (drop(torch.ones(1_000_000), 0.5) != 0).double() - 0.5
    for distance in (1, 4, 16, 64, 1024):
        assert abs((kept[distance:] * kept[:-distance]).mean() * 4) < 5e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_manual_seed_governs_the_draws(dtype: torch.dtype) -> None:
    x = torch.rand(1000, dtype=torch.float64).to(dtype) + 1
    torch.manual_seed(3)
    first, second = drop(x, 0.4), drop(x, 0.4)
    torch.manual_seed(3)
    assert torch.equal(drop(x, 0.4), first)
    assert not torch.equal(first, second)


def test_the_number_of_threads_changes_nothing() -> None:
    x = torch.rand(300_001)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        torch.manual_seed(3)
        results.append(drop(x, 0.3))
    assert torch.equal(*results)


def test_streams_of_one_state_are_independent_and_repeat() -> None:
    state, x = torch.tensor([5, -1]), torch.ones(1_000_000)
    first, again, second = (drop_with(state, x, 0.5, stream) for stream in (0, 0, 1))
    assert torch.equal(first, again)
    kept, other = (first != 0).double() - 0.5, (second != 0).double() - 0.5
    assert abs((kept * other).mean() * 4) < 5e-3


def test_backward_applies_the_mask_of_forward() -> None:
    x = torch.ones(10_007, requires_grad=True)
    y = drop(x, 0.3)
    (grad,) = torch.autograd.grad(y, x, torch.full_like(y, 2.0))
    assert torch.equal(grad, 2 * y.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
def test_rows_of_a_whole_have_the_masks_of_the_whole(ratio: float, dtype: torch.dtype) -> None:
    state = torch.tensor([5, -1])
    x = (torch.rand(23, 9, dtype=torch.float64) + 1).to(dtype)
    rows = torch.tensor([22, 0, 7, 7, 13])
    whole = drop_with(state, x, ratio, 3)
    part = x[rows].requires_grad_()
    inputs = [part, torch.tensor(ratio, dtype=torch.float64), state, rows]
    session = node_model("PhiloxDropout", inputs, {"stream": 3}, domain=OWN, constants=[1]).session(["x0"])
    (y,) = session.run([part, state, rows])
    assert torch.equal(y, whole[rows])
    y.sum().backward()
    assert part.grad is not None
    assert torch.equal(part.grad != 0, whole[rows] != 0)
    torch.testing.assert_close(part.grad * x[rows], whole[rows])
