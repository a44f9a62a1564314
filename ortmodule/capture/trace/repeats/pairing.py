"""Which parts of two modules correspond: their sub-modules, tensors and containers, one to one.

Two modules pair where they are of one class and hold the same under the same names: sub-modules that pair, tensors of
one form, equal plain values, and otherwise the same objects. An attribute in which they differ (`layer_idx`) is told,
for whoever knows whether anybody has looked at it.

Not here: who has (side_outputs.py).
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import nn

from .... import _C
from ...torch_private import storage_of

__all__ = ["Pairs", "equal_plain", "form_of"]

_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
_OF_MODULE, _OF_CLASS = vars(nn.Module()), frozenset(vars(nn.Module))
_TENSORS = ("_parameters", "_buffers")
_ORDERED = (list, tuple)


class _Empty:
    pass


_OBJECT = _Empty.__basicsize__


def form_of(tensor: torch.Tensor) -> Any:
    """What of a tensor an operator's record can depend on, without its values and where they lie; symbolic sizes are
    compared by their expressions, without asking which number a symbol is.
    """
    form = _C.tensor_form(tensor)
    if form is not None:
        return type(tensor), getattr(tensor, "fake_device", None) or tensor.device, form
    kind = (type(tensor), tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad, tensor.is_leaf)
    return (*kind, tensor.is_conj(), tensor.is_neg(), _numbers(tensor.shape))


def _numbers(sizes: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(size.node.expr if isinstance(size, torch.SymInt) else size for size in sizes)


def equal_plain(one: Any, other: Any) -> bool | None:
    """Whether two plain values are equal, to the sign of a zero; None where they are no plain values."""
    if type(one) is not type(other) or not isinstance(one, _PLAIN):
        return None
    return one == other if not isinstance(one, (float, complex)) else repr(one) == repr(other)


class Pairs:
    """What of `first` corresponds to what of `other`.

    Attributes:
        fit: whether they pair.
        objects: by the identity of what `first` owns (modules, tensors, containers), what corresponds to it.
        tensors: the tensors of `first` in order, each with its own.
        differing: (module of `first`, attribute) of what is not the same.
    """

    def __init__(self, first: nn.Module, other: nn.Module) -> None:
        self.objects: dict[int, Any] = {}
        self.tensors: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.differing: set[tuple[nn.Module, str]] = set()
        self._back: dict[int, int] = {}
        self._memory: dict[int, int] = {}
        self._memory_back: dict[int, int] = {}
        self._modules: list[tuple[nn.Module, nn.Module]] = []
        self.fit = self._modules_fit(first, other)
        for one, two in self._modules if self.fit else ():
            self._compare_attributes(one, two)

    def tensors_fit(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Whether two tensors correspond: in form, and in which others they are or share memory with."""
        if form_of(one) != form_of(other):
            return False
        known = self.objects.get(id(one))
        if known is not None or id(other) in self._back:
            return known is other
        if one.layout is torch.strided:
            here, there = storage_of(one), storage_of(other)
            if self._memory.setdefault(here, there) != there or self._memory_back.setdefault(there, here) != here:
                return False
        self._pair(one, other)
        self.tensors.append((one, other))
        return True

    def _pair(self, one: Any, other: Any) -> bool:
        if self.objects.setdefault(id(one), other) is not other:
            return False
        return self._back.setdefault(id(other), id(one)) == id(one)

    def _modules_fit(self, one: nn.Module, other: nn.Module) -> bool:
        heard = _is_heard(cast(Any, type(one)))
        if not heard or type(one) is not type(other) or one.training is not other.training:
            return False
        if id(one) in self.objects or id(other) in self._back:
            return self.objects.get(id(one)) is other
        self._pair(one, other)
        self._modules.append((one, other))
        mine, theirs = vars(one), vars(other)
        for name, standard in _OF_MODULE.items():
            held, there = mine.get(name), theirs.get(name)
            if name in _TENSORS or name == "_modules":
                if not isinstance(held, dict) or not isinstance(there, dict) or list(held) != list(there):
                    return False
            elif isinstance(standard, dict):  # hooks
                if held or there:
                    return False
            elif held != there:
                return False
        for name in _TENSORS:
            for tensor, its in zip(mine[name].values(), theirs[name].values(), strict=True):
                if tensor is None or its is None:
                    if tensor is not its:
                        return False
                elif not self.tensors_fit(tensor, its):
                    return False
        for child, its in zip(mine["_modules"].values(), theirs["_modules"].values(), strict=True):
            if child is None or its is None:
                if child is not its:
                    return False
            elif not self._modules_fit(child, its):
                return False
        return True

    def _compare_attributes(self, one: nn.Module, other: nn.Module) -> None:
        mine, theirs = vars(one), vars(other)
        for name in {**mine, **theirs}:
            if name not in _OF_MODULE:
                there = name in mine and name in theirs
                if not there or not self._same(mine[name], theirs[name], set()):
                    self.differing.add((one, name))
                    self.fit = self.fit and name not in _OF_CLASS  # which nobody hears of: `forward` on an instance

    def _same(self, one: Any, other: Any, within: set[int]) -> bool:
        if id(one) in self.objects or id(other) in self._back:
            return self.objects.get(id(one)) is other
        if one is other:
            return True
        plain = equal_plain(one, other)
        if plain is not None or type(one) is not type(other) or id(one) in within:
            return bool(plain)
        inside = within | {id(one)}
        if type(one) in _ORDERED:
            fits = len(one) == len(other)
            fits = fits and all(self._same(a, b, inside) for a, b in zip(one, other, strict=True))
        elif isinstance(one, dict) and type(one).__module__ in ("builtins", "collections"):
            fits = self._same_entries(one, other, inside)
        elif type(one) in (set, frozenset):
            fits = one == other and all(isinstance(entry, (str, int, bool)) for entry in one | other)
        elif type(one) is functools.partial:
            fits = self._same(_parts_of(one), _parts_of(other), inside)
        elif type(one) is types.MethodType:
            return one.__func__ is other.__func__ and self._same(one.__self__, other.__self__, inside)
        elif _is_plain_object(one):
            fits = self._same_entries(vars(one), vars(other), inside)
        else:
            return False
        return fits and (isinstance(one, (tuple, frozenset)) or self._pair(one, other))

    def _same_entries(self, one: Mapping[Any, Any], other: Mapping[Any, Any], within: set[int]) -> bool:
        if len(one) != len(other):
            return False
        keys = zip(one, other, strict=True)
        return all(equal_plain(a, b) and self._same(one[a], other[b], within) for a, b in keys)


@functools.cache
def _is_heard(kind: type) -> bool:
    """Whether all that a module of a class holds are its attributes, and a trace hears of each look at one."""
    own = [base for base in kind.__mro__ if base not in nn.Module.__mro__]
    return not any("__getattribute__" in vars(base) or vars(base).get("__slots__") for base in own) and not issubclass(
        kind, torch.jit.ScriptModule
    )


def _parts_of(partial: functools.partial[Any]) -> tuple[Any, ...]:
    return partial.func, partial.args, partial.keywords, vars(partial)


def _is_plain_object(value: Any) -> bool:
    """Whether all that an object holds are its attributes: of a class in Python, on nothing but such."""
    if type(value) is types.SimpleNamespace:
        return True
    heap = 1 << 9  # Py_TPFLAGS_HEAPTYPE
    kinds = type(value).__mro__[:-1]
    written = all(kind.__flags__ & heap and "__slots__" not in vars(kind) for kind in kinds)
    return (
        written
        and not isinstance(value, (type, nn.Module))
        and type(value).__basicsize__ <= _OBJECT
        and hasattr(value, "__dict__")
    )
