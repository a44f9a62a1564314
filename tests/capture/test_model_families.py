"""Every model family trains the same through its captured graph: loss and all gradients, at one size and at others."""

from __future__ import annotations

import pytest

from ortmodule.capture import capture
from tests import zoo

from .parity import assert_same_training, assert_valid, aten_nodes


@pytest.mark.parametrize("name", zoo.ALL)
def test_static_graph_equals_eager(name: str) -> None:
    sample = zoo.build(name)
    captured = capture(sample.module, (), sample.inputs)
    assert_valid(captured)
    print(name, "ATen nodes:", dict(aten_nodes(captured)), "seconds:", captured.seconds)
    assert not aten_nodes(captured)
    assert_same_training(captured, sample.module, (), sample.inputs, zoo.loss_of)


@pytest.mark.parametrize("name", zoo.ALL)
def test_dynamic_graph_holds_at_other_sizes(name: str) -> None:
    sample = zoo.build(name)
    dims = sample.dynamic_dims()
    if name in zoo.STATIC_SEQUENCE:
        dims = {(leaf, axis) for leaf, axis in dims if axis == 0}
    captured = capture(sample.module, (), sample.inputs, dynamic_dims=dims)
    assert_valid(captured)
    assert not captured.specialized
    assert not aten_nodes(captured)
    for batch, seq in ((3, 16), (5, 23), (2, 40)):
        seq = 16 if name in zoo.STATIC_SEQUENCE else seq
        other = zoo.build(name, batch, seq)
        assert_same_training(captured, sample.module, (), other.inputs, zoo.loss_of)


@pytest.mark.parametrize("name", ["mlp", "bert", "gpt2", "lstm", "llama"])
def test_dropout_draws_in_the_order_of_eager(name: str) -> None:
    sample = zoo.build(name, dropout=0.2)
    captured = capture(sample.module, (), sample.inputs)
    assert_same_training(captured, sample.module, (), sample.inputs, zoo.loss_of)
