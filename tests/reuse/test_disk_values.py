"""An entry of the cache on disk is used where a program's values are what they were, wherever it keeps them.

A program is imported anew for each start, as another process would, with the same code and a value of its own.
"""

from __future__ import annotations

import decimal
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch

from ortmodule import Options, ORTModule
from ortmodule.graph_transition.disk import code_facts
from tests.reuse.test_disk_key import load

PROGRAM = """
import collections, decimal, enum, functools, logging, sys, threading, types
import numpy
import torch
import torch.nn as nn
import start_of_test
value = start_of_test.value
{setup}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
    def forward(self, x):
        return self.linear(x) * {read}
"""
# Where the value is, and how the forward reads it.
PLACES = {
    "a global": ("", "value"),
    "a dictionary": ("g = {'k': value}", "g['k']"),
    "a list of dictionaries": ("g = [{'k': value}]", "g[0]['k']"),
    "a set": ("g = {value}", "sum(g)"),
    "a short array": ("g = numpy.array([value])", "float(g[0])"),
    "an object": ("g = types.SimpleNamespace(a=value)", "g.a"),
    "a class": ("class G: a = value", "G.a"),
    "a number of a derived class": ("class G(float): pass\ng = G(value)", "float(g)"),
    "a context variable": ("import contextvars\ng = contextvars.ContextVar('g')\ng.set(value)", "g.get()"),
    "a thread-local object": ("g = threading.local()\ng.a = value", "g.a"),
    "a partial": ("def f(a): return a\ng = functools.partial(f, value)", "g()"),
    "a variable around a function": ("def f(a):\n    return lambda: a\ng = f(value)", "g()"),
    "a default": ("def g(a=value): return a", "g()"),
    "what a cached function was asked": (
        "@functools.lru_cache\ndef g(a, *, b): return value\ng(1, b=2)\ng('a', b=str(value))",
        "g(1, b=2)",
    ),
    "what one without a bound was asked": ("@functools.cache\ndef g(a): return (value, a)\ng(1)", "g(1)[0]"),
    "a slot": ("class G: __slots__ = ('a',)\ng = G()\ng.a = value", "g.a"),
    "a member of an enum": ("class G(enum.Enum):\n    A = 1.0\n    B = 2.0\ng = G(value)", "g.value"),
    "the code of a function that a context variable begins with": (
        "import contextvars\n"
        "def one(): return 1.0\n"
        "def two(): return 2.0\n"
        "one.__code__ = one.__code__ if value == 1 else two.__code__\n"
        "g = contextvars.ContextVar('g', default=one)",
        "g.get()()",
    ),
    "whether two are one": (
        "class G: pass\na, b = G(), G()\nheld = types.ModuleType('held')\nheld.g = (a, b) if value == 1 else (a, a)",
        "(1.0 if held.g[0] is held.g[1] else 2.0)",
    ),
    "the order of a dictionary": (
        "g = dict(sorted({'a': 1.0, 'b': 2.0}.items(), reverse=value == 2))",
        "next(iter(g.values()))",
    ),
    "which function": ("g = torch.relu if value == 1 else torch.tanh", "g(torch.tensor(2.0))"),
    "which class": ("g = nn.ReLU if value == 1 else nn.Tanh", "g()(torch.tensor(2.0))"),
    "the command line": ("sys.argv[1:] = [value]", "sys.argv[1]"),
    "the recursion limit": ("sys.setrecursionlimit(5000 + int(value))", "float(sys.getrecursionlimit())"),
    "a logger": (
        "g = logging.getLogger('of_a_test')\ng.setLevel(int(10 * value))",
        "(2.0 if g.isEnabledFor(10) else 1.0)",
    ),
    "the arithmetic of decimal": (
        "decimal.getcontext().prec = 3 * int(value)",
        "float(decimal.Decimal(1) / decimal.Decimal(3))",
    ),
    "the settings of numpy": (
        "numpy.seterr(divide='warn' if value == 1 else 'ignore')",
        "(1.0 if numpy.geterr()['divide'] == 'warn' else 2.0)",
    ),
    "threads": ("torch.set_num_threads(int(value))", "torch.get_num_threads()"),
    "a dtype of autocast": (
        "torch.set_autocast_dtype('cpu', torch.bfloat16 if value == 1 else torch.float16)",
        "(1.0 if torch.get_autocast_dtype('cpu') == torch.bfloat16 else 2.0)",
    ),
    "an autocast that is kept": (
        "g = torch.autocast('cpu', dtype=torch.bfloat16 if value == 1 else torch.float16)",
        "(1.0 if g.fast_dtype == torch.bfloat16 else 2.0)",
    ),
    "the name of a class": ("class G: pass\nG.__name__ = 'G' * int(value)", "len(G.__name__)"),
    "an operator of tensors": (
        "if value == 2: torch.Tensor.__neg__ = lambda x: x + 1",
        "(-x)",
    ),
    "an attribute of a parameter": (
        "",
        "getattr(self.linear.weight, 'a', 1.0)",
    ),
    "a setting of a backend": (
        "torch.backends.cudnn.set_flags(_benchmark=value == 1)",
        "(1.0 if torch.backends.cudnn.benchmark else 2.0)",
    ),
}

# What runs in PyTorch then.
NOT_CAPTURED = ("an attribute of a parameter",)


@pytest.fixture(autouse=True)
def settings_as_they_were() -> Iterator[None]:
    argv, limit, prec = list(sys.argv), sys.getrecursionlimit(), decimal.getcontext().prec
    threads, dtype = torch.get_num_threads(), torch.get_autocast_dtype("cpu")
    benchmark, errors = torch.backends.cudnn.benchmark, numpy.geterr()
    negated = torch.Tensor.__neg__
    yield
    torch.Tensor.__neg__ = negated
    sys.argv[:] = argv
    sys.setrecursionlimit(limit)
    decimal.getcontext().prec = prec
    torch.set_num_threads(threads)
    torch.set_autocast_dtype("cpu", dtype)
    torch.backends.cudnn.set_flags(_benchmark=benchmark)
    numpy.seterr(**errors)
    logging.getLogger("of_a_test").setLevel(logging.NOTSET)


@pytest.mark.parametrize("place", PLACES)
def test_an_entry_is_used_where_the_value_is_the_same(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup, read = PLACES[place]
    cached = []
    for value in (1, 1, 2):
        code_facts.origin_of.cache_clear()
        load("start_of_test", f"value = {value}.0", monkeypatch)
        program = load("program_of_test", PROGRAM.format(setup=setup, read=read), monkeypatch)
        torch.manual_seed(0)
        eager = program.Net()
        if value == 2 and place == "an attribute of a parameter":
            eager.linear.weight.a = 2.0
        model = ORTModule(eager, options=Options(cache_dir=tmp_path))
        x = torch.randn(2, 3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.testing.assert_close(model(x), eager(x))
        cached.append([export.cached for export in model.report().exports])
    assert cached[:2] == [[False], [True]]
    assert cached[2] == ([] if place in NOT_CAPTURED else [False])
