"""Options(outputs="lazy"): what is written before a look is an error or does not show; masks; the report."""

from __future__ import annotations

import copy
import ctypes
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from ortmodule import Options, ORTModule, debug
from tests.ops.samples.collective import group_of_one

from .programs import WIDTH, WORDS, Net, batch
from .test_late_behaviours import counts, steady, wrapped


def _through_numpy(model: Any) -> None:
    model.inner.weight.detach().numpy()[3, 3] += 1e-3


def _through_an_address(model: Any) -> None:
    ctypes.c_float.from_address(model.head.bias.data_ptr()).value += 1e-3


def _through_data(model: Any) -> None:
    model.head.bias.data[7] += 1e-3


def _by_hand(model: Any) -> None:
    with torch.no_grad():
        model.words.weight.sub_(0.1)


def _by_a_list(model: Any) -> None:
    with torch.no_grad():
        torch._foreach_mul_(list(model.parameters()), 0.5)


def _as_out(model: Any) -> None:
    with torch.no_grad():
        torch.mul(model.head.weight, 2, out=model.head.weight.detach())


def _by_a_state(model: Any) -> None:
    model.module.load_state_dict(Net().double().state_dict())


def _by_initialization(model: Any) -> None:
    torch.nn.init.ones_(model.norm.weight)


def _in_a_view(model: Any) -> None:
    model.head.weight.detach()[5:, ::2].t().zero_()


def _in_its_storage(model: Any) -> None:
    model.norm.bias.untyped_storage().copy_(torch.ones(WIDTH).untyped_storage())


def _by_a_library(model: Any) -> None:
    torch.nn.utils.vector_to_parameters(torch.zeros(sum(p.numel() for p in model.parameters())), model.parameters())


def _on_another_thread(model: Any) -> None:
    thread = threading.Thread(target=_by_hand, args=(model,))
    thread.start()
    thread.join()


def _by_a_collective(model: Any) -> None:
    with torch.no_grad():
        group_of_one()._allgather_base(model.head.bias.detach(), torch.zeros(WORDS)).wait()


@pytest.mark.parametrize("change", [_through_numpy, _through_an_address])
def test_what_nobody_hears_of_is_an_error_and_no_number(change: Callable[[Any], None]) -> None:
    model = wrapped(Net())
    steady(model)
    result = model(*batch())
    change(model)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="was changed"):
            result["logits"].sum()
    assert counts(model).lost == 1


@pytest.mark.parametrize(
    "change",
    [
        _through_data,
        _by_hand,
        _by_a_list,
        _as_out,
        _by_a_state,
        _by_initialization,
        _in_a_view,
        _in_its_storage,
        _by_a_library,
        _on_another_thread,
        _by_a_collective,
    ],
)
def test_what_an_operator_writes_does_not_show(change: Callable[[Any], None]) -> None:
    plain = Net()
    model = wrapped(plain)
    steady(model)
    result = model(*batch())
    change(model)
    torch.testing.assert_close(result["logits"], plain(*batch())["logits"])
    found = counts(model)
    by_data = change is _by_a_library  # which gives parameters other memory
    assert (found.lost, found.at_write, found.read) == (0, int(not by_data), int(by_data))


def test_what_was_dropped_is_not_computed_before_a_write() -> None:
    model = wrapped(Net())
    steady(model)
    result = model(*batch())
    loss = result["loss"]
    del result
    _by_hand(model)
    assert counts(model).at_write == 0
    loss.backward()


class Scaled(Net):
    """The same with a large buffer, which a call in training mode writes."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = torch.nn.Buffer(torch.ones(2, 1 << 18))

    def forward(self, ids: torch.Tensor, labels: torch.Tensor, scale: torch.Tensor) -> Any:
        if self.training:
            self.scales.mul_(2)
        scores = self.head(self.words(ids) * self.scales.mean(1)[0])
        return {"loss": F.cross_entropy(scores.view(-1, WORDS), labels.view(-1)), "logits": scores}


def test_a_buffer_that_another_call_writes_is_read_before() -> None:
    plain = Scaled().eval()
    model = wrapped(plain)
    steady(model)
    result = model(*batch())
    model.train()(*batch())
    assert model.module.scales[0, 0] == 2
    torch.testing.assert_close(result["logits"], plain(*batch())["logits"])
    assert [one.late_outputs.at_write for one in model.report().sessions if one.late_outputs] == [1]


def test_of_parameters_that_processes_share_nothing_is_late() -> None:
    model = wrapped(Net())
    model.module.share_memory()
    steady(model)
    assert counts(model).calls == 0


def test_whoever_looks_at_the_values_of_runs_sees_all_of_them(tmp_path: Path) -> None:
    model = wrapped(Net())
    steady(model)
    calls = counts(model).calls
    with debug.record(model, tmp_path):
        model(*batch())["loss"].backward()
    assert counts(model).calls == calls
    model(*batch())["loss"].backward()
    assert counts(model).calls == calls + 1


@pytest.mark.parametrize("look", [False, True])
def test_bits_do_not_depend_on_which_calls_computed_late(look: bool) -> None:
    late, every = wrapped(Net(dropout=0.1)), ORTModule(Net(dropout=0.1), options=Options(outputs="all"))
    for seed in range(5):
        gradients = []
        for model in (late, every):
            model.zero_grad()
            torch.manual_seed(seed)
            result = model(*batch())
            if look:
                result["logits"].argmax(-1)
            result["loss"].backward()
            gradients.append([p.grad for p in model.parameters()])
        assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert not counts(late).on


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
    _through_numpy(model)
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
