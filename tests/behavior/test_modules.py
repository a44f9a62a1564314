"""Groups D, F, G, H and I: devices, several modules, sizes, modes, and the surface of nn.Module."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from ortmodule import ORTModule
from tests.support import Lambda, assert_same_gradients, exports, mlp, pair

from .table import Row, behavior, call, compare, parity, rand, rows_of, run


class Branches(nn.Module):
    """Its layers depend on the size; the mean of a dropout and a normalization on the mode."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.drop(self.norm(self.linear(x)))
        return h if self.training else h * 2

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * 3


x = rand(3, 4)

# -- D: devices and dtypes --------------------------------------------------------------------------------------------

MOVES: dict[str, Any] = {
    "cpu()": lambda m: m.cpu(),
    "to a name": lambda m: m.to("cpu"),
    "to a device": lambda m: m.to(torch.device("cpu", 0)),
    "to another tensor's": lambda m: m.to(torch.ones(1, dtype=torch.float64)),
    "to a dtype": lambda m: m.to(torch.bfloat16),
    "double()": lambda m: m.double(),
    "bfloat16() and float() again": lambda m: m.bfloat16().float(),
    "a device and a dtype": lambda m: m.to("cpu", torch.float64, non_blocking=True),
}


def moved(name: str) -> None:
    model, eager = pair(mlp())
    compare(model, eager, *call(x))
    assert MOVES[name](model) is model
    MOVES[name](eager)
    dtype = next(eager.parameters()).dtype
    assert next(model.parameters()).dtype is dtype
    compare(model, eager, *call(x.to(dtype)), rtol=2e-2 if dtype is torch.bfloat16 else 1e-4)


for name in MOVES:
    behavior("D", name)(lambda name=name: moved(name))
parity("D", "no parameter at all", nn.Softmax(-1), call(x), call(x.clone().requires_grad_()))
parity("D", "no tensor among the arguments", lambda m, n: m.linear(m.table * n), call(2), call(3))


@behavior("D", "data on another device than the model is eager's error")
def other_device() -> None:
    eager = mlp()
    model = ORTModule(copy.deepcopy(eager))
    for module in (model, eager):
        with pytest.raises((RuntimeError, NotImplementedError)):
            module(x.to("meta")).sum().item()
    compare(model, eager, *call(x))


# -- F: many modules --------------------------------------------------------------------------------------------------


def two() -> tuple[tuple[nn.Module, nn.Module], tuple[nn.Module, nn.Module]]:
    first, second = mlp(), nn.Linear(3, 4)
    ours = ORTModule(copy.deepcopy(first)), ORTModule(copy.deepcopy(second))
    return ours, (first, second)


def same(pairs: Any, loss: Any) -> None:
    """`loss` of each tuple of modules gives the same gradients."""
    values = []
    for modules in pairs:
        values.append(loss(*modules))
        values[-1].backward()
    torch.testing.assert_close(*values)
    for mine, wanted in zip(*pairs, strict=True):
        assert_same_gradients(mine, wanted)


MANY: dict[str, Any] = {
    "chained": lambda a, b: b(a(x)).square().sum(),
    "chained there and back": lambda a, b: a(b(a(x))).square().sum(),
    "through something without a gradient": lambda a, b: (b(a(x).detach()) + a(x).argmax(-1)[:, None]).sum(),
    "one called twice": lambda a, b: (a(x) * a(x + 1)).sum() + 0 * b(a(x)).sum(),
    "mixed with plain PyTorch": lambda a, b: nn.functional.normalize(b(a(x).tanh())).sum(),
}
for name, loss in MANY.items():
    behavior("F", name)(lambda loss=loss: same(two(), loss))


@behavior("F", "overlapping forwards and backwards")
def overlapping() -> None:
    ours, theirs = two()
    for first, second in (ours, theirs):
        one, other = first(x).sum(), first(x * 2).square().sum()
        other.backward()
        third = second(first(x)).sum()
        one.backward()
        third.backward()
    for mine, wanted in zip(ours, theirs, strict=True):
        assert_same_gradients(mine, wanted)


@behavior("F", "a shared backbone")
def backbone() -> None:
    def build() -> tuple[nn.Module, nn.Module]:
        shared = mlp()
        torch.manual_seed(1)
        return nn.Sequential(shared, nn.Linear(3, 2)), nn.Sequential(shared, nn.Linear(3, 5))

    heads, eager = build(), build()
    ours = tuple(ORTModule(h) for h in heads)
    same((ours, eager), lambda a, b: a(x).sum() + b(x).square().sum())


@behavior("F", "inside a module, and inside another ORTModule")
def inside() -> None:
    eager = nn.Sequential(mlp(), nn.Linear(3, 2))
    inner = nn.Sequential(ORTModule(copy.deepcopy(eager[0])), copy.deepcopy(eager[1]))
    compare(inner, eager, *call(x))
    compare(ORTModule(inner), eager, *call(x))


@behavior("F", "wrapped twice, by one name and by another")
def twice() -> None:
    eager = mlp()
    module = copy.deepcopy(eager)
    one, other = ORTModule(module), ORTModule(ORTModule(module))
    assert other.module is module
    (one(x) * other(x)).sum().backward()
    (eager(x) * eager(x)).sum().backward()
    assert_same_gradients(one, eager)


# -- G: sizes ---------------------------------------------------------------------------------------------------------

parity("G", "many batches on two graphs", mlp(), *(call(rand(n, 4)) for n in (5, 3, 8, 2, 17)), exports_at_most=2)
parity("G", "batch and length at once", lambda m, x: m.linear(x).cumsum(1).mean(1),
       *(call(rand(b, t, 4)) for b, t in ((2, 5), (3, 7), (4, 5), (2, 9))), exports_at_most=2)  # fmt: skip
parity("G", "one, then many, then one", lambda m, x: m.linear(x) + x.mean(0, keepdim=True),
       *(call(rand(n, 4)) for n in (1, 4, 1, 6)), exports_at_most=3)  # fmt: skip
parity("G", "sizes that were equal by chance", lambda m, x, y: m.linear(x).sum(0) * m.linear(y).sum(0),
       *(call(rand(a, 4), rand(b, 4)) for a, b in ((3, 3), (5, 5), (5, 7), (2, 9))), exports_at_most=3)  # fmt: skip
parity("G", "a branch on a size", lambda m, x: m.linear(x) if x.shape[0] > 4 else m.linear(x) * 2,
       *(call(rand(n, 4)) for n in (3, 2, 6, 8, 3)), exports_at_most=4)  # fmt: skip
parity("G", "sizes computed from sizes", lambda m, x: m.linear(x).view(x.shape[0] // 2, -1)[:, : x.shape[1] + 1],
       *(call(rand(n, 4)) for n in (4, 6, 8)), exports_at_most=2)  # fmt: skip
parity("G", "another rank is another graph", lambda m, x: m.linear(x).sum(0),
       *(call(t) for t in (rand(3, 4), rand(2, 3, 4), rand(3, 4), rand(2, 3, 4))), exports_at_most=2)  # fmt: skip

# -- H: train and eval ------------------------------------------------------------------------------------------------


@behavior("H", "modes in turn, each with one graph")
def modes() -> None:
    model, eager = pair(Branches(), dropout="torch")
    for mode in (True, False, True, False):
        assert model.train(mode) is model and model.training is mode
        eager.train(mode)
        compare(model, eager, *call(x))
    assert exports(model) == 2


@behavior("H", "eval() under no_grad")
def evaluation() -> None:
    model, eager = pair(Branches())
    model.eval(), eager.eval()
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(model(x), eager(x))
    assert all(s.mode == "inference" for s in model.report().sessions)


@behavior("H", "train mode under no_grad keeps statistics")
def train_without_grad() -> None:
    model, eager = pair(Branches(), dropout="torch")
    with torch.no_grad():
        for module in (model, eager):
            torch.manual_seed(1)
            module(x)
    torch.testing.assert_close(model.norm.running_mean, eager.norm.running_mean)


@behavior("H", "inference mode")
def inference() -> None:
    model, eager = pair(mlp())
    with torch.inference_mode():
        assert model(x).is_inference()
    compare(model, eager, *call(x))


@behavior("H", "one sub-module in the other mode")
def one_frozen() -> None:
    model, eager = pair(Branches(), dropout="torch")
    for module in (model, eager):
        module.norm.eval()
    compare(model, eager, *call(x))
    assert model.training and not model.norm.training


@behavior("H", "evaluation between two training steps")
def interleaved() -> None:
    model, eager = pair(Branches(), dropout="torch")
    for module in (model, eager):
        torch.manual_seed(2)
        loss = module(x).sum()
        module.eval()
        module(x)
        module.train()
        loss.backward()
    assert_same_gradients(model, eager)


# -- I: the surface of nn.Module --------------------------------------------------------------------------------------


def surface(name: str) -> Any:
    return behavior("I", name)


NAMES: dict[str, Any] = {
    "named_parameters": lambda m: [n for n, _ in m.named_parameters()],
    "named_buffers": lambda m: [n for n, _ in m.named_buffers()],
    "named_modules": lambda m: [type(c) for _, c in m.named_modules()][1:],
    "named_children": lambda m: [n for n, _ in m.named_children()],
    "state_dict": lambda m: list(m.state_dict()),
    "parameters(recurse=False)": lambda m: len(list(m.parameters(recurse=False))),
    "get_parameter, get_buffer, get_submodule": lambda m: (
        m.get_parameter("linear.bias").shape, m.get_buffer("norm.running_mean").shape, type(m.get_submodule("norm"))
    ),
    "attributes and their absence": lambda m: (m.training, hasattr(m, "drop"), hasattr(m, "nothing"), m.drop.p),
    "methods of the user's": lambda m: m.scaled(torch.ones(1, 4)).shape,
    "extra_repr": lambda m: "BatchNorm1d" in repr(m),
}  # fmt: skip


def same_names(read: Any) -> None:
    model, eager = pair(Branches())
    assert read(model) == read(eager)


for name, read in NAMES.items():
    surface(name)(lambda read=read: same_names(read))


@surface("load_state_dict of another model's state")
def load() -> None:
    model, eager = pair(Branches(), dropout="torch")
    torch.manual_seed(9)
    other = Branches()
    nn.init.ones_(other.linear.weight)
    for module in (model, eager):
        module.load_state_dict(other.state_dict())
    compare(model, eager, *call(x))
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict({})


@surface("torch.save and load of the state")
def save() -> None:
    model, eager = pair(mlp())
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    eager.load_state_dict(torch.load(file))


@surface("pickle")
def pickled() -> None:
    model, eager = pair(mlp())
    model(x)
    compare(pickle.loads(pickle.dumps(model)), eager, *call(x))


@surface("deepcopy")
def copied() -> None:
    model, eager = pair(mlp())
    model(x)
    other = copy.deepcopy(model)
    nn.init.zeros_(other.get_parameter("0.weight"))
    compare(model, eager, *call(x))


@surface("apply, requires_grad_ and zero_grad")
def reach() -> None:
    model, eager = pair(mlp())
    for module in (model, eager):
        module.apply(lambda m: nn.init.constant_(m.weight, 0.5) if isinstance(m, nn.Linear) else None)
        assert module.requires_grad_(True) is module
    compare(model, eager, *call(x))
    model.zero_grad()
    assert all(p.grad is None for p in model.parameters())


@surface("an attribute set through the wrapper")
def attribute() -> None:
    model, eager = pair(Lambda(lambda m, x: m.linear(x) * m.factor))
    for factor in (2.0, 3.0, 2.0):
        for module in (model, eager):
            module.factor = factor
        compare(model, eager, *call(x))
    assert exports(model) == 2
    del model.factor
    assert not hasattr(model.module, "factor")


@surface("an attribute that the forward does not read")
def unread() -> None:
    model, eager = pair(mlp())
    for step in range(3):
        model.step = step
        compare(model, eager, *call(x))
    assert exports(model) == 1 and model.module.step == 2


@surface("a layer replaced")
def replaced() -> None:
    model, eager = pair(Branches(), dropout="torch")
    compare(model, eager, *call(x))
    for module in (model, eager):
        torch.manual_seed(4)
        module.linear = nn.Linear(4, 4, bias=False)
    compare(model, eager, *call(x))


@surface("register_parameter, register_buffer, add_module")
def registered() -> None:
    def forward(m: Lambda, x: torch.Tensor) -> torch.Tensor:
        h = m.linear(x)
        if hasattr(m, "scale"):
            h = m.last(h * m.scale + m.shift)
        return h

    model, eager = pair(Lambda(forward))
    compare(model, eager, *call(x))
    for module in (model, eager):
        torch.manual_seed(5)
        module.register_parameter("scale", nn.Parameter(torch.ones(4) * 2))
        module.register_buffer("shift", torch.ones(4))
        module.add_module("last", nn.Linear(4, 2))
    compare(model, eager, *call(x))
    assert "shift" in model.state_dict()


@surface("forward hooks of the wrapper and of a layer")
def hooks() -> None:
    model = ORTModule(mlp())
    seen: list[str] = []
    handles = [
        model.register_forward_hook(lambda *a: seen.append("wrapper")),
        model.get_submodule("0").register_forward_hook(lambda *a: seen.append("layer")),
        model.register_forward_pre_hook(lambda *a: seen.append("before")),
    ]
    expected = model.module(x)
    seen.clear()
    torch.testing.assert_close(model(x), expected)
    assert set(seen) == {"wrapper", "layer", "before"}
    for handle in handles:
        handle.remove()
    seen.clear()
    model(x)
    assert not seen


@surface("backward hooks of a layer")
def backward_hooks() -> None:
    model, eager = ORTModule(mlp()), mlp()
    shapes: list[Any] = []
    for module in (model, eager):
        module.get_submodule("0").register_full_backward_hook(lambda m, gi, go: shapes.append(go[0].shape))
        module(x).sum().backward()
    assert shapes == [(3, 8), (3, 8)]
    assert_same_gradients(model, eager)


@surface("a state-dict hook")
def state_hook() -> None:
    model = ORTModule(mlp())
    model.module.register_state_dict_post_hook(lambda module, state, prefix, meta: state.update(extra=1))
    assert "extra" in model.state_dict()


@surface("len, index and iteration of a Sequential")
def sequence() -> None:
    model, eager = pair(mlp())
    assert len(model) == 3 and isinstance(model[1], nn.Tanh) and len(list(model)) == 3
    assert "0" in model._modules or model.get_submodule("0") is model[0]


@pytest.mark.parametrize("row", rows_of("DFGHI"))
def test_module(row: Row, request: pytest.FixtureRequest) -> None:
    run(row, request)
