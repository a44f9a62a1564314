"""What a program keeps in objects of Python's library, and of packages that torch itself calls, and asks of them.

What changes there is heard, or the forward runs in PyTorch. Not here: torch's own (test_state_in_torch.py).
"""

from __future__ import annotations

import copy
import copyreg
import importlib.resources
import logging
import typing
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import networkx
import pytest
import torch
import torch.nn as nn

from ortmodule import Options, ORTModule


@typing.runtime_checkable
class Scaled(typing.Protocol):
    scale: float


@typing.runtime_checkable
class Going(typing.Protocol):
    def go(self) -> None: ...


class Holder:
    first: int = 1


LOGGER, HELD = logging.getLogger("ortmodule.tests.asked"), Holder()
GRAPH, TEMPLATE = networkx.DiGraph([(0, 1), (1, 2)]), jinja2.Template("{{ word }}s")
GRAPH.nodes[1]["weight"] = 2.0


def weigh(value: float) -> None:
    GRAPH.nodes[1]["weight"] = value


def annotate(name: str) -> None:
    Holder.__annotations__[name] = float


# What a forward asks, and what changes the answer, one change after the other.
ASKED: dict[str, tuple[Callable[[], float], tuple[Callable[[], Any], ...]]] = {
    "a protocol's attribute": (
        lambda: 2.0 if isinstance(HELD, Scaled) else 3.0,
        (lambda: setattr(HELD, "scale", 1.0), lambda: delattr(HELD, "scale")),
    ),
    "a protocol's method": (
        lambda: 2.0 if isinstance(HELD, Going) else 3.0,
        (lambda: setattr(Holder, "go", lambda self: None), lambda: delattr(Holder, "go")),
    ),
    "type hints": (lambda: len(typing.get_type_hints(Holder)), (lambda: annotate("second"), lambda: annotate("third"))),
    "a logger's handlers": (
        lambda: 1.0 + len(LOGGER.handlers),
        (lambda: LOGGER.addHandler(logging.NullHandler()), LOGGER.handlers.clear),
    ),
    "whether a logger has handlers": (
        lambda: 2.0 if LOGGER.hasHandlers() else 3.0,
        (lambda: setattr(LOGGER, "propagate", False), lambda: LOGGER.addHandler(logging.NullHandler())),
    ),
    "a logger's own attribute": (
        lambda: getattr(LOGGER, "factor", 1.0) * (2.0 if LOGGER.propagate else 3.0),
        (lambda: setattr(LOGGER, "factor", 4.0), lambda: setattr(LOGGER, "propagate", False)),
    ),
    "a graph": (
        lambda: GRAPH.number_of_nodes() * (2.0 if networkx.is_directed_acyclic_graph(GRAPH) else 3.0),
        (lambda: GRAPH.add_edge(2, 5), lambda: GRAPH.add_edge(5, 0)),
    ),
    "a graph's node": (lambda: GRAPH.nodes[1]["weight"], (lambda: weigh(5.0), lambda: weigh(7.0))),
    "a template": (
        lambda: len(TEMPLATE.render(word="x" * int(vars(HELD).get("length", 1)))),
        (lambda: setattr(HELD, "length", 4), lambda: setattr(HELD, "length", 6)),
    ),
}  # fmt: skip


class Net(nn.Module):
    def __init__(self, ask: Callable[[], float]) -> None:
        super().__init__()
        self.linear, self.ask = nn.Linear(4, 4), ask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.ask()


@pytest.fixture(autouse=True)
def kept_logger() -> Any:
    held, handlers = dict(vars(LOGGER)), list(LOGGER.handlers)
    yield
    vars(LOGGER).clear()
    vars(LOGGER).update(held)
    LOGGER.handlers[:] = handlers


@pytest.mark.parametrize("what", ASKED)
def test_what_changes_there_is_heard(what: str) -> None:
    ask, changes = ASKED[what]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager, x = Net(ask), torch.randn(2, 4)
        model = ORTModule(copy.deepcopy(eager))
        for change in (lambda: None, *changes):
            change()
            for _ in range(2):
                torch.testing.assert_close(model(x), eager(x), msg=what)


def test_a_file_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept_numbers").mkdir()
    (tmp_path / "kept_numbers" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "kept_numbers" / "factor.txt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager = Net(lambda: float((importlib.resources.files("kept_numbers") / "factor.txt").read_text()))
        model, x = ORTModule(copy.deepcopy(eager)), torch.randn(2, 4)
        for factor in ("2.0", "3.0"):
            file.write_text(factor)
            torch.testing.assert_close(model(x), eager(x))


def test_what_copying_notes_of_a_class_is_no_change_of_it() -> None:
    eager = Net(lambda: float(HELD.first))
    model, x = ORTModule(copy.deepcopy(eager), options=Options(fallback="error")), torch.randn(2, 4)
    model(x)
    for kind in (Holder, Net, torch.Tensor, nn.Linear, nn.Module):
        if "__slotnames__" in vars(kind):
            del kind.__slotnames__
        copyreg._slotnames(kind)  # type: ignore[attr-defined]
    torch.testing.assert_close(model(x), eager(x))
    assert len(model.report().exports) == 1
