"""Options(outputs="lazy"): programs that look at a large result at once, after the backward, after the optimizer's step
or never, or send gradients through it, see what they see in eager.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from ortmodule import Options, ORTModule

from .programs import FRESH, LOOKS, STEPS, Net, batch

WHEN = ["never", "at once", "after backward", "after the step"]


def wrapped(plain: Net) -> ORTModule:
    return ORTModule(copy.deepcopy(plain), options=Options(outputs="lazy", fallback="eager"))


def counts(model: ORTModule) -> Any:
    return model.report().sessions[0].late_outputs


def steady(model: Any) -> None:
    """Calls whose scores nobody reads, after which they are late."""
    for _ in range(2):
        model(*batch())["loss"].backward()
    model.zero_grad()


def frozen(seen: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), seen)


def program(model: Any, look: Any, step: Any, when: str) -> Any:
    """One step of training; what it sees, the gradients and the parameters after it."""
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    optimizer.zero_grad()
    result = model(*batch())
    seen = [frozen(result["loss"])]
    if when == "at once":
        seen.append(frozen(look(result)))
    seen.append(frozen(step(model, result)))
    if when == "after backward":
        seen.append(frozen(look(result)))
    seen.append([frozen(p.grad) for p in model.parameters()])
    optimizer.step()
    if when == "after the step":
        seen.append(frozen(look(result)))
    seen.append([frozen(p) for p in model.parameters()])
    return seen


def assert_same(ours: Any, theirs: Any) -> None:
    mine, shape = pytree.tree_flatten(ours)
    yours, their_shape = pytree.tree_flatten(theirs)
    assert shape == their_shape
    for a, b in zip(mine, yours, strict=True):
        assert type(a) is type(b)
        if isinstance(a, torch.Tensor):
            tolerance = 1e-4 if a.dtype != torch.bfloat16 else 1e-2
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
        elif isinstance(a, np.ndarray):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        elif isinstance(a, float | np.floating):
            assert a == pytest.approx(b, rel=1e-4, abs=1e-5)
        else:
            assert a == b


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Net, ORTModule, Any]]:
    plain = Net()
    model = wrapped(plain)
    steady(model)
    yield plain, model, copy.deepcopy(plain.state_dict())


def again(pair: tuple[Net, ORTModule, Any]) -> tuple[Net, ORTModule]:
    plain, model, state = pair
    plain.load_state_dict(state)
    model.load_state_dict(state)
    steady(model)
    return plain, model


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("name", LOOKS)
def test_a_look_sees_what_it_sees_in_eager(name: str, when: str, pair: Any) -> None:
    plain, model = again(pair)
    before = counts(model).calls
    ours = program(model, LOOKS[name], STEPS["loss_alone"], when)
    assert counts(model).calls == before + 1
    assert_same(ours, program(plain, LOOKS[name], STEPS["loss_alone"], when))


@pytest.mark.parametrize("when", ["never", "at once", "after the step"])
@pytest.mark.parametrize("name", [name for name in STEPS if name not in FRESH])
def test_gradients_flow_as_in_eager(name: str, when: str, pair: Any) -> None:
    plain, model = again(pair)
    before = counts(model).calls
    ours = program(model, LOOKS["softmax"], STEPS[name], when)
    assert counts(model).calls == before + 1
    assert_same(ours, program(plain, LOOKS["softmax"], STEPS[name], when))


@pytest.mark.parametrize("when", ["never", "at once"])
@pytest.mark.parametrize("name", sorted(FRESH))
@pytest.mark.filterwarnings("ignore:calls of Net run in PyTorch")
def test_a_gradient_that_is_looked_at_is_that_of_eager(name: str, when: str) -> None:
    plain = Net()
    model = wrapped(plain)
    steady(model)
    assert counts(model).calls == 2
    ours = program(model, LOOKS["softmax"], STEPS[name], when)
    assert_same(ours, program(plain, LOOKS["softmax"], STEPS[name], when))
