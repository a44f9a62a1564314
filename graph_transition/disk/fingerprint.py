"""What decides the outcome of tracing a module, as a digest: the Python code that its forward can reach, and its state.

Starting from the module's classes, functions are followed to the functions, classes and values that their bytecode
names: globals, attributes of Python modules, closures, defaults, methods. So a changed helper in another file, a
patched method, a changed global all change the digest, and an unrelated line of the training script does not. It covers
more than what will run, as far as names can tell. What cannot be told by value (open files, tensors in globals, random
numbers of Python) raises `Unkeyable`, and then nothing is cached. Reading of bytecode is in code_facts.py.

Note [Three kinds of code]
The user's code is followed by name: a method of a reached class counts if its name occurs in any reached function.
Installed packages (site-packages) stand for their version (key.py), but may be patched: what a forward calls by
`self.x` and by global names is followed there too, other methods are not, and values that cannot be told stand for
their type. The standard library, torch, numpy, sympy, onnx and this package stand for their version alone; only
functions put into torch's classes from outside are followed.
"""

from __future__ import annotations

import argparse
import contextlib
import contextvars
import enum
import hashlib
import logging
import pathlib
import re
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any

import numpy
import torch

from ...naming import module_of
from ..code_digest import code_digest
from ..conditions.objects import instance_table, slots_of
from ..signature import hook_tables
from .code_facts import (
    Unkeyable,
    callable_parts,
    cell_content,
    file_origin,
    functions_in,
    global_names,
    globals_read,
    is_patch,
    names_in,
    origin_of,
)

__all__ = ["Fingerprint", "tensor_facts"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), torch.dtype, torch.device, torch.Size,
          torch.layout, torch.memory_format, range)  # fmt: skip
# Objects that hold nothing a forward computes with.
_SILENT = (logging.Logger, logging.LoggerAdapter, type(threading.Lock()), type(threading.RLock()))
_DYNAMIC = {"eval", "exec", "globals", "__import__", "open", "input"}
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
_REPR_MODULES = {"torch", "torch._C", "decimal", "fractions", "datetime", "uuid"}
_RANDOM = {"random", "numpy.random", "secrets"}
# State of nn.Module that is described elsewhere, or that no forward reads.
_BOOKKEEPING = frozenset(vars(torch.nn.Module())) - {"training"}
_MAX_DEPTH = 24
_MAX_TENSOR_BYTES = 64 << 20


def tensor_facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a trace sees of a tensor, its sizes and strides apart."""
    return (
        type(tensor).__qualname__, str(tensor.dtype), str(tensor.device), str(tensor.layout), tensor.requires_grad,
        tensor.is_leaf, tensor.is_inference(), tensor.is_conj(), tensor.is_neg(),
    )  # fmt: skip


class Fingerprint:
    """The fingerprint of one module and of further values given to `add`.

    Raises:
        Unkeyable: from any method.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._tree = {id(m): name for name, m in module.named_modules(remove_duplicate=True)}
        self._module = module
        self._names: set[str] = {"forward"}  # every name in reached code, and what torch calls by itself
        self._numbers: dict[int, int] = {}
        self._entities: list[Any] = []  # functions, classes, objects; their number is their place
        self._entries: list[Any] = []
        self._built: set[int] = set()  # classes that reached code may instantiate
        self._types: dict[type, set[str]] = {type(m): {"forward", "__call__"} for m in module.modules()}
        self._extra: list[Any] = []
        self._reached: set[str] = set()
        self._lenient = False  # inside an installed package

    def add(self, value: Any) -> None:
        """Makes `value` part of the fingerprint."""
        self._extra.append(value)

    @property
    def packages(self) -> list[str]:
        """Top-level packages whose code was reached; complete after `digest`."""
        return sorted({name.partition(".")[0] for name in self._reached})

    @property
    def names(self) -> frozenset[str]:
        """Every name, and every string that looks like one, in reached code; complete after `digest`."""
        return frozenset(self._names)

    def digest(self) -> str:
        """SHA-256 in hex."""
        before = None
        while before != (len(self._entities), len(self._names)):
            before = (len(self._entities), len(self._names))
            types_ = [self._type_in_tree(cls, names) for cls, names in self._types.items()]
            state = [self._module_state(name, m) for name, m in self._module.named_modules(remove_duplicate=True)]
            extra = [self._describe(v, "the call") for v in self._extra]
            number = 0
            while number < len(self._entities):
                self._describe_entity(number)
                number += 1
        text = repr((types_, state, extra, self._entries))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    # -- modules ----------------------------------------------------------------------------------------------------

    def _type_in_tree(self, cls: type, names: set[str]) -> tuple[Any, ...]:
        """A sub-module's class with the methods that its forward calls on itself."""
        members: dict[tuple[str, str], Any] = {}
        known = -1
        while known != len(names):
            known = len(names)
            for base in cls.__mro__:
                origin = origin_of(module_of(base))
                for name, value in list(vars(base).items()):
                    if (base.__qualname__, name) in members or (name not in names and origin != "versioned"):
                        continue
                    if origin == "versioned" and not is_patch(value):
                        continue
                    with self._inside(origin):
                        members[base.__qualname__, name] = self._describe(value, f"{name} of {base.__qualname__}")
                    for function in functions_in(value):
                        names.update(names_in(function.__code__))
        return (self._reference(cls), members)

    def _module_state(self, name: str, module: torch.nn.Module) -> tuple[Any, ...]:
        if isinstance(module, torch.jit.ScriptModule):
            raise Unkeyable(f"'{name}' is a ScriptModule")
        where = f"attribute of module '{name}'" if name else "attribute of the module"
        named = self._types[type(module)]
        own = [
            (key, self._attribute(value, f"{where}: {key}"))
            for key, value in vars(module).items()
            if key not in _BOOKKEEPING and (_is_plain(value) or key in self._names or key in named)
        ]
        hooks = [[self._describe(hook, f"hook of '{name}'") for hook in t.values()] for t in hook_tables(module)]
        with_kwargs = [hook in module._forward_hooks_with_kwargs for hook in module._forward_hooks]
        with_kwargs += [hook in module._forward_pre_hooks_with_kwargs for hook in module._forward_pre_hooks]
        with_kwargs += [hook in module._forward_hooks_always_called for hook in module._forward_hooks]
        children = [(key, self._tree.get(id(m))) for key, m in module._modules.items()]
        return (name, self._reference(type(module)), own, hooks, with_kwargs, children)

    def _attribute(self, value: Any, where: str) -> Any:
        if isinstance(value, torch.Tensor):
            if value.nbytes > _MAX_TENSOR_BYTES:
                raise Unkeyable(f"{where} is a large tensor that is no buffer")
            return (tensor_facts(value), tuple(value.shape), value.stride(), _tensor_digest(value))
        if type(value) in (list, tuple):
            return (type(value).__name__, [self._attribute(v, where) for v in value])
        return self._describe(value, where)

    # -- values -----------------------------------------------------------------------------------------------------

    def _describe(self, value: Any, where: str, depth: int = 0) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return (kind.__name__, repr(value))
        try:
            return self._describe_object(value, kind, where, depth)
        except Unkeyable:
            if not self._lenient:
                raise
            return ("opaque", kind.__qualname__)

    def _describe_object(self, value: Any, kind: type, where: str, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise Unkeyable(f"{where} is nested too deeply")
        if issubclass(kind, types.FunctionType | type):
            return self._reference(value)
        if issubclass(kind, enum.Enum):
            return ("enum", self._reference(kind), value.name)
        if issubclass(kind, torch.nn.Module):
            if id(value) not in self._tree:
                raise Unkeyable(f"{where} is a {kind.__name__} that is no sub-module")
            return ("module", self._tree[id(value)])
        if issubclass(kind, torch.Tensor):
            raise Unkeyable(f"{where} is a tensor that is neither parameter nor buffer")
        if issubclass(kind, list | tuple | dict | set | frozenset | types.MappingProxyType):
            return self._container(value, where, depth + 1)
        if issubclass(kind, _SILENT):
            return ("silent", kind.__qualname__)
        if issubclass(kind, weakref.ref):
            return ("weakref", self._describe(value(), where, depth + 1))
        if issubclass(kind, contextvars.ContextVar):
            return ("context", value.name, self._describe(value.get(None), where, depth + 1))
        if issubclass(kind, threading.local):
            return ("local", self._describe(dict(value.__dict__), where, depth + 1))
        if issubclass(kind, types.ModuleType):
            if value.__name__ in _RANDOM:
                raise Unkeyable(f"{where} refers to the module '{value.__name__}'")
            return ("python module", value.__name__)
        parts = callable_parts(value)
        if parts is not None:
            return (kind.__name__, [self._describe(p, where, depth + 1) for p in parts])
        if issubclass(kind, types.GenericAlias | types.UnionType) or module_of(kind) == "typing":
            return ("typing", repr(value))
        if issubclass(kind, re.Pattern | pathlib.PurePath) or module_of(kind) in _REPR_MODULES:
            text = repr(value)
            if " at 0x" not in text:
                return (kind.__name__, text)
        if issubclass(kind, numpy.ndarray | numpy.generic) and not value.dtype.hasobject:
            return ("numpy", str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).hexdigest())
        if issubclass(kind, torch._ops.OpOverload | torch._ops.OpOverloadPacket | torch._ops._OpNamespace):
            return ("operator", str(value))
        known = instance_table(value) is not None or bool(slots_of(value))
        outside = module_of(kind) in _REPR_MODULES or module_of(kind).partition(".")[0] in sys.stdlib_module_names
        if not known or (outside and module_of(kind) != "__main__" and kind not in _NAMESPACES):
            raise Unkeyable(f"{where} holds a value of type {module_of(kind)}.{kind.__qualname__}")
        return self._reference(value)

    def _container(self, value: Any, where: str, depth: int) -> Any:
        kind = type(value)
        label: Any = kind.__name__ if module_of(kind) in ("builtins", "collections") else self._reference(kind)
        if isinstance(value, (list, tuple)):
            return (label, [self._describe(v, where, depth) for v in value])
        if isinstance(value, (set, frozenset)):
            return (label, sorted(repr(self._describe(v, where, depth)) for v in value))
        items = dict(value).items()  # a subclass may compute its values when asked for them
        return (label, [(self._describe(k, where, depth), self._describe(v, where, depth)) for k, v in items])

    def _reference(self, value: Any) -> tuple[str, int]:
        """The number of a function, class or object, which gets an entry of its own."""
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._entities)
            self._entities.append(value)
            self._entries.append(None)
        return ("see", number)

    def _describe_entity(self, number: int) -> None:
        value = self._entities[number]
        kind = type(value)
        if issubclass(kind, types.FunctionType):
            if self._entries[number] is None:
                with self._inside(file_origin(value.__code__.co_filename)):
                    self._entries[number] = self._function(value)
        elif issubclass(kind, type):
            with self._inside(origin_of(module_of(value))):
                self._entries[number] = self._class(value)
        else:
            with self._inside(origin_of(module_of(kind))):
                self._entries[number] = (
                    self._reference(kind),
                    self._object(value, f"an object of {kind.__qualname__}"),
                )

    def _object(self, value: Any, where: str) -> list[Any]:
        own: dict[str, Any] = dict(instance_table(value) or {})
        own.update(slots_of(value))
        kept = [(key, v) for key, v in own.items() if _is_plain(v) or key in self._names]
        return [(key, self._describe(v, f"{where}: {key}")) for key, v in kept]

    @contextlib.contextmanager
    def _inside(self, origin: str) -> Iterator[None]:
        before, self._lenient = self._lenient, origin != "user"
        try:
            yield
        finally:
            self._lenient = before

    # -- code -------------------------------------------------------------------------------------------------------

    def _function(self, function: types.FunctionType) -> tuple[Any, ...]:
        label = f"{module_of(function)}:{function.__qualname__}"
        closure = [self._describe(cell_content(c), f"the closure of {label}") for c in function.__closure__ or ()]
        code = function.__code__
        if file_origin(code.co_filename) == "versioned":
            return (label, code.co_name, closure)
        self._reached.add(module_of(function))
        names = list(names_in(code))
        self._names.update(names)
        defaults = self._describe((function.__defaults__, function.__kwdefaults__), f"a default of {label}")
        if not self._lenient:
            dynamic = _DYNAMIC.intersection(global_names(code)).difference(function.__globals__)
            if dynamic:
                raise Unkeyable(f"{label} calls {', '.join(sorted(dynamic))}")
        reached = [(n, self._global(v, names, f"{n} in {label}")) for n, v in globals_read(function)]
        return (label, code_digest(code), defaults, closure, reached)

    def _global(self, value: Any, names: list[str], where: str) -> Any:
        if isinstance(value, type):
            self._built.add(id(value))
        if type(value) is not types.ModuleType:
            return self._describe(value, where)
        found: list[Any] = []
        pending, visited = [value], set()
        while pending:
            module = pending.pop()
            described = self._describe(module, where)
            if id(module) in visited or module.__name__.partition(".")[0] in sys.stdlib_module_names:
                found.append(described)
                continue
            visited.add(id(module))
            for name in names:
                inner = vars(module).get(name)
                if type(inner) is types.ModuleType:
                    pending.append(inner)
                elif inner is not None:
                    found.append((module.__name__, name, self._global(inner, names, f"{name} in {where}")))
        return (value.__name__, found)

    def _class(self, cls: type) -> tuple[Any, ...]:
        label = f"{module_of(cls)}:{cls.__qualname__}"
        if origin_of(module_of(cls)) != "user":
            return (label,)
        self._reached.add(module_of(cls))
        members = [
            (name, self._describe(value, f"{name} of class {cls.__qualname__}"))
            for name, value in list(vars(cls).items())
            if self._matters(cls, name, value)
        ]
        return (label, [self._reference(base) for base in cls.__bases__], members)

    def _matters(self, cls: type, name: str, value: Any) -> bool:
        if name in self._names:
            return True
        if not (name.startswith("__") and name.endswith("__") and isinstance(value, types.FunctionType)):
            return False
        return id(cls) in self._built or name not in ("__init__", "__new__", "__post_init__", "__init_subclass__")


def _is_plain(value: Any) -> bool:
    if type(value) in _PLAIN:
        return True
    if type(value) in (list, tuple, set, frozenset):
        return all(map(_is_plain, value))
    return type(value) is dict and all(map(_is_plain, value)) and all(map(_is_plain, value.values()))


def _tensor_digest(tensor: torch.Tensor) -> str:
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"").hexdigest()
