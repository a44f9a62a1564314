"""Tensors: those of the module's own tree, which a graph takes as inputs, and others, which it holds.

A tensor of the tree may be any of the same form; the call's signature compares that (signature.py). One outside of it
is a constant of the graph by identity, and what it holds is read at each run; its form has to stay. Where the forward
has made a Python number of its value, the value has to stay too.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ... import _C
from ...capture.torch_private import outside_the_trace
from .condition import Before, Change, Condition, Maker, Watch, shown

__all__ = [
    "LARGEST_READ",
    "OuterTensorCondition",
    "TreeAttributesCondition",
    "TreeTensorCondition",
    "attributes_of",
    "form_of",
]

LARGEST_KEPT = 1 << 20  # bytes of a tensor that is kept while a forward is traced
LARGEST_READ = 4096  # bytes of a tensor's values that are compared at each call


def form_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What of a tensor a trace decides by."""
    return (
        type(tensor), tensor.dtype, tensor.device, tensor.layout, tuple(tensor.shape), tensor.stride(),
        tensor.storage_offset(), tensor.requires_grad, tensor.is_leaf, tensor.is_conj(), tensor.is_neg(),
        tuple(attributes_of(tensor)),
    )  # fmt: skip


class TreeTensorCondition(Condition):
    """There is a tensor."""

    kind = "tensor of the module"
    __slots__ = ()

    def refusal(self, now: Any) -> str | None:
        return None if isinstance(now, torch.Tensor) else f"is no tensor any more but {shown(now)}"

    def stored(self) -> tuple[frozenset[str], Any]:
        return frozenset(), None  # the key has the module's tensors


class TreeAttributesCondition(Condition):
    """None of the module's parameters and buffers has an attribute that the forward can ask for.

    The tensors of a trace have none: a forward that reads one that is there is refused.
    """

    kind = "attributes of the module's tensors"
    __slots__ = ("_names", "_any_name")
    # What torch itself sets on parameters and buffers, by which isinstance tells them.
    OF_TORCH = frozenset({"_is_buffer", "_is_param"})

    def __init__(self, names: frozenset[str] = frozenset(), any_name: bool = False) -> None:
        self._names, self._any_name = names - self.OF_TORCH, any_name

    def refusal(self, now: Any) -> str | None:
        for table in map(attributes_of, _tensors_of(now)):
            read = table.keys() - self.OF_TORCH if self._any_name else table.keys() & self._names
            if read:
                return f"has got a tensor with attributes: {', '.join(sorted(read))}"
        return None

    def changed(self, now: Any, before: Before) -> list[Change]:
        return []  # a forward that sets one is refused at once

    def stored(self) -> tuple[frozenset[str], Any]:
        return self._names, self._any_name

    def look_up(self, now: Any, names: frozenset[str], further: Any, maker: Maker) -> None:
        self._names, self._any_name = names, bool(further)

    def watches(self, now: Any) -> Iterator[Watch]:
        for tensor in _tensors_of(now):
            table = attributes_of(tensor)
            if table is _NO_ATTRIBUTES:
                yield "bare", tensor
            else:
                yield "names", table, frozenset(), 0, len(table)


_NO_ATTRIBUTES: Mapping[str, Any] = types.MappingProxyType({})


def attributes_of(tensor: torch.Tensor) -> Mapping[str, Any]:
    """What somebody has set on a tensor. No dict is made where there is nothing: there may be hundreds of tensors."""
    return _NO_ATTRIBUTES if _C.has_no_attributes(tensor) else vars(tensor)


def _tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    tables = (table for part in module.modules() for table in (part._parameters, part._buffers))
    return (tensor for table in tables for tensor in table.values() if tensor is not None)


class OuterTensorCondition(Condition):
    """The very same tensor, in the same form."""

    kind = "tensor"
    __slots__ = ("_tensor", "_form", "_values", "_version", "_before")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._form = form_of(tensor)
        self._values: bytes | None = None
        self._version = tensor._version if not tensor.is_inference() else 0
        # A trace may write into the tensor itself.
        with outside_the_trace():
            self._before = tensor.detach().clone() if tensor.nbytes <= LARGEST_KEPT else None

    def read(self) -> bool:
        """Notes that the values were read; returns False where they are too many, or elsewhere, to be compared."""
        if self._tensor.device.type != "cpu" or self._tensor.nbytes > LARGEST_READ:
            return False
        self._values = _values_of(self._tensor)
        return True

    def changed(self, now: Any, before: Before) -> list[Change]:
        written = not self._tensor.is_inference() and self._tensor._version != self._version
        return [Change("", None, now)] if written else super().changed(now, before)

    def restore(self, value: Any, original: Callable[[Condition], Any]) -> None:
        if self._before is not None and value.shape == self._before.shape:
            with outside_the_trace(), torch.no_grad():
                value.detach().copy_(self._before)

    def forget(self) -> None:
        self._before = None

    def refusal(self, now: Any) -> str | None:
        if now is not self._tensor:
            return "is another tensor"
        form = form_of(now)
        if form != self._form:
            return f"changed its form from {self._form} to {form}"
        return None if self._values is None or _values_of(now) == self._values else "holds other values"

    def stored(self) -> tuple[frozenset[str], Any]:
        return frozenset(), None if self._values is None else self._values.hex()

    def look_up(self, now: Any, names: frozenset[str], further: Any, maker: Maker) -> None:
        if further is not None:
            self._values = bytes.fromhex(further)

    def watches(self, now: Any) -> Iterator[Watch]:
        yield "tensor", now
        table = attributes_of(now)
        if table is _NO_ATTRIBUTES:
            yield "bare", now
        else:
            yield "order", table, tuple(table)
        if self._values is not None:
            yield "call", functools.partial(_values_of, now), self._values


def _values_of(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
