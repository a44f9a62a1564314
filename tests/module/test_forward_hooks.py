"""Forward hooks of sub-modules, of the module and of every module: what one computes is part of the graph, and what it
reads is a condition, as with the forward itself. Not here: hooks that do more (test_forward_hooks_that_do_more.py).
"""

from __future__ import annotations

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
from tests.support import exports, pair

from .hooked import Block, Blocks, Hang, Hooked, add, blocks, compare


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# -- hooks that compute -----------------------------------------------------------------------------------------------


class Times:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
        return out * self.factor


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
        assert exports(hooked.model) == made, "another handle, the same hook"
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
    assert hooked.model.report().exports[0].cached


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
