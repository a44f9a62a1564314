"""The CPU's tiled attention against PyTorch: every mask, grouping, size, stride and type; and
its dropout: that it drops what the unfused path drops, its statistics, and that seeds govern it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from .engine import gradients, run_engine
from .table import Case, Row

PLAIN = Row("Attention", F.scaled_dot_product_attention, lambda dtype: [])
DROPPING = Row("PhiloxAttention", F.scaled_dot_product_attention, lambda dtype: [], "ai.ortmodule")

Operands = list[torch.Tensor | None]


def attend(inputs: Operands, ratio: float | None = None, **attributes: Any) -> torch.Tensor:
    """The engine's attention of q, k, v and perhaps a mask; with a ratio, under dropout."""
    if ratio is None:
        return run_engine(PLAIN, Case(tuple(inputs), attributes), inputs)[0]
    state = torch.empty(2, dtype=torch.int64).random_(-(2**63), None)
    operands = [*inputs, *[None] * (4 - len(inputs)), torch.tensor(ratio, dtype=torch.float64), state]
    return run_engine(DROPPING, Case(tuple(operands), attributes, (4,)), operands)[0]


def operands(
    sizes: tuple[int, int, int, int, int],
    head: int = 32,
    value_head: int | None = None,
    dtype: torch.dtype = torch.float32,
    contiguous: bool = True,
) -> Operands:
    """q, k, v that want gradients, for (batch, heads, key heads, queries, keys)."""
    batch, heads, key_heads, queries, keys = sizes

    def draw(heads: int, length: int, size: int) -> torch.Tensor:
        if contiguous:
            return torch.randn(batch, heads, length, size, dtype=dtype).requires_grad_()
        return torch.randn(batch, length, 3, heads, size, dtype=dtype)[:, :, 1].transpose(1, 2).requires_grad_()

    return [draw(heads, queries, head), draw(key_heads, keys, head), draw(key_heads, keys, value_head or head)]


def reference(inputs: Operands, causal: bool, scale: float | None) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """PyTorch's result and gradients in double precision; a row without keys is zero and sends nothing back."""
    wide = [
        x.detach() if x.dtype == torch.bool else x.detach().double().requires_grad_(x.requires_grad) for x in inputs
    ]
    q, k, v = wide[:3]
    mask = wide[3] if len(wide) > 3 else None
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -torch.inf)
    group = q.size(1) // k.size(1)
    scores = q @ k.repeat_interleave(group, 1).mT * (q.size(-1) ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores + mask
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    dead = (scores == -torch.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(dead, 0.0), -1).masked_fill(dead, 0.0)
    y = weights @ v.repeat_interleave(group, 1)
    return y, gradients([y], wide)


def check(inputs: Operands, causal: bool = False, scale: float | None = None) -> None:
    attributes: dict[str, Any] = {"is_causal": int(causal)}
    if scale is not None:
        attributes["scale"] = scale
    y = attend(inputs, **attributes)
    want, want_grads = reference(inputs, causal, scale)
    tolerance = 2e-2 if inputs[0].dtype == torch.bfloat16 else 2e-5
    close = {"rtol": tolerance, "atol": tolerance, "check_dtype": False}
    torch.testing.assert_close(y, want, **close)
    for name, got, expected in zip("qkvm", gradients([y], inputs), want_grads):
        # A gradient sums thousands of terms: its error is measured against the largest.
        close["atol"] = tolerance * max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(got, expected, **close, msg=lambda m, name=name: f"gradient of {name}: {m}")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries, keys", [(1, 1), (1, 257), (7, 33), (33, 7), (64, 64), (130, 257), (257, 257)])
def test_lengths(queries: int, keys: int, causal: bool) -> None:
    check(operands((2, 2, 2, queries, keys)), causal)


@pytest.mark.parametrize("head, value_head", [(1, 1), (32, 32), (40, 72), (64, 64), (80, 80), (128, 16), (256, 256)])
def test_head_sizes(head: int, value_head: int) -> None:
    check(operands((1, 2, 2, 70, 140), head, value_head), scale=head**-0.25)


@pytest.mark.parametrize("key_heads", [1, 2, 3, 6])
@pytest.mark.parametrize("threads", [1, 2])
def test_key_heads_that_serve_a_group_of_query_heads(key_heads: int, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check(operands((1, 6, key_heads, 150, 90)), causal=True)
    finally:
        torch.set_num_threads(before)


MASKS = [(3, 4, 70, 150), (1, 4, 70, 150), (3, 1, 70, 150), (1, 1, 70, 150), (70, 150), (3, 1, 1, 150), (150,)]
MASKS += [(3, 4, 70, 1), (1, 4, 1, 1), (4, 1, 150)]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks_that_are_added_and_their_gradients(shape: tuple[int, ...], threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check([*operands((3, 4, 2, 70, 150), 16), torch.randn(shape).requires_grad_()])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", MASKS[:-1], ids=str)
def test_boolean_masks_and_rows_without_keys(shape: tuple[int, ...], causal: bool) -> None:
    mask = torch.rand(shape) < 0.3
    if len(shape) == 4 and shape[-1] > 1:
        mask[0, 0, 0] = False  # nothing left for this row, or for this batch element
    check([*operands((3, 4, 4, 70, 150), 16), mask], causal)


def test_masks_of_the_lowest_number() -> None:
    """Model libraries hide with the lowest number there is: times anything above one it would be infinite."""
    lowest = torch.finfo(torch.float32).min
    mask = torch.zeros(1, 1, 70, 150).masked_fill(torch.rand(1, 1, 70, 150) < 0.5, lowest)
    inputs = [*operands((2, 3, 3, 70, 150)), mask]
    check(inputs)
    mask[..., :3, :] = lowest  # rows that see every key alike
    torch.testing.assert_close(attend(inputs).double(), reference(inputs, False, None)[0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("scale", [-0.3, 0.0, 2.0])
def test_scales(scale: float) -> None:
    check(operands((2, 3, 3, 70, 150)), scale=scale, causal=True)


def test_padding_at_the_end_is_skipped_not_seen() -> None:
    q, k, v = operands((3, 2, 2, 100, 300))
    lengths = torch.tensor([300, 120, 1])
    check([q, k, v, torch.arange(300) < lengths[:, None, None, None]])


@pytest.mark.parametrize("mask", [None, "float", "bool"])
def test_bfloat16(mask: str | None) -> None:
    inputs = operands((2, 4, 2, 70, 150), 64, dtype=torch.bfloat16)
    if mask is not None:
        inputs.append(torch.rand(70, 150) < 0.5 if mask == "bool" else torch.randn(70, 150, dtype=torch.bfloat16))
    check(inputs)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries, keys, head, value_head", [(1, 1, 1, 1), (7, 33, 5, 3), (65, 129, 33, 48)])
def test_bfloat16_of_odd_sizes(queries: int, keys: int, head: int, value_head: int, causal: bool) -> None:
    check(operands((2, 2, 1, queries, keys), head, value_head, torch.bfloat16), causal)


@pytest.mark.parametrize("causal", [False, True])
def test_bfloat16_rounds_no_more_often_than_pytorchs_own(causal: bool) -> None:
    inputs = operands((2, 4, 4, 197, 197), 64, dtype=torch.bfloat16)
    ours, theirs = attend(inputs, is_causal=int(causal)), F.scaled_dot_product_attention(*inputs, is_causal=causal)
    want, want_grads = reference(inputs, causal, None)
    for name, got, other, expected in zip(
        "yqkv",
        [ours, *gradients([ours], inputs)],
        [theirs, *gradients([theirs], inputs)],
        [want, *want_grads],
        strict=True,
    ):
        assert (got - expected).norm() <= 1.1 * (other - expected).norm(), name


def test_half_precision() -> None:
    q, k, v = (x.detach().half().requires_grad_() for x in operands((1, 2, 2, 70, 70)))
    y = attend([q, k, v])
    torch.testing.assert_close(y, reference([q, k, v], False, None)[0], rtol=2e-3, atol=2e-3, check_dtype=False)


@pytest.mark.parametrize("causal", [False, True])
def test_views_of_a_packed_projection(causal: bool) -> None:
    inputs = operands((2, 4, 4, 70, 70), contiguous=False)
    check(inputs, causal)
    y = attend(inputs)
    assert y.transpose(1, 2).is_contiguous(), "merging the heads needs no copy"


def test_infinite_scores_are_not_hidden() -> None:
    q, k, v = operands((1, 1, 1, 4, 4))
    with torch.no_grad():
        k[..., 2, :] = torch.nan
    assert attend([q, k, v]).isnan().all()


# -- dropout -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["plain", "grouped", "padded", "bias"])
def test_dropout_drops_what_the_unfused_path_drops(kind: str, causal: bool) -> None:
    inputs = operands((2, 4, 2 if kind == "grouped" else 4, 70, 150), 16)
    if kind == "padded":
        inputs.append(torch.arange(150) < torch.tensor([150, 60])[:, None, None, None])
    if kind == "bias":
        inputs.append(torch.randn(4, 70, 150).requires_grad_())
    wide = [x.detach() if x.dtype == torch.bool else x.detach().double().requires_grad_() for x in inputs]
    results = []
    for given in (inputs, wide):
        torch.manual_seed(8)
        y = attend(given, 0.3, is_causal=int(causal))
        results.append([y, *gradients([y], given)])
    for got, want in zip(*results):
        torch.testing.assert_close(got, want, rtol=3e-5, atol=3e-5, check_dtype=False)


def kept(batch: int, heads: int, length: int, ratio: float) -> torch.Tensor:
    """Which probabilities survive: with equal scores and an identity for v, y shows each of them."""
    zeros = torch.zeros(batch, heads, length, 8)
    eye = torch.eye(length).expand(batch, heads, -1, -1)
    return attend([zeros, zeros, eye], ratio) * length


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
def test_dropout_is_a_scaled_bernoulli(ratio: float) -> None:
    y = kept(2, 4, 300, ratio).double()
    n = y.numel()
    assert abs(y.mean() - 1) < 5 * (ratio / (1 - ratio) / n) ** 0.5
    assert abs((y != 0).double().mean() - (1 - ratio)) < 5 * (ratio * (1 - ratio) / n) ** 0.5
    torch.testing.assert_close(y[y != 0], torch.full_like(y[y != 0], 1 / (1 - ratio)), rtol=1e-5, atol=0)


def test_dropout_of_heads_rows_and_neighbors_is_independent() -> None:
    signs = (kept(2, 4, 300, 0.5) != 0).double() * 2 - 1
    for other in (signs.roll(1, 0), signs.roll(1, 1), signs.roll(1, 2), signs.roll(1, 3), signs.roll(64, 3), signs.mT):
        assert abs((signs * other).mean()) < 5 / signs.numel() ** 0.5 * 1.5


def test_a_seed_repeats_a_run_bit_for_bit_whatever_the_threads() -> None:
    inputs = operands((2, 3, 3, 200, 200))
    before = torch.get_num_threads()

    def run(seed: int, threads: int) -> list[torch.Tensor]:
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        y = attend(inputs, 0.2)
        return [y, *gradients([y], inputs)]

    try:
        first, again, other, fewer = run(1, 2), run(1, 2), run(2, 2), run(1, 1)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    assert not torch.equal(first[0], other[0])
    assert torch.equal(first[0], fewer[0])
