"""Forward hooks that do more than compute (they collect, count, print) run in Python at each call, on real tensors, and
the rest of the forward around them in PyTorch. And hooks that raise, and hooks that the forward itself hangs up.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.modules.module as torch_module
from torch.nn.utils import prune

from .hooked import Block, Hang, Hooked, add, compare


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# -- hooks that do more -----------------------------------------------------------------------------------------------

CHANGING: dict[str, Hang] = {
    "collects": lambda m, s: m[1].register_forward_hook(lambda mod, args, out: s["seen"].append(out.detach())),
    "keeps the last": lambda m, s: m[1].register_forward_hook(
        lambda mod, args, out: s["box"].__setitem__("out", out.detach())
    ),
    "counts": lambda m, s: m[1].register_forward_hook(
        lambda mod, args, out: s["box"].__setitem__("n", s["box"].get("n", 0) + 1)
    ),
    "notes a value": lambda m, s: m[1].register_forward_hook(
        lambda mod, args, out: s["seen"].append(out.abs().mean().item())
    ),
    "before": lambda m, s: m[1].register_forward_pre_hook(lambda mod, args: s["seen"].append(len(args))),
    "is always called": lambda m, s: m[1].register_forward_hook(lambda mod, a, out: out * 3, always_call=True),
    "of the module": lambda m, s: m.register_forward_hook(lambda mod, args, out: s["seen"].append(out.detach())),
    "in C": lambda m, s: m[1].register_forward_pre_hook(functools.partial(_keep_arguments, s["box"])),
    "wholly in C": lambda m, s: m[1].register_forward_pre_hook(s["box"].__setitem__),
}


def _keep_arguments(box: dict[str, Any], module: nn.Module, args: Any) -> None:
    box["args"] = args[0].detach()


@pytest.mark.parametrize("kind", CHANGING)
def test_a_hook_that_changes_something_runs_at_each_call(kind: str) -> None:
    hooked = Hooked()
    hooked.hang(CHANGING[kind])
    if kind == "wholly in C":
        for _ in range(3):
            compare(hooked.model, hooked.eager)
        assert [list(map(type, state["box"])) for state in hooked.states] == [[Block], [Block]]
        hooked.set("box", {})
    else:
        hooked.compare(4)
    assert hooked.fallback == "partial", "the blocks run in the engine"
    assert [s.runs for s in hooked.model.report().sessions][-1] >= 3
    hooked.remove()
    hooked.compare(2)
    whole = [s for s in hooked.model.report().sessions if s.gradients == 12]
    assert [s.runs for s in whole] == [2]


def test_blocks_run_in_the_engine_with_such_hooks_of_their_own_around_them() -> None:
    hooked = Hooked()
    for i in range(3):
        hooked.hang(lambda m, s, i=i: m[i].register_forward_hook(lambda mod, args, out: s["seen"].append(out.detach())))
    hooked.hang(lambda m, s: m[0].register_forward_hook(lambda mod, args, out: out * 2))
    hooked.compare(3)
    assert [s.runs for s in hooked.model.report().sessions] == [3] * 3
    hooked.hang(lambda m, s: m[1].register_forward_pre_hook(lambda mod, args: (args[0] * 3,)))
    hooked.compare(2)
    hooked.remove()
    hooked.compare(2)
    assert len(hooked.states[0]["seen"]) == 3 * 7


def test_a_hook_that_prints_prints_once_a_call(capsys: pytest.CaptureFixture[str]) -> None:
    hooked = Hooked()
    hooked.hang(lambda m, s: m[1].register_forward_hook(lambda mod, args, out: print("out", tuple(out.shape))))
    hooked.compare(3)
    assert capsys.readouterr().out == "out (3, 4)\n" * 6
    hooked.hang(lambda m, s: m[0].linear.register_forward_hook(print))
    capsys.readouterr()
    hooked.model(torch.zeros(3, 4))
    assert capsys.readouterr().out.count("Linear(") == 1


def test_a_hook_that_notes_numbers_in_evaluation_alone(capfd: pytest.CaptureFixture[str]) -> None:
    def note(module: nn.Module, args: Any, out: torch.Tensor, seen: list[float]) -> None:
        if not module.training:
            seen.append(float(out.sum()))  # torch warns of it, where the tensor wants a gradient

    hooked = Hooked()
    hooked.hang(lambda m, s: m[1].register_forward_hook(functools.partial(note, seen=s["seen"])))
    for training in (True, False, True):
        hooked.model.train(training)
        hooked.eager.train(training)
        hooked.compare(2)
    assert len(hooked.states[0]["seen"]) == 2
    assert "Traceback" not in capfd.readouterr().err


def test_one_warning_says_what_a_hook_changes() -> None:
    hooked = Hooked()
    hooked.hang(CHANGING["collects"])
    with pytest.warns(UserWarning) as caught:
        hooked.compare(3)
    ours = [str(w.message) for w in caught if "ORTModule" in str(w.message)]
    assert len(ours) == 1 and "partly in PyTorch" in ours[0]


# -- errors -----------------------------------------------------------------------------------------------------------


def test_an_error_of_a_hook_is_eagers() -> None:
    def strict(module: nn.Module, args: Any, out: torch.Tensor) -> None:
        if out.shape[0] > 3:
            raise ValueError(f"{out.shape[0]} rows")

    hooked = Hooked()
    hooked.hang(lambda m, s: m[1].register_forward_hook(strict))
    hooked.compare(2)
    for module in (hooked.model, hooked.eager):
        with pytest.raises(ValueError, match="5 rows"):
            module(torch.randn(5, 4))
    hooked.compare(2)


def test_a_hook_that_gives_nonsense_raises_as_in_eager() -> None:
    hooked = Hooked()
    hooked.hang(lambda m, s: m[1].register_forward_pre_hook(lambda mod, args, kwargs: args, with_kwargs=True))
    for module in (hooked.model, hooked.eager):
        with pytest.raises(RuntimeError, match="forward pre-hook must return"):
            module(torch.randn(3, 4))


class Catching(nn.Module):
    """A forward that goes on without a layer that raises."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.block = nn.Linear(4, 4), nn.Linear(5, 4), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(RuntimeError):
            x = self.second(x)
        return self.block(self.first(x))


def test_a_hook_that_is_always_called_is_when_the_forward_catches_the_error() -> None:
    def note(module: nn.Module, args: Any, out: Any, seen: list[Any]) -> None:
        seen.append(out)

    hooked = Hooked(Catching())
    hooked.compare(1)
    hooked.hang(lambda m, s: m.second.register_forward_hook(functools.partial(note, seen=s["seen"]), always_call=True))
    hooked.compare(3)
    assert hooked.states[0]["seen"] == [None] * 3


def test_a_hook_that_is_always_called_is_when_the_call_raises() -> None:
    hooked = Hooked()
    hooked.hang(
        lambda m, s: m[1].register_forward_hook(lambda mod, a, o: s["seen"].append(o is None), always_call=True)
    )
    hooked.compare(2)
    for module in (hooked.model, hooked.eager):
        with pytest.raises(RuntimeError):
            module(torch.randn(3, 5))
    hooked.compare_states()
    hooked.compare(1)


# -- hooks that the forward hangs up ----------------------------------------------------------------------------------


class Hanging(nn.Module):
    """A forward that hangs a hook up and, as it is asked, takes it down again or leaves it there."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.block, self.other, self.how, self.hung = Block(), Block(), how, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        collected: list[torch.Tensor] = []
        handle = None
        if self.how == "while it runs":
            handle = self.block.register_forward_hook(lambda m, args, out: collected.append(out * 2))
        elif self.how == "once" and not self.hung:
            self.block.register_forward_hook(functools.partial(add, 0.5), with_kwargs=False)
            self.hung = True
        elif self.how == "for itself" and not self.hung:
            self.block.register_forward_hook(lambda m, args, out: collected.append(out))
            self.hung = True
        elif self.how == "each time":
            self.block.register_forward_hook(functools.partial(add, 0.5))
        y = self.other(self.block(x))
        if handle is not None:
            handle.remove()
        return y + sum(collected) if collected else y


@pytest.mark.parametrize("how", ["while it runs", "once", "for itself", "each time"])
def test_hooks_that_the_forward_hangs_up(how: str) -> None:
    hooked = Hooked(Hanging(how))
    for _ in range(4):
        hooked.compare(1)
        ours, theirs = (m.block._forward_hooks for m in (hooked.model.module, hooked.eager))
        assert len(ours) == len(theirs)
    assert hooked.fallback == ("none" if how in ("while it runs", "once") else "partial")


def test_a_hook_that_removes_itself_runs_once() -> None:
    def once(module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
        handles[id(module)].remove()
        return out * 10

    handles: dict[int, Any] = {}

    def hang(module: nn.Module, state: dict[str, Any]) -> Any:
        handles[id(module[1])] = handle = module[1].register_forward_hook(once)
        return handle

    hooked = Hooked()
    hooked.hang(hang)
    hooked.compare(3)
    assert not hooked.model.module[1]._forward_hooks


def test_hooks_of_every_module_that_a_forward_hangs_up_are_found() -> None:
    class Everywhere(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.block = Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            handle = torch_module.register_module_forward_hook(
                lambda m, args, out: out * 2 if isinstance(m, nn.Linear) else None
            )
            y = self.block(x)
            handle.remove()
            return self.block(y)

    hooked = Hooked(Everywhere())
    hooked.compare(3)
    assert not torch_module._global_forward_hooks
    assert hooked.fallback == "none"


# -- what hooks before a part set --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "l1_unstructured", "a mask"])
def test_weights_that_hooks_of_a_part_set_are_those_of_each_call(kind: str) -> None:
    def masked(module: nn.Module, args: Any) -> None:
        module.weight = module.weight_orig * 0.5

    class Own(nn.Linear):  # worth a graph
        pass

    hooked = Hooked(nn.Sequential(Own(4, 4), Block(), Block()))
    for module in (hooked.model.module, hooked.eager):
        torch.manual_seed(0)
        if kind == "l1_unstructured":
            prune.l1_unstructured(module[0], "weight", 0.5)
        elif kind == "a mask":
            module[0].weight_orig = module[0].weight
            del module[0].weight
            module[0].register_forward_pre_hook(masked)
        else:
            getattr(nn.utils, kind)(module[0])
    hooked.hang(CHANGING["collects"])
    hooked.compare(4)
    assert hooked.fallback == "partial"
    hooked.remove()
    hooked.compare(3)
