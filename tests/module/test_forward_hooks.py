"""Forward hooks of sub-modules, of the module and of every module: what one computes is part of the graph.

What it reads is a condition, as with the forward itself. A hook that does more (it collects, counts, prints) runs in
Python at each call, on real tensors, and the rest of the forward around it in PyTorch.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.modules.module as torch_module
from torch.nn.utils import prune

import ortmodule
from ortmodule import ORTModule
from tests.support import assert_same_gradients, exports, pair

Hang = Callable[[nn.Module, dict[str, Any]], Any]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.scale = nn.Linear(4, 4), nn.LayerNorm(4), 1.5

    def forward(self, x: torch.Tensor, shift: float = 0.0) -> torch.Tensor:
        return torch.tanh(self.norm(self.linear(x))) + shift

    def hook(self, module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
        return out * self.scale


class Blocks(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self[2](self[1](self[0](x), shift=0.25))


def blocks() -> nn.Module:
    torch.manual_seed(0)
    return Blocks(Block(), Block(), Block())


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def compare(model: nn.Module, eager: nn.Module) -> None:
    x = torch.randn(3, 4)
    got, want = model(x), eager(x)
    torch.testing.assert_close(got, want)
    for module, out in ((model, got), (eager, want)):
        module.zero_grad()
        out.square().sum().backward()
    assert_same_gradients(model, eager, rtol=1e-3, atol=1e-4)


class Hooked:
    """A wrapped module and the same in eager, each with hooks and a state of its own (`seen`, `box`)."""

    def __init__(self, module: nn.Module | None = None, **options: Any) -> None:
        self.model, self.eager = pair(module or blocks(), fallback="eager", **options)
        self.states: list[dict[str, Any]] = [{"seen": [], "box": {}, "k": 2.0} for _ in range(2)]
        self.handles: list[list[Any]] = [[], []]

    def hang(self, hang: Hang) -> None:
        for module, state, handles in zip((self.model.module, self.eager), self.states, self.handles):
            handles.append(hang(module, state))

    def remove(self, which: int = -1) -> None:
        for handles in self.handles:
            handles.pop(which).remove()

    def set(self, name: str, value: Any) -> None:
        for state in self.states:
            state[name] = value

    def compare(self, times: int = 1) -> None:
        for _ in range(times):
            compare(self.model, self.eager)
            self.compare_states()

    def compare_states(self) -> None:
        ours, theirs = self.states
        for name in ("seen", "box"):
            torch.testing.assert_close(ours[name], theirs[name])
        for value in (*ours["seen"], *ours["box"].values()):
            assert not isinstance(value, torch.Tensor) or type(value) is torch.Tensor

    @property
    def fallback(self) -> str:
        return self.model.report().fallback


# -- hooks that compute -----------------------------------------------------------------------------------------------


class Times:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
        return out * self.factor


def add(number: float, module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
    return out + number


FACTOR = 2.0


def times_global(module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
    return out * FACTOR


def keywords_too(module: nn.Module, args: Any, kwargs: dict[str, Any], out: torch.Tensor) -> torch.Tensor:
    return out + kwargs.get("shift", 3.0)


def other_keywords(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
    return args, {name: value + 1.0 for name, value in kwargs.items()}


def sets_an_attribute(module: nn.Module, args: Any, out: torch.Tensor) -> None:
    module.features = out.detach() * 2


def masked_weight(module: nn.Module, args: Any) -> None:
    module.masked = module.linear.weight * 0.5
    module.middle = args[0].mean()


def several(module: nn.Module, state: dict[str, Any]) -> Any:
    layer = module[1].linear
    layer.register_forward_hook(lambda m, args, out: out * 2)
    layer.register_forward_hook(lambda m, args, out: out + 1)
    return layer.register_forward_hook(lambda m, args, out: out.square(), prepend=True)


COMPUTING: dict[str, Hang] = {
    "that looks": lambda m, s: m[1].register_forward_hook(lambda module, args, out: None),
    "that changes the result": lambda m, s: m[2].register_forward_hook(lambda module, args, out: out * 2),
    "that changes the first": lambda m, s: m[0].register_forward_hook(lambda module, args, out: out * 2),
    "before": lambda m, s: m[0].register_forward_pre_hook(lambda module, args: (args[0] + 1,)),
    "before, giving a tensor": lambda m, s: m[2].linear.register_forward_pre_hook(lambda module, args: args[0] - 1),
    "with keywords": lambda m, s: m[1].register_forward_hook(keywords_too, with_kwargs=True),
    "before, with keywords": lambda m, s: m[1].register_forward_pre_hook(other_keywords, with_kwargs=True),
    "before, setting a weight": lambda m, s: m[1].register_forward_pre_hook(masked_weight),
    "several, one in front": several,
    "a partial": lambda m, s: m[1].register_forward_hook(functools.partial(add, 0.5)),
    "a bound method": lambda m, s: m[1].register_forward_hook(m[0].hook),
    "an object": lambda m, s: m[1].linear.register_forward_hook(Times(3.0)),
    "a closure": lambda m, s: m[1].norm.register_forward_hook(lambda module, args, out: out * s["k"]),
    "of a global": lambda m, s: m[1].register_forward_hook(times_global),
    "that sets an attribute": lambda m, s: m[1].register_forward_hook(sets_an_attribute),
    "of the module": lambda m, s: m.register_forward_hook(lambda module, args, out: out * 2),
    "before the module": lambda m, s: m.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
    "that computes without a gradient": lambda m, s: m[1].register_forward_hook(
        torch.no_grad()(lambda module, args, out: out * 2)
    ),
}


@pytest.mark.parametrize("kind", COMPUTING)
def test_a_hook_is_part_of_the_graph(kind: str) -> None:
    hooked = Hooked()
    hooked.hang(COMPUTING[kind])
    hooked.compare(3)
    assert hooked.fallback == "none"
    assert [s.runs for s in hooked.model.report().sessions] == [3]
    if kind == "that sets an attribute":
        torch.testing.assert_close(hooked.model.module[1].features, hooked.eager[1].features)


@pytest.mark.parametrize("kind", COMPUTING)
def test_it_is_gone_when_it_is_removed_and_back_when_it_is_hung_up_again(kind: str) -> None:
    hooked = Hooked()
    hooked.compare(2)
    hooked.hang(COMPUTING[kind])
    hooked.compare(2)
    made = exports(hooked.model)
    assert made == 2
    if kind != "several, one in front":
        hooked.remove()
        hooked.compare(2)
        hooked.hang(COMPUTING[kind])
        hooked.compare(2)
        decorated = kind == "that computes without a gradient"  # into torch's own functions nobody looks
        assert exports(hooked.model) == made + decorated, "another handle, the same hook"
    assert hooked.fallback == "none"


# -- what hooks read --------------------------------------------------------------------------------------------------


def set_k(hooked: Hooked, value: float) -> None:
    hooked.set("k", value)


def set_global(hooked: Hooked, value: float) -> None:
    globals()["FACTOR"] = value


def hooks_of(hooked: Hooked, layer: Callable[[Any], nn.Module]) -> Iterator[tuple[dict[int, Any], int]]:
    for module in (hooked.model.module, hooked.eager):
        table = layer(module)._forward_hooks
        yield table, next(iter(table))


def set_object(hooked: Hooked, value: float) -> None:
    for table, key in hooks_of(hooked, lambda m: m[1].linear):
        table[key].factor = value


def set_partial(hooked: Hooked, value: float) -> None:
    for table, key in hooks_of(hooked, lambda m: m[1]):
        table[key].__setstate__((add, (value,), {}, {}))


def set_bound(hooked: Hooked, value: float) -> None:
    for module in (hooked.model.module, hooked.eager):
        module[0].scale = value


def set_hook(hooked: Hooked, value: float) -> None:
    for table, key in hooks_of(hooked, lambda m: m[1].linear):
        table[key] = Times(value)


READING = {
    "a closure": set_k, "of a global": set_global, "an object": set_object, "a partial": set_partial,
    "a bound method": set_bound,
}  # fmt: skip


@pytest.mark.parametrize("kind", [*READING, "replaced"])
def test_what_a_hook_reads_leads_to_another_graph(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    hooked = Hooked()
    hooked.hang(COMPUTING["an object" if kind == "replaced" else kind])
    change = set_hook if kind == "replaced" else READING[kind]
    for value in (2.0, 3.0, 2.0, 3.0):
        change(hooked, value)
        hooked.compare(2)
    assert exports(hooked.model) == 2
    assert hooked.fallback == "none"


def two(module: nn.Module, state: dict[str, Any]) -> Any:
    module[1].register_forward_hook(lambda m, args, out: out * 2)
    return module[1].register_forward_hook(lambda m, args, out: out + 1)


@pytest.mark.parametrize("last", [False, True])
def test_the_order_of_hooks_counts(last: bool) -> None:
    hooked = Hooked()
    hooked.hang(two)
    hooked.compare(2)
    for _ in range(3):  # there, back, there
        for table, key in hooks_of(hooked, lambda m: m[1]):
            table.move_to_end(key if last else list(table)[-1], last=last)  # type: ignore[attr-defined]
        hooked.compare(2)
    assert exports(hooked.model) == 2


def test_how_a_hook_is_called_counts() -> None:
    def any_number(module: nn.Module, *given: Any) -> torch.Tensor:
        return given[-1] * len(given)

    hooked = Hooked()
    for with_kwargs in (False, True, False):
        hooked.hang(lambda m, s, w=with_kwargs: m[1].register_forward_hook(any_number, with_kwargs=w))
        hooked.compare(2)
        hooked.remove()
    assert exports(hooked.model) == 2


def test_a_hook_before_and_one_after_are_not_the_same() -> None:
    def hook(module: nn.Module, args: Any, out: Any = None) -> Any:
        return args[0] + 1 if out is None else out * 2

    hooked = Hooked()
    for name in ("register_forward_hook", "register_forward_pre_hook"):
        hooked.hang(lambda m, s, name=name: getattr(m[1].linear, name)(hook))
        hooked.compare(2)
        hooked.remove()
    assert exports(hooked.model) == 2


@pytest.mark.parametrize("kind", ["forward", "forward_pre"])
def test_hooks_of_every_module_are_part_of_the_graph(kind: str) -> None:
    def after(module: nn.Module, args: Any, out: torch.Tensor) -> Any:
        return out * FACTOR if isinstance(module, nn.Linear) else None

    def before(module: nn.Module, args: Any) -> Any:
        return (args[0] + FACTOR,) if isinstance(module, nn.Linear) else None

    hooked = Hooked()
    hooked.compare(2)
    register = getattr(torch_module, f"register_module_{kind}_hook")
    for _ in range(2):
        handle = register(after if kind == "forward" else before)
        try:
            hooked.compare(2)
        finally:
            handle.remove()
        hooked.compare(2)
    assert exports(hooked.model) == 2 and hooked.fallback == "none"


def test_a_hook_of_every_module_is_called_for_those_of_the_user_alone() -> None:
    hooked = Hooked()
    kinds = {Block: 2.0, Blocks: 3.0, nn.Linear: 5.0, nn.LayerNorm: 7.0}

    def scaled(module: nn.Module, args: Any, out: Any) -> Any:
        if type(module) is ORTModule:  # a module as well, around the one that it wraps
            return None
        return out * kinds[type(module)]  # a KeyError for any other

    handle = torch_module.register_module_forward_hook(scaled)
    try:
        hooked.compare(3)
    finally:
        handle.remove()
    assert hooked.fallback == "none"


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


class Twice(nn.Module):
    """A module that stands in two places, and is looked up by itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = Block(), nn.Linear(4, 4)
        self.again = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = {self.first: 2.0}.get(self.again, 1.0)
        return self.last(self.again(self.first(x)) * factor)


def test_a_module_in_two_places_is_itself_in_hooks_and_in_the_forward() -> None:
    def hang(module: nn.Module, state: dict[str, Any]) -> Any:
        factors = {module.first: 3.0}
        return module.first.register_forward_hook(lambda m, args, out: out * factors.get(m, 1.0))

    hooked = Hooked(Twice())
    hooked.compare(2)
    hooked.hang(hang)
    hooked.compare(2)
    assert hooked.fallback == "none"


@pytest.mark.parametrize("rows", [(3, 5, 7, 1), (2, 2, 4, 4)])
def test_a_hook_reads_the_sizes_of_each_call(rows: tuple[int, ...]) -> None:
    hooked = Hooked()
    hooked.hang(lambda m, s: m[1].linear.register_forward_hook(lambda mod, args, out: out * args[0].shape[0]))
    for n in rows:
        x = torch.randn(n, 4)
        torch.testing.assert_close(hooked.model(x), hooked.eager(x))
    assert exports(hooked.model) == 2


# -- and the rest -----------------------------------------------------------------------------------------------------


def test_a_hook_of_the_wrapper_runs_around_the_graph() -> None:
    hooked = Hooked()
    seen: list[int] = []
    hooked.model.register_forward_hook(lambda m, args, out: seen.append(1))
    hooked.hang(COMPUTING["of the module"])
    hooked.compare(3)
    assert len(seen) == 3 and hooked.fallback == "none"


def test_hooks_of_torch_itself_are_part_of_the_graph() -> None:
    model, eager = pair(blocks())
    for block in (*model.module, *eager):
        nn.utils.weight_norm(block.linear)
        prune.l1_unstructured(block.norm, "weight", 0.5)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (model, eager)]
    for _ in range(3):
        compare(model, eager)
        for block, same in zip(model.module, eager, strict=True):
            torch.testing.assert_close(block.linear.weight, same.linear.weight)
            torch.testing.assert_close(block.norm.weight, same.norm.weight)
        for optimizer in optimizers:
            optimizer.step()
    assert model.report().fallback == "none"


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


@pytest.mark.parametrize("vouched", [False, True])
def test_a_hook_that_is_vouched_for_may_be_in_c(vouched: bool) -> None:
    native = dict[Any, Any]().get  # gives the arguments as they are
    hooked = Hooked(vouched=(native,) if vouched else ())
    hooked.hang(lambda m, s: m[1].register_forward_pre_hook(native))
    hooked.compare(3)
    assert hooked.fallback == ("none" if vouched else "partial")


def test_a_graph_of_the_disk_cache_is_of_the_same_hooks(tmp_path: Any) -> None:
    for k in (2.0, 3.0, 2.0):
        hooked = Hooked(cache_dir=str(tmp_path))
        hooked.set("k", k)
        hooked.hang(COMPUTING["a closure"])
        hooked.hang(COMPUTING["before, with keywords"])
        hooked.compare(2)
        assert hooked.fallback == "none"


def test_second_derivatives_go_through_hooks() -> None:
    hooked = Hooked()
    hooked.hang(COMPUTING["that changes the result"])
    x = torch.linspace(-1, 1, 12).view(3, 4)
    for _ in range(2):
        found = []
        for module in (hooked.model, hooked.eager):
            given = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(module(given).square().sum(), given, create_graph=True)
            found.append(torch.autograd.grad(slope.square().sum(), given)[0])
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-3)


def test_tools_without_an_audit_refuse_hooks() -> None:
    model = blocks()
    model[1].register_forward_hook(lambda module, args, out: out * 2)
    with pytest.raises(ortmodule.CaptureError, match="forward hook"):
        ortmodule.export_training_graph(model, (torch.randn(3, 4),))
