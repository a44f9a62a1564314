"""Nothing of a step outlives it."""

from __future__ import annotations

import gc
import resource
import weakref

import torch

from ortmodule import ORTModule
from tests import zoo
from tests.support import mlp, pair


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_fifty_steps_leak_nothing() -> None:
    sample = zoo.build("gpt2", dropout=0.1)
    model, _ = pair(sample.module)

    def steps(count: int) -> None:
        for _ in range(count):
            model.zero_grad()
            model(**sample.inputs).loss.backward()

    steps(10)
    tensors, memory = live_tensors(), resident_bytes()
    steps(50)
    assert live_tensors() <= tensors  # fewer: what tests before this one left has gone
    assert resident_bytes() - memory < 8 * 2**20


def warm_model() -> ORTModule:
    """A model that was called before: what capture made and dropped is collected."""
    model, _ = pair(mlp())
    model(torch.ones(5, 4)).sum().backward()
    with torch.no_grad():
        model(torch.ones(5, 4))
    gc.collect()
    return model


def test_the_graph_goes_with_the_output() -> None:
    model = warm_model()
    x = torch.randn(5, 4)
    alive = weakref.ref(x)
    out = model(x)
    del x
    assert alive() is not None, "backward reads the input"
    del out
    assert alive() is None


def test_backward_frees_what_it_read_though_the_loss_lives() -> None:
    model = warm_model()
    x = torch.randn(5, 4)
    alive = weakref.ref(x)
    loss = model(x).sum()
    loss.backward()
    del x
    assert alive() is None and loss.grad_fn is not None


def test_evaluation_keeps_no_input() -> None:
    model = warm_model()
    x = torch.randn(5, 4)
    alive = weakref.ref(x)
    with torch.no_grad():
        out = model(x)
    del x
    assert alive() is None and out.shape == (5, 3)


def test_an_output_that_backward_saves_does_not_hold_itself() -> None:
    model, _ = pair(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()))
    out = model(torch.ones(2, 4))
    node = weakref.ref(out)
    del out
    assert node() is None


def test_a_dropped_model_frees_its_parameters() -> None:
    model, _ = pair(mlp())
    model(torch.ones(2, 4)).sum().backward()
    weight = weakref.ref(model.get_parameter("0.weight"))
    del model
    gc.collect()
    assert weight() is None
