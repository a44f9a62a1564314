"""Options(outputs="lazy"): what is written before a look is an error or does not show; masks; the report."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from ortmodule import Options, ORTModule

from .programs import WORDS, Net, batch
from .test_late_behaviours import counts, steady, wrapped


def _through_data(model: Any, given: Any) -> None:
    model.head.bias.data[7] += 1e-3


def _through_numpy(model: Any, given: Any) -> None:
    model.inner.weight.detach().numpy()[3, 3] += 1e-3


def _by_hand(model: Any, given: Any) -> None:
    with torch.no_grad():
        model.words.weight.sub_(0.1)


@pytest.mark.parametrize("change", [_through_data, _through_numpy, _by_hand])
def test_a_changed_parameter_is_an_error_and_no_number(change: Callable[[Any, Any], None]) -> None:
    model = wrapped(Net())
    steady(model)
    result = model(*batch())
    change(model, None)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="was changed"):
            result["logits"].sum()
    assert counts(model).lost == 1


@pytest.mark.parametrize("after", [False, True])
def test_other_memory_and_written_arguments_do_not_show(after: bool) -> None:
    plain = Net()
    model = wrapped(plain)
    steady(model)
    given = batch()
    result = model(*given)
    if after:
        result["loss"].backward()
    model.head.weight.data = torch.zeros_like(model.head.weight)
    for tensor in given:
        tensor.zero_()
    torch.testing.assert_close(result["logits"], plain(*batch())["logits"])


def test_a_backward_does_not_raise_for_what_nobody_reads() -> None:
    model = wrapped(Net())
    steady(model)
    result = model(*batch())
    model.words.weight.data[0, 0] += 1
    result["loss"].backward()
    with pytest.raises(RuntimeError, match="was changed"):
        result["logits"].sum()


def test_another_tensor_may_take_it_for_its_own() -> None:
    plain = Net()
    model = wrapped(plain)
    steady(model)
    other = torch.nn.Parameter(torch.zeros(4, 64, WORDS))
    other.data = model(*batch())["logits"]
    torch.testing.assert_close(other.data, plain(*batch())["logits"].data)


def test_masks_are_those_of_the_forward() -> None:
    plain = Net(dropout=0.3)
    model = wrapped(plain)
    every = ORTModule(copy.deepcopy(plain), options=Options(outputs="all"))
    steady(model)
    steady(every)
    torch.manual_seed(5)
    result = model(*batch())
    state = torch.get_rng_state()
    loss = F.cross_entropy(result["logits"].detach().view(-1, WORDS), batch()[1].view(-1))
    torch.testing.assert_close(loss, result["loss"].detach())
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(5)
    torch.testing.assert_close(result["logits"], every(*batch())["logits"])


def test_kept_alive_three_times_in_a_row_they_are_computed_in_the_forward() -> None:
    model = wrapped(Net())
    for _ in range(5):
        result = model(*batch())
        result["loss"].backward()
    del result
    found = counts(model)
    assert (found.calls, found.at_backward, found.on) == (3, 3, False)
    assert found.never_read == 3
    assert "never read" in str(model.report())
