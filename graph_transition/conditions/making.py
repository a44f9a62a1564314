"""Which condition an object gets: by its type, the first row that takes it."""

from __future__ import annotations

import collections
import contextvars
import datetime
import decimal
import functools
import io
import logging
import operator
import random
import re
import struct
import sys
import threading
import types
import typing
import unicodedata
import weakref
from typing import Any

import numpy
import torch
from google.protobuf.message import Message

from ...capture.torch_private import SILENCED
from ...naming import full_name, module_of
from .buffers import BUFFERS, LONGEST_BUFFER, BufferCondition
from .caches import CacheCondition
from .classes import ClassCondition
from .condition import Condition, Maker
from .contexts import ContextVariableCondition, DecimalContextCondition, LocalCondition
from .equality import is_value
from .functions import WRAPPERS, BoundBuiltinCondition, FunctionCondition, ReferenceCondition, WrapperCondition
from .generators import GeneratorCondition, RandomCondition
from .identity import IdentityCondition, LockCondition, UnknownCondition
from .loggers import LoggerCondition
from .mappings import MappingCondition, mapping_type
from .modules import ModuleCondition
from .names import PythonModuleCondition
from .objects import ExceptionCondition, ObjectCondition
from .origin import is_native, is_of_library, is_opaque, is_opaque_function
from .sequences import SequenceCondition, sequence_type
from .tensors import OuterTensorCondition, TreeTensorCondition
from .values import DERIVED, DerivedValueCondition, ValueCondition

__all__ = ["condition_of", "is_query"]

_BUILTINS = (types.BuiltinFunctionType, types.MethodWrapperType)
# What counts as what it is: it holds nothing that a forward computes with, or cannot change.
_THEMSELVES = (
    types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
    types.ClassMethodDescriptorType, types.CodeType, types.GenericAlias, types.UnionType, numpy.ufunc,
    type(datetime.datetime_CAPI), type(vars(collections.namedtuple("_Pair", "a"))["a"]), logging.LoggerAdapter,
    operator.attrgetter, operator.itemgetter, operator.methodcaller,
    types.FrameType, types.TracebackType, io.IOBase, struct.Struct, re.Match, unicodedata.UCD, type(numpy.dot),
    typing.TypeVar, typing.ParamSpec, typing.TypeVarTuple,  # classes in C from Python 3.12 on
    getattr(typing, "TypeAliasType", typing.TypeVar),  # of Python 3.12
)  # fmt: skip
# Classes of torch's written in C whose objects stay what they are. Those of any other may hold something that they are
# asked for in C.
_OF_TORCH: tuple[type, ...] = (
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.qscheme, torch.Size, torch.finfo, torch.iinfo,
    torch.Tag, torch._C.DispatchKey, torch._C.DispatchKeySet, torch._C.ScriptFunction, torch._C.Stream,
)  # fmt: skip
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
# `torch.ops` and its namespaces, in which torch notes each operator when it is first asked for.
_OPERATOR_TABLES = (torch._ops._Ops, torch._ops._OpNamespace)
_OF_SYS = frozenset({"getrecursionlimit", "getswitchinterval", "getdefaultencoding", "getfilesystemencoding",
                     "get_int_max_str_digits", "getfilesystemencodeerrors", "is_finalizing"})  # fmt: skip
_PYTHONS_GENERATOR: type = random.Random.__base__  # type: ignore[assignment]
# By their names: `get_num_threads`, `_is_any_autocast_enabled`, `_cuda_getDevice`, `_profiler_enabled`.
_QUERY = re.compile(
    r"_?((cuda|mps|xpu)_)?(get|is|are|len|current)(_|[A-Z])|(?!_?set_).*_enabled$|_check_\w+_invariants$"
)


def condition_of(value: Any, maker: Maker) -> Condition:
    """The condition of `value`, which is noted by `maker.keep` before its parts are made."""
    if is_value(value) and id(value) not in maker.vouched:
        return ValueCondition(value)
    kind, arguments = _kind_and_arguments(value, maker)
    condition = object.__new__(kind)
    maker.keep(value, condition)
    condition.__init__(*arguments)  # type: ignore[misc]
    return condition


def _kind_and_arguments(value: Any, maker: Maker) -> tuple[type[Condition], tuple[Any, ...]]:
    kind, part = type(value), maker.part
    if id(value) in maker.vouched or id(kind) in maker.vouched or value is sys.modules:
        return IdentityCondition, (value,)
    if isinstance(value, torch.Tensor):
        fake = kind not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        return (TreeTensorCondition, ()) if fake else (OuterTensorCondition, (value,))
    if value is torch.Tensor:
        return ClassCondition, (value,)
    if isinstance(value, _OPERATOR_TABLES):
        return IdentityCondition, (value,)
    if isinstance(value, type):
        return IdentityCondition if is_opaque(value) else ClassCondition, (value,)
    if isinstance(value, types.ModuleType):
        return PythonModuleCondition, (value,)
    if kind is types.FunctionType:
        return IdentityCondition if is_opaque_function(value) else FunctionCondition, (value,)
    if isinstance(value, torch.Generator):
        return GeneratorCondition, (value,)
    if isinstance(value, logging.Logger):
        return IdentityCondition if value.name.startswith(SILENCED) else LoggerCondition, (value,)
    if kind in WRAPPERS:
        return WrapperCondition, (value, part)
    if kind is functools._lru_cache_wrapper:
        return (IdentityCondition, (value,)) if is_of_library(value) else (CacheCondition, (value, part))
    if isinstance(value, _BUILTINS):
        # A binding's functions hold a record of their own there, of which they are no methods.
        bound = not isinstance(value.__self__, types.ModuleType | type | None) and hasattr(
            type(value.__self__), value.__name__
        )
        return (BoundBuiltinCondition, (value, part)) if bound else (IdentityCondition, (value,))
    if isinstance(value, weakref.ref):
        return ReferenceCondition, (value, part)
    if isinstance(value, contextvars.ContextVar):
        return ContextVariableCondition, (value, part)
    if kind is decimal.Context:
        return DecimalContextCondition, (value,)
    if isinstance(value, threading.local):
        return LocalCondition, (value,)
    if isinstance(value, BUFFERS) and kind in BUFFERS:
        size = value.nbytes if isinstance(value, numpy.ndarray) else len(memoryview(value).cast("B"))
        plain = not (isinstance(value, numpy.ndarray) and value.dtype.hasobject)
        if size <= LONGEST_BUFFER and plain:
            return BufferCondition, (value,)
        return UnknownCondition, (f"an array of {size} bytes, too long to be compared at each call",)
    return _container_or_object(value, maker)


def _container_or_object(value: Any, maker: Maker) -> tuple[type[Condition], tuple[Any, ...]]:
    kind, part = type(value), maker.part
    for find, made in ((mapping_type, MappingCondition), (sequence_type, SequenceCondition)):
        base = find(kind)
        if base is None:
            continue
        if is_native(kind):  # type: ignore[arg-type]
            return made, (value, base, part)
        return ObjectCondition, (value, part(kind), made(value, base, part))
    if isinstance(value, _LOCKS):
        return LockCondition, (value,)
    if isinstance(value, BaseException) and not is_opaque(kind):  # type: ignore[arg-type]
        return ObjectCondition, (value, part(kind), ExceptionCondition(value, part))
    if _holds_something(value):
        return UnknownCondition, (f"an object of class {full_name(kind)}",)
    if isinstance(value, _THEMSELVES) or kind is object or is_opaque(kind):  # type: ignore[arg-type]
        return IdentityCondition, (value,)
    native = next(base for base in kind.__mro__ if is_native(base) and base is not typing.Generic)  # in C from 3.12 on
    if isinstance(value, torch.jit.ScriptModule) and id(value) not in maker.tree:
        return UnknownCondition, ("a module that torch.jit has compiled",)
    if isinstance(value, torch.nn.Module):
        in_tree = id(value) in maker.tree
        if not in_tree and (vars(value).get("_backward_hooks") or vars(value).get("_backward_pre_hooks")):
            return UnknownCondition, ("a layer outside of the module that has a backward hook",)
        return ModuleCondition, (value, part(kind), in_tree)
    if native is object or isinstance(value, types.SimpleNamespace):
        return ObjectCondition, (value, part(kind), None)
    if issubclass(native, _PYTHONS_GENERATOR):
        return ObjectCondition, (value, part(kind), RandomCondition(value))
    if native in WRAPPERS:  # a property with more to it
        return ObjectCondition, (value, part(kind), WrapperCondition(value, part))
    if native in DERIVED:
        return ObjectCondition, (value, part(kind), DerivedValueCondition(value, native))
    return UnknownCondition, (f"an object of class {full_name(kind)}",)


def _holds_something(value: Any) -> bool:
    """Whether it is of a class of torch's or protobuf's that is written in C, and is neither a value nor a name."""
    if isinstance(value, Message):
        return True
    kind = type(value)
    native = next(base for base in kind.__mro__ if is_native(base) and base is not typing.Generic)  # in C from 3.12 on
    of_torch = module_of(kind).startswith("torch") and module_of(native).startswith(("torch", "pybind11_builtins"))
    return of_torch and not isinstance(value, _OF_TORCH) and not hasattr(kind, "__members__")  # names of an enumeration


def is_query(value: Any) -> bool:
    """Whether a function of torch or of `sys` tells a setting, by its name; whether one of torch takes arguments is not
    looked at.
    """
    if not isinstance(value, (types.BuiltinFunctionType, types.FunctionType)):
        return False
    module = getattr(value, "__module__", None) or ""
    if module == "sys":
        return value.__name__ in _OF_SYS
    written_in_python = isinstance(value, types.FunctionType) and not module.startswith("torch.distributed.")
    own = module == "torch" if written_in_python else module.startswith("torch")
    name = value.__name__
    if name == "initial_seed":
        return module.startswith("torch")
    return own and _QUERY.match(name) is not None and "state" not in name
