"""What hangs on where a call is made: the exception that its caller handles, the thread, the callers themselves."""

from __future__ import annotations

import gc
import locale
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn

from ortmodule import Options, ORTModule
from ortmodule.errors import ORTModuleError

X = torch.ones(2, 4)
MAIN = threading.main_thread().ident


class Net(nn.Module):
    def __init__(self, ask: Callable[[], float]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.ask = ask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.ask()


def handled() -> float:
    return 1.0 if sys.exc_info()[0] is None else 2.0


def written() -> float:
    return 2.0 if "ValueError" in traceback.format_exc() else 1.0


@pytest.mark.parametrize("ask", [handled, written])
def test_the_exception_that_a_caller_handles(ask: Callable[[], float]) -> None:
    eager = Net(ask)
    model = ORTModule(eager)
    for _ in range(2):
        torch.testing.assert_close(model(X), eager(X))
    try:
        raise ValueError
    except ValueError:
        inside, expected = model(X), eager(X)
    torch.testing.assert_close(inside, expected)
    assert not torch.equal(expected, eager(X))


def test_a_graph_is_of_one_thread_where_the_forward_asks_for_it() -> None:
    eager = Net(lambda: 1.0 if threading.get_ident() == MAIN else 2.0)
    model = ORTModule(eager, options=Options(fallback="error"))
    found: dict[str, Any] = {}
    for _ in range(2):
        torch.testing.assert_close(model(X), eager(X))
    thread = threading.Thread(target=lambda: found.update(ours=model(X), eager=eager(X)))
    thread.start()
    thread.join()
    torch.testing.assert_close(found["ours"], found["eager"])
    assert not torch.equal(found["eager"], eager(X))


@pytest.mark.parametrize(
    "ask",
    [
        lambda: len(traceback.extract_stack()),
        lambda: len(nn.Module.__subclasses__()),
        lambda: weakref.getweakrefcount(MAIN) + 1,
        lambda: len(locale.setlocale(locale.LC_ALL)),
    ],
    ids=["the stack", "subclasses", "weak references", "the locale"],
)
def test_what_cannot_be_watched_is_refused(ask: Callable[[], float]) -> None:
    with pytest.raises(ORTModuleError):
        ORTModule(Net(ask), options=Options(fallback="error"))(X)


def test_a_function_that_another_library_has_bound_by_pybind11_is_refused() -> None:
    contourpy = pytest.importorskip("contourpy")  # comes with matplotlib
    with pytest.raises(ORTModuleError, match="max_threads, a C function"):
        ORTModule(Net(contourpy.max_threads), options=Options(fallback="error"))(X)
    vouched = Options(fallback="error", vouched=(contourpy.max_threads,))
    torch.testing.assert_close(ORTModule(eager := Net(contourpy.max_threads), options=vouched)(X), eager(X))


def test_an_error_of_the_module_is_raised_as_in_eager() -> None:
    """Nothing of the refused capture is told as its context."""

    def ask() -> float:
        sys.exc_info()
        raise KeyError("of the module")

    with pytest.raises(KeyError, match="of the module") as raised:
        ORTModule(Net(ask))(X)
    assert raised.value.__context__ is None
    del raised
    gc.collect()
