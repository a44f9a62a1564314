"""What a program changes between a forward and its backward, where eager's backward looks again."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ortmodule import Options, ORTModule

SCALE = 2.0
OTHER = 2.0
OUTSIDE = torch.zeros(4)


class Checkpointed(nn.Module):
    """A region that reads a global."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda v: torch.tanh(self.linear(v) * SCALE), x, use_reentrant=False)


class Partly(Checkpointed):
    """What is read beside a region, too: a global, and an attribute that the forward itself sets."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, self.first = getattr(self, "first", True), False
        return super().forward(x) * (3 if first else 2) * OTHER


class Counting(nn.Module):
    """A buffer that is written, and then computed with."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.tensor(0.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.linear(x) * self.calls


class Rebinding(Counting):
    """A buffer that is another tensor after each call, and computed with."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return self.linear(x) * self.calls


def _inputs() -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 4) / 12


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Sets SCALE, and in the end what it was."""
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    return monkeypatch


@pytest.mark.parametrize("calls_before", [0, 3])
def test_a_value_that_a_checkpoint_would_read_anew_ends_the_backward(scale, calls_before) -> None:
    model = ORTModule(Checkpointed())
    for _ in range(calls_before):
        model(_inputs()).sum().backward()
    loss = model(_inputs()).sum()
    scale.setitem(globals(), "SCALE", 0.5)
    with pytest.warns(UserWarning, match="run in PyTorch"), pytest.raises(RuntimeError, match="SCALE changed"):
        loss.backward()
    # From now on as in PyTorch, whose region runs with another value than the forward did.
    model.zero_grad()
    eager = Checkpointed()
    eager.load_state_dict(model.module.state_dict())
    for one in (model, eager):
        scale.setitem(globals(), "SCALE", 2.0)
        loss = one(_inputs()).sum()
        scale.setitem(globals(), "SCALE", 0.5)
        loss.backward()
    assert torch.equal(model.module.linear.weight.grad, eager.linear.weight.grad)


def scaled_by_global() -> float:
    return SCALE


class Twice(Checkpointed):
    """What a region calls was called before it, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * scaled_by_global()
        return checkpoint(lambda v: torch.tanh(self.linear(v) * scaled_by_global()), x, use_reentrant=False)


def test_what_a_checkpoint_calls_is_heard_though_it_was_called_before(scale) -> None:
    model = ORTModule(Twice())
    loss = model(_inputs()).sum()
    scale.setitem(globals(), "SCALE", 0.5)
    with pytest.warns(UserWarning, match="run in PyTorch"), pytest.raises(RuntimeError, match="SCALE changed"):
        loss.backward()


def test_a_mode_that_changes_before_the_backward_of_a_checkpoint_ends_it() -> None:
    model = ORTModule(Checkpointed())
    loss = model(_inputs()).sum()
    model.eval()
    with pytest.warns(UserWarning), pytest.raises(RuntimeError, match="mode changed"):
        loss.backward()


class Shifted(nn.Module):
    """A region that reads a bias, a buffer and a tensor from outside; and a bias that no region reads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.other = nn.Linear(4, 4), nn.Parameter(torch.zeros(4))
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (
            checkpoint(lambda v: torch.tanh(self.linear(v) + self.shift + OUTSIDE), x, use_reentrant=False) + self.other
        )


@pytest.mark.parametrize("name", ["linear.bias", "linear.weight", "shift", "outside", "other"])
def test_a_tensor_that_a_region_reads_and_that_is_written_ends_the_backward(name: str, monkeypatch) -> None:
    monkeypatch.setitem(globals(), "OUTSIDE", torch.zeros(4))
    eager, model = Shifted(), ORTModule(Shifted())
    model.module.load_state_dict(eager.state_dict())
    found = []
    for module in (eager, model.module):
        call = eager if module is eager else model
        for step in range(4):
            module.zero_grad()
            loss = call(_inputs()).sum()
            with torch.no_grad():
                written = OUTSIDE if name == "outside" else module.state_dict(keep_vars=True)[name]
                written.add_(0.5)
            if step == 0 and call is model and name != "other":
                with (
                    pytest.warns(UserWarning, match="run in PyTorch"),
                    pytest.raises(RuntimeError, match="was written"),
                ):
                    loss.backward()
            else:
                loss.backward()
        OUTSIDE.zero_()
        found.append([p.grad for p in module.parameters()])
    torch.testing.assert_close(found[1], found[0])
    assert (model.report().fallback == "none") == (name == "other")


def test_what_is_set_back_before_the_backward_is_no_change(scale) -> None:
    model = ORTModule(Checkpointed())
    for _ in range(4):
        loss = model(_inputs()).sum()
        scale.setitem(globals(), "SCALE", 0.5)
        scale.setitem(globals(), "SCALE", 2.0)
        loss.backward()


def test_what_no_region_reads_may_change_before_the_backward(monkeypatch) -> None:
    eager, module = Partly(), Partly()
    module.load_state_dict(eager.state_dict())
    model = ORTModule(module)
    for i in range(6):
        for one in (eager, model):
            monkeypatch.setitem(globals(), "OTHER", 2.0)
            loss = one(_inputs()).sum()
            monkeypatch.setitem(globals(), "OTHER", 0.5 + i)
            loss.backward()
        torch.testing.assert_close(module.linear.weight.grad, eager.linear.weight.grad)
    assert sum(session.runs for session in model.report().sessions) == 6


def test_a_region_is_looked_at_in_the_backward_of_a_graph_from_the_disk_cache(scale, tmp_path) -> None:
    for _ in range(2):
        model = ORTModule(Checkpointed(), options=Options(cache_dir=tmp_path))
        model(_inputs()).sum().backward()
        loss = model(_inputs()).sum()
        scale.setitem(globals(), "SCALE", 0.5)
        with pytest.warns(UserWarning), pytest.raises(RuntimeError, match="SCALE changed"):
            loss.backward()
        scale.setitem(globals(), "SCALE", 2.0)
    assert [export.cached for export in model.report().exports] == [True]


@pytest.mark.parametrize("calls_before", [0, 3])
def test_a_written_buffer_that_is_written_again_before_the_backward(calls_before) -> None:
    models = [Counting(), ORTModule(Counting())]
    for model in models:
        for _ in range(calls_before):
            model(_inputs()).sum().backward()
        loss = model(_inputs()).sum()
        getattr(model, "module", model).calls.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_written_buffer_that_is_given_other_memory_before_the_backward() -> None:
    model = ORTModule(Counting())
    for _ in range(3):
        model(_inputs()).sum().backward()
    loss = model(_inputs()).sum()
    model.calls.data = torch.tensor(2.0)
    with pytest.raises(RuntimeError, match="given other memory"):
        loss.backward()


def test_two_forwards_before_their_backwards_are_refused_as_in_eager() -> None:
    for model in (Counting(), ORTModule(Counting())):
        first, second = model(_inputs()).sum(), model(_inputs()).sum()
        second.backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            first.backward()


@pytest.mark.parametrize("calls_before", [0, 3])
@pytest.mark.parametrize("kind", [Counting, Rebinding])
def test_other_memory_for_what_the_forward_left_ends_the_backward(kind: type[Counting], calls_before: int) -> None:
    model = ORTModule(kind())
    for _ in range(calls_before):
        model(_inputs()).sum().backward()
    loss = model(_inputs()).sum()
    model.module.calls.data = torch.tensor(9.0)
    with pytest.raises(RuntimeError, match="other memory"):
        loss.backward()
    model(_inputs()).sum().backward()
    assert model.report().fallback == "none"
