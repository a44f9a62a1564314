"""Classes and functions that programs use: each is written into the program's own file, if it is named there."""

from __future__ import annotations

import re

__all__ = ["IMPORTS", "needed"]

IMPORTS = """\
import argparse, array, builtins, collections, contextlib, contextvars, copy, dataclasses, datetime, decimal, enum
import functools, importlib, itertools, logging, math, operator, os, pathlib, random, re, secrets, sys, threading, time
import types, uuid, warnings, weakref
from decimal import Decimal
from fractions import Fraction
import numpy as np
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
import torch.nn.utils.parametrizations, torch.nn.utils.parametrize, torch.nn.utils.prune
from torch import nn
"""

_DEFINITIONS = """\
class Plain:
    def __init__(self, k):
        self.k = k
    def get(self):
        return self.k

class Other(Plain):
    k = property(lambda self: 9.0, lambda self, value: None)

class Slots:
    __slots__ = ("k", "z")
    def __init__(self, k):
        self.k = k

class SlotsToo:
    __slots__ = ("k", "__dict__")
    def __init__(self, k):
        self.k = k

@dataclasses.dataclass
class Data:
    k: object
    z: float = 7.0

@dataclasses.dataclass(slots=True)
class SlotsData:
    k: object

@dataclasses.dataclass(frozen=True)
class Frozen:
    k: object

Pair = collections.namedtuple("Pair", ["k", "z"])

class Typed(collections.namedtuple("Typed", "k")):
    pass

class AttrDict(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__

class ListSub(list):
    pass

class DictSub(dict):
    pass

class TupleSub(tuple):
    pass

class FloatSub(float):
    pass

class StrSub(str):
    pass

class Missing(dict):
    def __missing__(self, key):
        return self["z"]

class Prop:
    def __init__(self, k):
        self._k = k
    @property
    def k(self):
        return self._k

class Getter:
    def __init__(self, kept):
        self.kept = kept
    def __getattr__(self, name):
        try:
            return self.__dict__["kept"][name]
        except KeyError:
            raise AttributeError(name) from None

class Mapped:
    names = {"k": "real_k"}
    other = 9.0
    def __init__(self, k):
        self.real_k = k
    def __getattribute__(self, name):
        return super().__getattribute__(Mapped.names.get(name, name))

class Items:
    def __init__(self, kept):
        self.kept = kept
    def __getitem__(self, key):
        return self.kept[key]

class Series:
    def __init__(self, kept):
        self.kept = kept
    def __len__(self):
        return len(self.kept)
    def __iter__(self):
        return iter(self.kept)

class Same(Plain):
    def __eq__(self, other):
        return True
    def __hash__(self):
        return 1

class Caller:
    def __init__(self, k):
        self.k = k
    def __call__(self):
        return self.k

class Held(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

class Reader:
    def __init__(self, k):
        self.k = k
    def __get__(self, instance, owner):
        return self.k

class Mode(enum.Enum):
    A = 2.0
    B = 3.0
    C = 0.5

class Bits(enum.IntFlag):
    A = 1
    B = 2

def module_of(k):
    made = types.ModuleType("made")
    made.k = k
    return made

def object_array(value):
    made = np.empty(1, dtype=object)
    made[0] = value
    return made

def ident(v):
    return v

def through(v):
    return ident(v)

def first(v, *rest, **more):
    return v

@contextlib.contextmanager
def holding(v):
    yield v

class Scope:
    def __init__(self, v):
        self.v = v
    def __enter__(self):
        return self.v
    def __exit__(self, *error):
        return False

def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper

def produced(v):
    yield v

def double(y):
    return y * 2.0

def triple(y, k=3.0):
    return y * k

def plus(y):
    return y + 1.0

def make_layer(seed, cls=nn.Linear, *args):
    torch.manual_seed(seed)
    return cls(*(args or (4, 4)))

class TwiceMode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func in (torch.tanh, torch.exp) else result

class PlusMode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result + 1 if func in (torch.tanh, torch.exp) else result

class TwiceDispatch(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func in (torch.ops.aten.tanh.default, torch.ops.aten.exp.default) else result

@contextlib.contextmanager
def both(one, other):
    with one, other:
        yield

def times(result, k):
    if isinstance(result, tuple):
        return tuple(times(r, k) for r in result)
    return result * k if isinstance(result, torch.Tensor) else result

def function_of(k):
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            return y * k
        @staticmethod
        def backward(ctx, given):
            return given * k * 10
    return Scaled

def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()

def set_default(function, name, value):
    names = function.__code__.co_varnames[: function.__code__.co_argcount][-len(function.__defaults__) :]
    function.__defaults__ = tuple(value if n == name else d for n, d in zip(names, function.__defaults__))

def get_default(function, name):
    names = function.__code__.co_varnames[: function.__code__.co_argcount][-len(function.__defaults__) :]
    return dict(zip(names, function.__defaults__))[name]

by_name = getattr

has_name = hasattr

names_of = vars

listed = dir

scope_of = globals

CACHE = {}
"""


def _split() -> dict[str, str]:
    found = {}
    for text in _DEFINITIONS.split("\n\n"):
        match = re.search(r"^(?:class |def )?(\w+)", re.sub(r"^@.*\n", "", text))
        assert match is not None
        found[match[1]] = text.strip("\n")
    return found


DEFINITIONS = _split()


def needed(source: str) -> dict[str, str]:
    """The definitions that a source names, and those that these name, by name."""
    wanted: set[str] = set()
    text = source
    while True:
        more = {name for name in DEFINITIONS if name not in wanted and re.search(rf"\b{name}\b", text)}
        if not more:
            return {name: DEFINITIONS[name] for name in DEFINITIONS if name in wanted}
        wanted |= more
        text = "\n".join(DEFINITIONS[name] for name in more)
