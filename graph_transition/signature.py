"""What about a call decides which graph it may run on.

Sizes are not part of it: they are checked per graph (a static graph wants its own sizes, a dynamic one its guards).
"""

from __future__ import annotations

import dataclasses
import enum
import struct
from collections.abc import Sequence
from typing import Any

import numpy
import torch
import torch.nn.modules.module as torch_module
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _pytree as pytree

from ..capture import CallShape, flatten_call
from ..errors import CaptureError
from ..naming import full_name
from .conditions import is_value
from .conditions.condition import shown
from .conditions.objects import instance_table, slots_of

__all__ = [
    "Call",
    "CallSignature",
    "MODULE_TABLES",
    "flatten_call",
    "global_hook_tables",
    "hook_tables",
    "signature_of",
]

_PLAIN = (
    bool, int, float, complex, str, bytes, type(None), enum.Enum, torch.dtype, torch.device, torch.layout,
    torch.memory_format,
)  # fmt: skip
_GLOBAL_HOOKS = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks",
)  # fmt: skip
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# The dicts of a module in whose lengths a call's signature differs.
MODULE_TABLES = (*_HOOKS, "_modules", "_parameters", "_buffers")
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)

# What of a tensor of a module counts: its name, class, dtype and shape, and which others are the same tensor.
TensorFacts = tuple[str, type, torch.dtype, tuple[int, ...], int]
ModuleFacts = tuple[int, bool, int, tuple[TensorFacts, ...]]


@dataclasses.dataclass(frozen=True)
class CallSignature:
    """Hashable facts of a call.

    Attributes:
        structure: text of the pytree structure of (args, kwargs).
        leaves: per flat leaf ("tensor", dtype, rank, device, what it is: the number of a tensor among the module's,
            that of an earlier leaf as a negative one, or None, whether it has attributes of its own), or ("value",
            type, value, bits) where an object's value is that of its attributes.
        same: for each container that is given, the number of the first that is the same object.
        classes: those of the containers; the text of the structure has their names alone.
        modules: (identity, training flag, number of hooks, facts of parameters and buffers) of every sub-module, in
            `modules()` order.
        autocast: (device type, dtype) where autocast is on.
        default_dtype: of tensors that the forward makes from Python numbers.
        default_devices: where they lie, as the modes around the call say, outermost first.
    """

    structure: str
    leaves: tuple[tuple[Any, ...], ...]
    same: tuple[int, ...]
    classes: tuple[type, ...]
    modules: tuple[ModuleFacts, ...]
    autocast: tuple[tuple[str, torch.dtype], ...]
    default_dtype: torch.dtype
    default_devices: tuple[str, ...]

    def same_but_for_numbers(self, other: CallSignature) -> bool:
        """Whether the two differ in nothing but the values of Python ints and floats among the leaves."""
        mine, theirs = (dataclasses.replace(one, leaves=()) for one in (self, other))
        if mine != theirs or len(self.leaves) != len(other.leaves):
            return False
        pairs = zip(self.leaves, other.leaves, strict=True)
        return all(a == b or (_is_number(a) and _is_number(b)) for a, b in pairs)

    def differences(self, other: CallSignature, names: Sequence[str]) -> list[str]:
        """Sentences that say what changed from `other` to this signature; `names` are those of this one's leaves."""
        out = []
        if self.structure != other.structure:
            out.append("the structure of the inputs changed")
        elif self.classes != other.classes:
            out.append("the class of an object among the inputs changed")
        elif self.same != other.same:
            out.append("which lists, dicts or objects among the inputs are the same changed")
        elif len(self.leaves) == len(other.leaves):
            for name, new, old in zip(names, self.leaves, other.leaves, strict=True):
                if new != old:
                    out.append(f"input '{name}' changed from {_leaf_text(old)} to {_leaf_text(new)}")
        if [m[1] for m in self.modules] != [m[1] for m in other.modules]:
            out.append("train/eval mode changed")
        if [m[0] for m in self.modules] != [m[0] for m in other.modules]:
            out.append("a sub-module was replaced")
        elif [m[2] for m in self.modules] != [m[2] for m in other.modules]:
            out.append("a hook was added or removed")
        elif [m[3] for m in self.modules] != [m[3] for m in other.modules]:
            out.append(_tensor_difference(self.modules, other.modules))
        if self.autocast != other.autocast:
            out.append(f"autocast changed from {other.autocast or 'off'} to {self.autocast or 'off'}")
        if self.default_dtype != other.default_dtype:
            out.append(f"the default dtype changed from {other.default_dtype} to {self.default_dtype}")
        if self.default_devices != other.default_devices:
            out.append(f"the default device changed from {other.default_devices} to {self.default_devices}")
        return out


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a module, as it was written and taken apart.

    Attributes:
        args, kwargs: what the caller wrote.
        leaves: the flat leaves of (args, kwargs).
        shape: what they stand in.
        given: the containers among the arguments, tuples of plain values apart, each before what it holds.
        signature: the call's.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Any]
    shape: CallShape
    given: list[Any]
    signature: CallSignature

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any], module: torch.nn.Module) -> Call:
        """Takes a call of `module` apart. Raises CaptureError for an argument that has no signature."""
        flat = flatten_call(args, kwargs)
        given = [one for one in flat.given if not is_value(one)]
        signature = signature_of(flat.leaves, flat.shape.spec, given, module)
        return cls(args, kwargs, flat.leaves, flat.shape, given, signature)

    def with_leaves(self, leaves: list[Any]) -> Call:
        """The same call with other leaves; a leaf that is an earlier one still is."""
        leaves = list(leaves)
        for i, facts in enumerate(self.signature.leaves):
            if facts[0] == "tensor" and facts[4] is not None and facts[4] < 0:
                leaves[i] = leaves[~facts[4]]
        call = self.shape.filled(leaves)
        return dataclasses.replace(self, args=call.args, kwargs=call.kwargs, leaves=leaves)

    @property
    def changeable(self) -> list[Any]:
        """Of the given ones those that a forward can change: all but tuples."""
        return [one for one in self.given if not isinstance(one, tuple)]

    @property
    def wanting(self) -> tuple[bool, ...]:
        """Per leaf whether it is a tensor that wants a gradient."""
        return tuple(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in self.leaves)


def _is_number(leaf: tuple[Any, ...]) -> bool:
    return leaf[0] == "value" and leaf[1] in (int, float)


def _tensor_difference(new: Sequence[ModuleFacts], old: Sequence[ModuleFacts]) -> str:
    for (*_, now), (*_, before) in zip(new, old, strict=True):
        if [t[0] for t in now] != [t[0] for t in before]:
            break
        for (name, kind, dtype, shape, number), held in zip(now, before, strict=True):
            _, old_kind, old_dtype, old_shape, old_number = held
            if kind != old_kind:
                return f"the class of '{name}' changed from {old_kind.__name__} to {kind.__name__}"
            if dtype != old_dtype:
                return f"the dtype of '{name}' changed from {old_dtype} to {dtype}"
            if shape != old_shape:
                return f"the shape of '{name}' changed from {list(old_shape)} to {list(shape)}"
            if number != old_number:
                return f"'{name}' was tied to another tensor, or is no longer"
    return "a parameter or buffer was added or removed"


def _leaf_text(leaf: tuple[Any, ...]) -> str:
    if leaf[0] == "tensor":
        where = "" if leaf[3] == "cpu" else f" on {leaf[3]}"
        if leaf[4] is not None:
            where += " that is a tensor of the module" if leaf[4] >= 0 else " that is given twice"
        where += " that is a Parameter" if leaf[5] else ""
        return f"{str(leaf[1]).removeprefix('torch.')}[{', '.join('?' * leaf[2])}]{where}"
    made_plain = type(leaf[2]) is tuple  # by `_frozen`; anything else is the value itself
    return f"{leaf[1].__name__}{leaf[2][1:]}" if made_plain and leaf[1] is not tuple else shown(leaf[2])


def autocast_state() -> tuple[tuple[str, torch.dtype], ...]:
    """(device type, dtype) of every device type on which autocast is on."""
    return tuple((d, torch.get_autocast_dtype(d)) for d in ("cpu", "cuda") if torch.is_autocast_enabled(d))


def hook_tables(module: torch.nn.Module) -> list[dict[int, Any]]:
    """The dicts in which a module keeps what is called around its forward and backward."""
    return [getattr(module, name) for name in _HOOKS]


def global_hook_tables() -> list[dict[int, Any]]:
    """The same of hooks that are registered for every module."""
    return [getattr(torch_module, name) for name in _GLOBAL_HOOKS]


def module_state(module: torch.nn.Module) -> tuple[ModuleFacts, ...]:
    """(identity, training flag, number of hooks, facts of the tensors it has) of every sub-module."""
    return _module_state(module, {})


def _module_state(module: torch.nn.Module, seen: dict[int, int]) -> tuple[ModuleFacts, ...]:
    """The same; `seen` gets the number of each tensor by its identity."""
    everywhere = sum(map(len, global_hook_tables()))
    return tuple(
        (id(m), m.training, sum(map(len, hook_tables(m)), everywhere), _tensor_facts(m, seen)) for m in module.modules()
    )


def _tensor_facts(module: torch.nn.Module, seen: dict[int, int]) -> tuple[TensorFacts, ...]:
    """Tied tensors have the same number. A parameter is of another class than a buffer of its name."""
    tables = ((torch.nn.Parameter, module._parameters), (torch.Tensor, module._buffers))
    return tuple(
        (name, _class_of(t, plain), t.dtype, tuple(t.shape), seen.setdefault(id(t), len(seen)))
        for plain, table in tables
        for name, t in table.items()
        if t is not None
    )


def _class_of(tensor: torch.Tensor, plain: type) -> type:
    return plain if type(tensor) in _PLAIN_TENSORS else type(tensor)


def signature_of(
    leaves: list[Any], spec: pytree.TreeSpec, given: Sequence[Any], module: torch.nn.Module
) -> CallSignature:
    """The signature of a flattened call; `given`: see `Call`.

    Raises:
        CaptureError: a leaf that is neither a tensor nor comparable by value, an object that holds tensors, or a tensor
            that is no plain one (sparse, nested, of a class with a behavior of its own).
    """
    facts: list[tuple[Any, ...]] = []
    numbers: dict[int, int] = {}
    modules = _module_state(module, numbers)
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            if type(leaf) not in _PLAIN_TENSORS or leaf.layout != torch.strided or leaf.is_quantized:
                raise CaptureError(_tensor_refusal(leaf))
            known = numbers.setdefault(id(leaf), ~i)
            again = None if known == ~i else known
            is_parameter = type(leaf) is torch.nn.Parameter
            facts.append(("tensor", leaf.dtype, leaf.dim(), str(leaf.device), again, is_parameter, bool(vars(leaf))))
        elif isinstance(leaf, _PLAIN) and not isinstance(leaf, numpy.generic):
            facts.append(("value", type(leaf), leaf, _bits(leaf)))
        else:
            facts.append(("value", type(leaf), _frozen(leaf, type(leaf))))
    devices = tuple(str(mode.device) for mode in _get_current_function_mode_stack())
    first: dict[int, int] = {}
    same = tuple(first.setdefault(id(one), i) for i, one in enumerate(given))
    dtype = torch.get_default_dtype()
    classes = tuple(map(type, given))
    return CallSignature(str(spec), tuple(facts), same, classes, modules, autocast_state(), dtype, devices)


def _tensor_refusal(leaf: torch.Tensor) -> str:
    if type(leaf) not in _PLAIN_TENSORS:
        name = full_name(type(leaf))
        return f"an argument is of the tensor class {name}, whose operations may be its own"
    return f"an argument is a tensor of layout {leaf.layout}, dtype {leaf.dtype}"


def _bits(value: Any) -> bytes | None:
    """What tells two numbers apart that Python has for equal: zeros of two signs."""
    if isinstance(value, float):
        return struct.pack("d", value)
    return struct.pack("dd", value.real, value.imag) if isinstance(value, complex) else None


def _frozen(value: Any, argument: type, depth: int = 6) -> Any:
    """A hashable stand-in for `value`, equal for values that a forward cannot tell apart."""
    if isinstance(value, torch.Tensor | torch.nn.Module) or depth == 0:
        name = full_name(argument)
        advice = "register the class with torch.utils._pytree.register_pytree_node, or pass its tensors"
        raise CaptureError(f"an argument of class {name} holds tensors, which would become constants; {advice}")
    if isinstance(value, numpy.generic):  # equal to a tuple it would be an array
        return type(value), str(value), value.dtype.str, value.tobytes()
    if isinstance(value, _PLAIN):
        return type(value), value, _bits(value)
    if isinstance(value, list | tuple):
        return type(value), *(_frozen(item, argument, depth - 1) for item in value)
    if isinstance(value, set | frozenset):
        return type(value), *(_frozen(item, argument, depth - 1) for item in value)  # in a loop's order
    if isinstance(value, dict):
        return type(value), *(
            (_frozen(key, argument, depth - 1), _frozen(item, argument, depth - 1)) for key, item in value.items()
        )
    if isinstance(value, bytearray):
        return bytearray, bytes(value)
    if isinstance(value, slice):  # hashable from Python 3.12 on
        return slice, *(_frozen(end, argument, depth - 1) for end in (value.start, value.stop, value.step))
    attributes = {**(instance_table(value) or {}), **dict(slots_of(value))}
    if attributes and not is_value(value) and not callable(value):
        return type(value), *((key, _frozen(item, argument, depth - 1)) for key, item in attributes.items())
    try:
        hash(value)
    except TypeError as error:
        raise CaptureError(f"an argument of class {argument.__qualname__} cannot be compared by value") from error
    # Numbers that are equal may be written otherwise: Decimal("2"), Decimal("2.0").
    return (type(value), value, repr(value)) if is_value(value) else value
