"""clip_grad_norm_ beside torch's: the norm, the gradients, the errors."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from ortmodule import optim

from .problems import parameters, same_bits, set_gradients


def pairs(dtype: torch.dtype = torch.float32) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    one, two = (
        parameters(((300, 200), (70,), (3, 4, 5), ()), dtype),
        parameters(((300, 200), (70,), (3, 4, 5), ()), dtype),
    )
    set_gradients(one, 0)
    set_gradients(two, 0)
    return one, two


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("order", [2, 1, 3.5, math.inf, -math.inf, "inf", 0])
def test_norms_and_gradients_are_torchs(order: float | str, dtype: torch.dtype) -> None:
    rtol = {torch.float32: 1e-6, torch.float64: 1e-12}.get(dtype, 1e-2)
    if dtype in (torch.bfloat16, torch.float16) and order == 0:
        pytest.skip("torch's count of elements is rounded to 16 bits")
    for most in (0.5, 1e9, 0.0):
        one, two = pairs(dtype)
        gradients = [p.grad.clone() for p in one]
        ours = optim.clip_grad_norm_(one, most, order)
        theirs = nn.utils.clip_grad_norm_(two, most, order)
        assert ours.dtype == theirs.dtype and ours.shape == ()
        # torch's sums are of floats: 3e-6 from the norm in doubles, where ours are 1e-7.
        torch.testing.assert_close(ours, theirs, rtol=10 * rtol, atol=0)
        exact = nn.utils.get_total_norm([g.double() for g in gradients], order)
        torch.testing.assert_close(ours.double(), exact, rtol=rtol, atol=1e-7)
        for p, q in zip(one, two, strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=10 * rtol, atol=0, equal_nan=True)


def test_small_gradients_are_not_written() -> None:
    one, _ = pairs()
    kept, versions = [p.grad.clone() for p in one], [p.grad._version for p in one]
    optim.clip_grad_norm_(one, 1e6)
    same_bits([p.grad for p in one], kept)
    assert [p.grad._version for p in one] == versions
    optim.clip_grad_norm_(one, 1.0)
    assert all(p.grad._version > v for p, v in zip(one, versions, strict=True))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_norms_that_are_none(value: float) -> None:
    one, two = pairs()
    for ps in (one, two):
        ps[1].grad[3] = value
    kept = [p.grad.clone() for p in one]
    with pytest.raises(RuntimeError, match="non-finite, so it cannot be clipped"):
        optim.clip_grad_norm_(one, 1.0, error_if_nonfinite=True)
    torch.testing.assert_close([p.grad for p in one], kept, equal_nan=True, rtol=0, atol=0)
    for order in (2.0, math.inf, -math.inf, 1.0):
        ours, theirs = optim.clip_grad_norm_(one, 1.0, order), nn.utils.clip_grad_norm_(two, 1.0, order)
        torch.testing.assert_close(ours, theirs, equal_nan=True)
    torch.testing.assert_close([p.grad for p in one], [q.grad for q in two], equal_nan=True)


def test_large_floats_have_a_norm() -> None:
    p = nn.Parameter(torch.zeros(4))
    p.grad = torch.full((4,), 1e20)
    assert float(optim.clip_grad_norm_([p], 1.0)) == pytest.approx(2e20)
    assert float(p.grad.norm()) == pytest.approx(1.0)


def test_one_tensor_a_generator_none_and_strange_gradients() -> None:
    p = nn.Parameter(torch.ones(4))
    assert optim.clip_grad_norm_(p, 1.0) == 0
    p.grad = torch.ones(4)
    assert optim.clip_grad_norm_((x for x in [p]), 1.0) == 2
    wide = nn.Parameter(torch.ones(3, 4))
    wide.grad = torch.ones(3, 8)[:, ::2]  # with gaps
    assert float(optim.clip_grad_norm_([wide], 1.0)) == pytest.approx(math.sqrt(12))
    embedding = nn.Embedding(5, 3, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    results: list[Tensor] = []
    for clip in (optim.clip_grad_norm_, nn.utils.clip_grad_norm_):
        try:
            results.append(clip(embedding.parameters(), 1.0))
        except (RuntimeError, NotImplementedError) as error:
            results.append(error)
    assert type(results[0]) is type(results[1])


def test_the_number_of_threads_changes_no_bit() -> None:
    threads, norms = torch.get_num_threads(), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        try:
            one, _ = pairs()
            norms.append(float(optim.clip_grad_norm_(one, 1.0)))
        finally:
            torch.set_num_threads(threads)
    assert len(set(norms)) == 1
