"""What a captured graph depends on; one kind of condition a file. See condition.py."""

from .caches import CacheCondition, cached_in
from .classes import ClassCondition
from .condition import (
    MISSING,
    Argument,
    Change,
    Check,
    Condition,
    Maker,
    NotStorable,
    Refusal,
    Roots,
    Watch,
    joined,
    plain_text,
    reachable,
    shown,
    spoken,
)
from .contexts import (
    ContextVariableCondition,
    LocalCondition,
    QueryCondition,
    decimal_context,
    value_in_context,
)
from .equality import exactly_equal, is_an_object, is_value
from .functions import (
    BoundBuiltinCondition,
    FunctionCondition,
    ReferenceCondition,
    WrapperCondition,
    cell_content,
    wrapped_parts,
)
from .identity import IdentityCondition, LockCondition, UnknownCondition
from .loggers import ASKING, LoggerCondition, every_logger
from .making import condition_of, is_query
from .mappings import MappingCondition
from .modules import AddedHooks, HooksCondition, ModuleCondition
from .names import OF_IMPORT, NamespaceCondition, PythonModuleCondition
from .objects import ObjectCondition
from .origin import books_of, is_native, is_of_program, is_opaque_module
from .sequences import SequenceCondition
from .tensors import OuterTensorCondition, TreeAttributesCondition
from .values import ValueCondition

__all__ = [
    "ASKING",
    "MISSING",
    "OF_IMPORT",
    "AddedHooks",
    "Argument",
    "BoundBuiltinCondition",
    "CacheCondition",
    "Change",
    "Check",
    "ClassCondition",
    "Condition",
    "ContextVariableCondition",
    "FunctionCondition",
    "HooksCondition",
    "IdentityCondition",
    "LocalCondition",
    "LockCondition",
    "LoggerCondition",
    "Maker",
    "MappingCondition",
    "ModuleCondition",
    "NamespaceCondition",
    "NotStorable",
    "ObjectCondition",
    "OuterTensorCondition",
    "PythonModuleCondition",
    "QueryCondition",
    "ReferenceCondition",
    "Refusal",
    "Roots",
    "SequenceCondition",
    "TreeAttributesCondition",
    "UnknownCondition",
    "ValueCondition",
    "Watch",
    "WrapperCondition",
    "books_of",
    "cached_in",
    "cell_content",
    "condition_of",
    "decimal_context",
    "every_logger",
    "exactly_equal",
    "is_an_object",
    "is_native",
    "is_of_program",
    "is_opaque_module",
    "is_query",
    "is_value",
    "joined",
    "plain_text",
    "reachable",
    "shown",
    "spoken",
    "value_in_context",
    "wrapped_parts",
]
