"""Equal blocks are traced once: the graph is the one that their runs would have made, and what they read is watched.

Not here: whether a changed block is noticed in programs of all kinds (`python -m tests.trust --depth 4`).
"""

from __future__ import annotations

import contextvars
import copy
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ortmodule import Options, ORTModule
from ortmodule.capture.trace import export
from ortmodule.capture.trace.repeats import repeats
from tests.zoo import build, loss_of


class Block(nn.Module):
    def __init__(self, scale: float = 0.5) -> None:
        super().__init__()
        self.norm, self.wide, self.back = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale, self.number = scale, 0

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        h = F.dropout(F.gelu(self.wide(self.norm(x))), 0.1, self.training)
        h = self.back(h) * self.scale
        return x + (h if mask is None else h.masked_fill(mask, 0.0))


class Stack(nn.Module):
    def __init__(self, make: Callable[[], nn.Module] = Block, count: int = 5) -> None:
        super().__init__()
        self.layers = nn.ModuleList(make() for _ in range(count))
        for i, layer in enumerate(self.layers):
            layer.number = i

    def forward(self, x: torch.Tensor, *further: Any) -> Any:
        for layer in self.layers:
            x = layer(x, *further)
        return x.square().mean()


class Inner(Stack):
    """Results of blocks are results of the whole."""

    def forward(self, x: torch.Tensor) -> Any:
        kept = []
        for layer in self.layers:
            x = layer(x)
            kept.append(x)
        return sum(kept).mean(), kept[1], kept[3]


class Skips(Stack):
    def forward(self, x: torch.Tensor) -> Any:
        kept = []
        for layer in self.layers[:2]:
            x = layer(x)
            kept.append(x)
        for layer in self.layers[2:4]:
            x = layer(x + kept.pop())
        return x.sum()


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        u, v = torch.tanh(self.a(x)), torch.sigmoid(self.b(y))
        return u * v + x, torch.relu(v - y) * 2 - y


class Pairs(Stack):
    def forward(self, x: torch.Tensor) -> Any:
        y = x * 2
        for layer in self.layers:
            x, y = layer(x, y)
        return x.sum(), y.mean()


class Writing(nn.Module):
    """It writes what it has made."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).clone()
        h[..., :2] = 0
        z = torch.zeros_like(h)
        z[:, 1:] = h[:, 1:].mul_(2)
        return x + self.b(z).relu_()


class Viewed(Stack):
    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = layer(x[None])[0].view(x.shape)
            x += 1
        return x.sum()


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x, self.h, self.gate = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        z = torch.sigmoid(self.gate(x))
        return z * h + (1 - z) * torch.tanh(self.x(x) + self.h(h))


class Recurrent(nn.Module):
    """One module, again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = Cell()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros_like(x[:, 0])
        for t in range(6):
            h = self.cell(x[:, t], h)
        return h.square().sum()


class Tied(Stack):
    """Each block shares one layer with all others, and one with its neighbour."""

    def __init__(self) -> None:
        super().__init__(count=6)
        for i, layer in enumerate(self.layers):
            layer.norm = self.layers[0].norm
            layer.back = self.layers[i - i % 2].back


class Frozen(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.layers[2].requires_grad_(False)
        self.layers[1].back.bias.requires_grad_(False)


class Modes(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for layer in self.layers[:2]:
                x = layer(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for layer in self.layers[2:4]:
                x = layer(x)
        for layer in self.layers:
            x = layer(x)
        return x.float().sum()


def rows(batch: int) -> torch.Tensor:
    return torch.randn(batch, 8, generator=torch.Generator().manual_seed(batch))


def sequences(batch: int) -> torch.Tensor:
    return torch.randn(batch, 7, 8, generator=torch.Generator().manual_seed(batch))


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 4)


# (model, calls, whether any block is repeated)
MODELS: dict[str, tuple[Callable[[], nn.Module], list[tuple[Any, ...]], bool]] = {
    "a stack": (Stack, [(rows(4),), (rows(6),)], True),
    "a stack whose input wants a gradient": (Stack, [(rows(4).requires_grad_(),), (rows(6).requires_grad_(),)], True),
    "further arguments": (Stack, [(rows(4), rows(4) > 0), (rows(6), rows(6) > 0)], True),
    "inner results": (Inner, [(rows(4),), (rows(6),)], True),
    "skips": (Skips, [(rows(4),), (rows(6),)], True),
    "two results": (lambda: Pairs(Pair), [(rows(4),), (rows(6),)], True),
    "writes within": (lambda: nn.Sequential(*[Writing() for _ in range(4)]), [(rows(4),), (rows(6),)], True),
    "written results": (Viewed, [(rows(4),), (rows(6),)], True),
    "a cell": (Recurrent, [(sequences(4),), (sequences(6),)], True),
    "tied layers": (Tied, [(rows(4),), (rows(6),)], True),
    "frozen layers": (Frozen, [(rows(4),), (rows(6),)], True),
    "modes": (Modes, [(rows(4),), (rows(6),)], True),
    "an encoder": (encoder, [(sequences(4),), (sequences(6),)], True),
    "running statistics": (
        lambda: nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()) for _ in range(4)]),
        [(rows(4),), (rows(6),)], False,
    ),
}  # fmt: skip


class Seen:
    """The blocks of a run, and what its captures are compared by."""

    def __init__(self, captured: list[Any]) -> None:
        self.captures = captured
        self.made: list[repeats.Repeats] = []

    @property
    def repeated(self) -> int:
        """How many blocks were not run."""
        return sum(one.count for one in self.made)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, captured: list[Any]) -> Seen:
    found = Seen(captured)

    def made(root: nn.Module) -> repeats.Repeats:
        found.made.append(repeats.Repeats(root))
        return found.made[-1]

    monkeypatch.setattr(export, "Repeats", made)
    monkeypatch.setattr(repeats, "_FEWEST_NODES", 1)
    return found


def captures(seen: Seen, make: Callable[[], nn.Module], calls: list[tuple[Any, ...]]) -> list[Any]:
    torch.manual_seed(0)
    model = ORTModule(make())
    seen.captures.clear()
    for call in calls:
        model(*call)
    return list(seen.captures)


@pytest.mark.parametrize("name", MODELS)
def test_the_graph_is_that_of_the_runs(name: str, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    make, calls, any_repeated = MODELS[name]
    captures(seen, make, calls[:1])  # what pytest itself does when it is called first
    got = captures(seen, make, calls)
    assert bool(seen.repeated) is any_repeated
    monkeypatch.setattr(export, "Repeats", lambda root: None)
    wanted = captures(seen, make, calls)
    assert len(got) == len(wanted) == len(calls)
    for one, other in zip(got, wanted, strict=True):
        assert one == other


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5", "mixtral", "whisper", "vit"])
def test_families_are_repeated(family: str, seen: Seen) -> None:
    sample = build(family)
    loss_of(ORTModule(sample.module)(**sample.inputs)).backward()
    assert seen.repeated


# -- blocks that only look equal --------------------------------------------------------------------------------------

TABLE: dict[Any, float] = {}
COUNTER = types.SimpleNamespace(depth=0)
DEPTH: contextvars.ContextVar[float] = contextvars.ContextVar("depth", default=1.0)


class Odd(Block):
    """A block with something odd about it."""

    def __init__(self, odd: Callable[[Odd, torch.Tensor], Any]) -> None:
        super().__init__()
        self.odd = odd
        self.everyone: list[nn.Module] = []
        self.own, self.table = types.SimpleNamespace(k=1.0), [1.0, 2.0]
        self.register_buffer("level", torch.tensor(2.0))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
        return super().forward(x) * self.odd(self, x)


class Slotted(Odd):
    __slots__ = ("slot",)


def counted(block: Odd, x: torch.Tensor) -> float:
    COUNTER.depth += 1
    return float(COUNTER.depth)


def first_in_table(block: Odd, x: torch.Tensor) -> float:
    return TABLE.get(block, 1.0)


def item_of_table(block: Odd, x: torch.Tensor) -> float:
    return TABLE.get(id(block), 1.0)


ODD: dict[str, Callable[[Odd, torch.Tensor], Any]] = {
    "its number": lambda block, x: block.number + 1.0,
    "its number by name": lambda block, x: getattr(block, "num" + "ber") + 1.0,
    "all its attributes": lambda block, x: vars(block)["number"] + 1.0,
    "its state, by a class": lambda block, x: object.__reduce_ex__(block, 2)[2]["number"] + 1.0,
    "whether it is the first": lambda block, x: 2.0 if block is block.everyone[0] else 1.0,
    "its place among others": lambda block, x: block.everyone.index(block) + 1.0,
    "a table of blocks": first_in_table,
    "a table of identities": item_of_table,
    "a counter": counted,
    "a variable of the context": lambda block, x: DEPTH.get(),
    "a value of a buffer": lambda block, x: 2.0 if block.level > 2.5 else 1.0,
    "an object of its own": lambda block, x: block.own.k,
    "an item of a list of its own": lambda block, x: block.table[0],
    "what the whole sets on it": lambda block, x: block.step,
    "what is set on it after its run": lambda block, x: block.after,
    "an attribute past nn.Module": lambda block, x: object.__getattribute__(block, "number") + 1.0,
    "a slot": lambda block, x: block.slot,
    "the default dtype": lambda block, x: 2.0 if torch.get_default_dtype() is torch.float64 else 1.0,
}  # fmt: skip


class Oddities(Stack):
    """The blocks differ in all that one may ask, and so does what is around them."""

    def __init__(self, odd: Callable[[Odd, torch.Tensor], Any], kind: type[Odd] = Odd, sets: bool = False) -> None:
        super().__init__(lambda: kind(odd))
        self.sets = sets
        for i, layer in enumerate(self.layers):
            layer.everyone = list(self.layers)
            layer.own.k, layer.table[0] = 1.0 + i // 2, 1.0 + i % 2
            layer.level.fill_(float(i))
            layer.slot = 1.0 + i % 2
            layer.after = 1.0
        TABLE.clear()
        TABLE.update({self.layers[0]: 3.0, id(self.layers[2]): 4.0})

    def forward(self, x: torch.Tensor, *further: Any) -> Any:
        COUNTER.depth = 0
        for i, layer in enumerate(self.layers):
            token = DEPTH.set(1.0 + i % 3)
            torch.set_default_dtype(torch.float64 if i == 3 else torch.float32)
            if self.sets:
                layer.step = 1.0 + i % 2
            x = layer(x)
            torch.set_default_dtype(torch.float32)
            DEPTH.reset(token)
            for other in self.layers if self.sets else ():
                other.after = 2.0 - i % 2
        COUNTER.depth = 0
        for layer in self.layers if self.sets else ():
            layer.after = 1.0
        return x.square().mean()


def step(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    torch.manual_seed(3)
    loss = model(x)
    loss.backward()
    return loss.detach()


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_they_are_repeated_where_nobody_asks(seen: Seen) -> None:
    step(ORTModule(Oddities(lambda block, x: 2.0).eval()), rows(4))
    assert seen.repeated >= 2  # one has another default dtype


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ODD)
def test_what_tells_blocks_apart_is_honoured(name: str, seen: Seen) -> None:
    eager = Oddities(ODD[name], Slotted if name == "a slot" else Odd, " set " in name or " sets " in name).eval()
    model = ORTModule(eager)
    COUNTER.depth = 0
    for batch in (4, 6):
        wanted = step(eager, rows(batch)), gradients(eager)
        torch.testing.assert_close((step(model, rows(batch)), gradients(eager)), wanted, rtol=1e-4, atol=1e-4)


class Copied(nn.Module):
    """It reads what it has of a copy of itself, which `copy` makes without a look at any attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.own = nn.Linear(8, 8), types.SimpleNamespace(k=1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * copy.copy(self).own.k


def test_a_copy_of_a_block_is_a_look_at_all_of_it(seen: Seen) -> None:
    eager = Stack(Copied)
    for i, layer in enumerate(eager.layers):
        layer.own.k = 1.0 + i
    model = ORTModule(eager)
    for batch in (4, 6):
        wanted = step(eager, rows(batch)), gradients(eager)
        torch.testing.assert_close((step(model, rows(batch)), gradients(eager)), wanted)


# -- what changes afterwards ------------------------------------------------------------------------------------------


def scaled(block: Odd, x: torch.Tensor) -> float:
    return float(block.own.k * block.table[0])


def doubled(module: nn.Module, args: Any, result: torch.Tensor) -> torch.Tensor:
    return result * 2


CHANGES: dict[str, Callable[[Any], Any]] = {
    "an attribute": lambda block: setattr(block, "scale", 2.0),
    "an object of its own": lambda block: setattr(block.own, "k", 3.0),
    "a list of its own": lambda block: block.table.__setitem__(0, 3.0),
    "a method": lambda block: setattr(block, "forward", lambda x: x * 2),
    "a method below": lambda block: setattr(block.wide, "forward", lambda x: F.linear(x, block.wide.weight)),
    "a hook": lambda block: block.register_forward_hook(doubled),
    "a hook below": lambda block: block.back.register_forward_hook(doubled),
    "a module below": lambda block: setattr(block, "norm", nn.Identity()),
    "an attribute below": lambda block: setattr(block.norm, "eps", 1.0),
    "the mode": lambda block: block.train(),
    "a frozen weight": lambda block: block.wide.weight.requires_grad_(False),
    "a tied weight": lambda block: setattr(block.wide, "weight", block.everyone[0].wide.weight),
    "its class": lambda block: setattr(block, "__class__", type("Other", (Odd,), {"forward": lambda s, x: x * 3})),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_repeated_block_is_noticed(name: str, seen: Seen) -> None:
    eager = Stack(lambda: Odd(scaled)).eval()
    for layer in eager.layers:
        layer.everyone = [eager.layers[0]]
    model = ORTModule(eager, options=Options(dropout="torch"))
    step(model, rows(4))
    assert seen.repeated
    CHANGES[name](eager.layers[3])
    wanted = step(eager, rows(4)), gradients(eager)
    torch.testing.assert_close((step(model, rows(4)), gradients(eager)), wanted, rtol=1e-4, atol=1e-4)


def test_parts_of_blocks_are_repeated_where_the_whole_cannot_be(seen: Seen) -> None:
    """Each appends to a list that it is given, as to a cache of keys and values."""

    class Caching(Block):
        def forward(self, x: torch.Tensor, cache: Any = None) -> torch.Tensor:
            cache.append(x)
            return super().forward(x)

    class Caches(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            cache: list[torch.Tensor] = []
            for layer in self.layers:
                x = layer(x, cache)
            return x.sum() + sum(one.sum() for one in cache)

    eager = Caches(Caching).eval()
    wanted = step(eager, rows(4))
    torch.testing.assert_close(step(ORTModule(eager), rows(4)), wanted)
    assert seen.repeated  # the layers of the blocks


def test_gradients_inside_the_forward_are_not_of_repeated_blocks(seen: Seen) -> None:
    class Penalty(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.detach().requires_grad_()
            loss = super().forward(x)
            return loss + torch.autograd.grad(loss, x, create_graph=True)[0].square().sum()

    eager = Penalty().eval()
    wanted = step(eager, rows(4))
    with pytest.warns(UserWarning, match="PyTorch"):
        torch.testing.assert_close(step(ORTModule(eager), rows(4)), wanted)
