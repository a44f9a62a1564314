"""What a call shows: its result, gradients, inputs and all state that is left behind, as a flat table of copies.

`rendered` walks Python objects by content, each once: a second way to the same object is noted as such, so that two
lists that were one are seen. Names of nn.Module's and autograd's own are left out.
"""

from __future__ import annotations

import array
import collections
import contextvars
import enum
import functools
import re
import threading
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

__all__ = ["Table", "rendered"]

Table = dict[str, Any]
_MODULE_NAMES = frozenset(nn.Module().__dict__) - {"training", "_parameters", "_buffers", "_modules"}
_OF_WRAPPERS = ("_is_torch_compile", "__")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_SIMPLE = (
    int,
    float,
    complex,
    str,
    bytes,
    bool,
    type(None),
    range,
    type(Ellipsis),
    torch.dtype,
    torch.device,
    np.generic,
)
_GENERATORS = (np.random.Generator, np.random.BitGenerator, np.random.RandomState)
_OPAQUE = (
    types.ModuleType,
    types.BuiltinFunctionType,
    types.CodeType,
    types.FrameType,
    torch.Generator,
    type(threading.Lock()),
)


class _Walk:
    def __init__(self, own: Iterable[str]) -> None:
        self.own = sorted(own, key=len, reverse=True)  # names of the modules whose classes and functions are walked
        self.seen: dict[int, str] = {}
        self.kept: list[Any] = []  # so that an id stays one object's
        self.table: Table = {}

    def name(self, text: str) -> str:
        for name in self.own:
            text = text.replace(name, "program")
        return text

    def walk(self, path: str, value: Any) -> None:
        # Numbers and texts by what they are: whether two are one object is nobody's promise.
        if isinstance(value, _SIMPLE) and type(value).__module__ in ("builtins", "torch", "numpy"):
            self.table[path] = f"{type(value).__name__} {value!r}"
            return
        if id(value) in self.seen and not isinstance(value, torch.Tensor | tuple):
            self.table[path] = f"see {self.seen[id(value)]}"
            return
        self.seen[id(value)] = path
        self.kept.append(value)
        if isinstance(value, torch.Tensor):
            self.tensor(path, value)
            return
        self.table[path] = self.name(f"{type(value).__module__}.{type(value).__qualname__}")
        for name, child in self.children(value):
            self.walk(f"{path}{name}", child)

    def tensor(self, path: str, value: torch.Tensor) -> None:
        self.table[path] = ("tensor", value.detach().clone(), value.requires_grad, isinstance(value, nn.Parameter))
        if value.is_leaf and value.grad is not None:
            self.table[f"{path}.grad"] = ("tensor", value.grad.detach().clone(), False, False)
        for name, child in vars(value).items():
            if "dynamo" not in name:
                self.walk(f"{path}.{name}", child)

    def children(self, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, type):
            if value.__module__ in self.own:
                yield from (
                    (f".{n}", v)
                    for n, v in sorted(vars(value).items())
                    if not n.startswith("__")
                    and not isinstance(v, types.GetSetDescriptorType | types.MemberDescriptorType)
                )
            return
        if isinstance(value, types.FunctionType):
            yield from self.function(value)
            return
        if isinstance(value, _OPAQUE):
            return
        if isinstance(value, nn.Module):
            yield from (
                (f".{n}", v)
                for n, v in sorted(vars(value).items())
                if n not in _MODULE_NAMES and not n.startswith(_OF_WRAPPERS)
            )
            yield from ((f".{n}", len(getattr(value, n))) for n in _HOOKS)
            return
        yield from self.items(value)
        yield from self.attributes(value)

    def function(self, value: types.FunctionType) -> Iterator[tuple[str, Any]]:
        if value.__module__ not in self.own:
            return
        yield (
            ".code",
            repr((value.__code__.co_code, [c for c in value.__code__.co_consts if not isinstance(c, types.CodeType)])),
        )
        yield ".defaults", value.__defaults__
        yield ".kwdefaults", value.__kwdefaults__
        yield from ((f".{n}", v) for n, v in vars(value).items())
        for i, cell in enumerate(value.__closure__ or ()):
            try:
                yield f".cell{i}", cell.cell_contents
            except ValueError:
                yield f".cell{i}", "empty"

    def items(self, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict | types.MappingProxyType):
            yield ".len", len(value)
            yield from (
                (f"[{i}]", [k, v])
                for i, (k, v) in enumerate(dict.items(value) if isinstance(value, dict) else value.items())
            )
        elif isinstance(value, list | tuple | collections.deque | array.array):
            of = list if isinstance(value, list) else tuple if isinstance(value, tuple) else None
            yield ".len", len(value)
            yield from ((f"[{i}]", v) for i, v in enumerate(of.__iter__(value) if of else value))  # type: ignore[arg-type]
        elif isinstance(value, set | frozenset):
            yield ".elements", sorted(self.name(_element(v)) for v in value)
        elif isinstance(value, np.ndarray):
            yield ".array", f"{value.dtype} {value.shape} {value.tolist()!r}" if value.dtype != object else list(value)
        elif isinstance(value, bytearray | slice):
            yield ".repr", repr(value)
        elif isinstance(value, _GENERATORS):
            yield ".state", _state(value)
        elif isinstance(value, functools.partial):
            yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
        elif isinstance(value, types.MethodType):
            yield from ((".self", value.__self__), (".func", value.__func__))
        elif isinstance(value, property):
            yield ".fget", value.fget
        elif isinstance(value, staticmethod | classmethod):
            yield ".func", value.__func__
        elif isinstance(value, contextvars.ContextVar):
            yield ".value", value.get(None)
        elif isinstance(value, weakref.ref):
            yield ".object", value()
        elif type(value).__module__ in (
            "fractions",
            "decimal",
            "datetime",
            "pathlib",
            "re",
            "itertools",
        ) and not isinstance(value, weakref.ref):
            yield ".repr", repr(value) if type(value).__module__ != "itertools" else _position(value)
        elif type(value).__name__ == "list_iterator":
            yield ".left", value.__length_hint__()
        elif isinstance(value, types.GeneratorType):
            yield (
                ".state",
                "ended"
                if value.gi_frame is None
                else repr(
                    (
                        value.gi_frame.f_lasti,
                        {n: v for n, v in value.gi_frame.f_locals.items() if isinstance(v, int | float)},
                    )
                ),
            )

    def attributes(self, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, enum.Enum):
            yield ".value", value._value_
        try:
            own = object.__getattribute__(value, "__dict__")
        except AttributeError:
            own = {}
        if type(value).__module__.split(".")[0] not in ("torch", "numpy", "pathlib"):
            yield from ((f".{n}", v) for n, v in list(own.items()) if not str(n).startswith("__"))
        for cls in type(value).__mro__:
            slots = vars(cls).get("__slots__", ()) if cls.__module__ in self.own else ()
            for name in (slots,) if isinstance(slots, str) else slots:
                if name != "__dict__" and hasattr(value, name):
                    yield f".{name}", getattr(value, name)


def _element(value: Any) -> str:
    """An element of a set; a generator by its state, since its text tells an address."""
    text = f"{type(value).__name__} {_state(value)}" if isinstance(value, _GENERATORS) else repr(value)
    return re.sub(" at 0x[0-9a-f]+", "", text)


def _state(generator: Any) -> str:
    bits = generator.bit_generator if isinstance(generator, np.random.Generator) else generator
    return repr(bits.state if isinstance(bits, np.random.BitGenerator) else bits.get_state())


def _position(value: Any) -> str:
    return repr(value) if isinstance(value, type(iter(())) | __import__("itertools").count) else type(value).__name__


def rendered(own: Iterable[str], **roots: Any) -> Table:
    """Path -> a simple value's text, or a copy of a tensor, of all that is reached from the roots.

    Args:
        own: names of the modules whose classes and functions are walked as well.
    """
    walk = _Walk(own)
    for name, root in roots.items():
        walk.walk(name, root)
    return walk.table
