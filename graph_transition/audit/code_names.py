"""Which names a function's bytecode can look up: attributes, globals, imports, and whether some are made at run time.

An attribute that no executed function names is not read by any. A name may also come from a string: of a constant one
(`getattr(x, "alpha")`, `attrgetter("a.b")`) every part counts as named; where a name is computed, everything that the
function has in hand counts as read whole (`any_name`).

Not here: what the names lead to (walk.py).
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import inspect
import operator
import re
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

__all__ = [
    "NO_NAMES",
    "Names",
    "imported_names",
    "named_through",
    "names_of",
    "with_forward",
]

# Functions in C that look up the attributes which they were made with.
_NAMED_BY_C = (operator.attrgetter, operator.methodcaller)

_TORCH = str(Path(str(torch.__file__)).parent) + "/"
_INSTALLED = tuple({sysconfig.get_paths()[name] + "/" for name in ("stdlib", "purelib", "platlib")} | {_TORCH})
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_LONGEST_NAME = 64
# Functions whose second argument is a name.
_BY_NAME = frozenset({"getattr", "hasattr", "setattr", "delattr"})
# Words that take an object's state whole, whatever its names are.
_WHOLE = frozenset(
    {
        "vars", "dir", "__dict__", "__getattribute__", "__setattr__", "__delattr__", "__reduce_ex__", "__reduce__",
        "__getstate__", "__slots__", "getmembers", "getattr_static", "deepcopy", "asdict", "astuple", "dumps",
        "attrgetter", "methodcaller",
    }
)  # fmt: skip
# Of the standard library: what computes names of a function's or a class's own parts alone, which conditions of those
# hold whether they are named or not.
_OF_SIGNATURES = frozenset(
    function.__code__
    for name in ("_signature_from_callable", "_signature_get_user_defined_method", "get_annotations")
    if isinstance(function := getattr(inspect, name, None), types.FunctionType)
)
_FORMATS = frozenset({"format", "format_map"})
# What shows an object, or compares it with others.
_SHOWING = frozenset({"repr", "str", "format", "ascii", "print", "index", "count", "remove"})
_SHOWN_BY = frozenset({"FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE", "CONTAINS_OP"})
_IMPORTERS = frozenset({"import_module", "__import__"})
_RUNNERS = frozenset({"eval", "exec"})  # methods have these names as well: `module.eval()`
_SCOPE = frozenset({"globals", *_RUNNERS})  # what can look up any global
_OF_ATTRIBUTES = _WHOLE | _BY_NAME | _RUNNERS | _FORMATS
_OF_BUILTINS = frozenset({"builtins", "__builtins__"})
# What is written in C and looks names up that it is given.
_IN_C = (types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType, types.MethodWrapperType)
_NULL_IS_BEFORE = sys.version_info < (3, 13)
_TELLS_METHODS = sys.version_info >= (3, 12)  # before, a method that is called has an instruction of its own
_LOADS = frozenset(
    {"LOAD_GLOBAL", "LOAD_ATTR", "LOAD_NAME", "LOAD_SUPER_ATTR", "IMPORT_FROM", "LOAD_FROM_DICT_OR_GLOBALS"}
)
_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "DELETE_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"})


@dataclasses.dataclass(frozen=True, eq=False)
class Names:
    """What a function can name.

    Attributes:
        attributes: names of attributes that are read, and constant strings that could be one.
        stored: names of attributes that are only set.
        globals: names among globals and builtins that are read.
        stored_globals: names of globals that are only set.
        imports: (level, module) of import statements.
        words: constant strings that could be the name of a module.
        any_name: whether attributes' names are computed, or objects taken whole.
        any_global: the same of globals.
        of_torch: whether the code is torch's own; of_program: whether it is the user's, of no package.
        passed: names of what is loaded, but not to be called at once.
        shows: whether it may show or compare an object, which reads it whole where its class does that in C.
    """

    attributes: frozenset[str]
    stored: frozenset[str]
    globals: frozenset[str]
    stored_globals: frozenset[str]
    imports: frozenset[tuple[int, str]]
    words: frozenset[str]
    passed: frozenset[str]
    any_name: bool
    any_global: bool
    of_torch: bool = False
    of_program: bool = False
    shows: bool = False

    @property
    def finds_modules(self) -> bool:
        """Whether the function can look a module up by a name; every nn.Module has a method `modules`, too."""
        in_sys = "sys" in self.attributes or "sys" in self.globals or "modules" in self.globals
        return not _IMPORTERS.isdisjoint(self.attributes) or (in_sys and "modules" in self.attributes)


_NOTHING: frozenset[Any] = frozenset()
NO_NAMES = Names(_NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING, False, False)


def names_of(code: types.CodeType) -> Names:
    """The names in `code` and in the code that it makes functions of."""
    attributes: set[str] = set()
    stored: set[str] = set()
    scope: set[str] = set()
    stored_globals: set[str] = set()
    imports: set[tuple[int, str]] = set()
    words: set[str] = set()
    passed: set[str] = set()
    any_name = any_global = shows = False
    for part in _with_nested(code):
        found = list(_identifiers(part.co_consts))
        words.update(found)
        attributes.update(name for word in found for name in word.split("."))
        instructions = list(dis.get_instructions(part))
        for i, instruction in enumerate(instructions):
            if instruction.opname == "STORE_ATTR":
                stored.add(instruction.argval)
            elif instruction.opname in ("STORE_GLOBAL", "STORE_NAME"):
                stored_globals.add(instruction.argval)
            elif instruction.opcode in dis.hasname:
                attributes.add(instruction.argval)
            if instruction.opname in _GLOBAL:
                scope.add(instruction.argval)
            elif instruction.opname == "MATCH_CLASS":  # by position, as the class's __match_args__ say
                any_name = True
            elif instruction.opname == "IMPORT_NAME":
                level = instructions[i - 2].argval if i >= 2 else 0
                imports.add((level if isinstance(level, int) else 0, instruction.argval))
        shows = shows or not _SHOWING.isdisjoint(part.co_names) or any(map(_shows, instructions))
        passed.update(_passed(instructions))
        asked = {i.argval for i in instructions if i.opname in _GLOBAL}
        asked = asked if _OF_BUILTINS.isdisjoint(part.co_names) else asked.union(part.co_names)
        any_global = any_global or not _SCOPE.isdisjoint(asked)
        any_name = any_name or not _WHOLE.isdisjoint(part.co_names) or not _RUNNERS.isdisjoint(asked)
        any_name = any_name or _computes_names(instructions) or _formats_computed(instructions)
    if code in _OF_SIGNATURES:
        any_name = any_global = False
    return Names(
        frozenset(attributes), frozenset(stored - attributes), frozenset(scope), frozenset(stored_globals - scope),
        frozenset(imports), frozenset(words), frozenset(passed), any_name, any_global,
        code.co_filename.startswith(_TORCH), not code.co_filename.startswith(_INSTALLED), shows,
    )  # fmt: skip


def _passed(instructions: list[dis.Instruction]) -> Iterator[str]:
    """Names of what is loaded, by itself or at the end of a chain of attributes, but not to be called at once.

    A NULL on the stack tells a call: before its function, which may be where the chain begins, or from 3.13 on behind.
    """
    for i, instruction in enumerate(instructions):
        if instruction.opname not in _LOADS or (_TELLS_METHODS and _loads_method(instruction)):
            continue
        behind = instructions[i + 1].opname if i + 1 < len(instructions) else ""
        start = i
        while start > 0 and instructions[start].opname == "LOAD_ATTR":
            start -= 1
        first, before = instructions[start], instructions[start - 1].opname if start and _NULL_IS_BEFORE else ""
        with_null = first.opname == "LOAD_GLOBAL" and (first.arg or 0) & 1
        if not (with_null or behind in ("LOAD_ATTR", "LOAD_METHOD", "PUSH_NULL") or before == "PUSH_NULL"):
            yield instruction.argval


def _loads_method(instruction: dis.Instruction) -> bool:
    return instruction.opname == "LOAD_ATTR" and bool((instruction.arg or 0) & 1)


def _shows(instruction: dis.Instruction) -> bool:
    """Whether an instruction shows a value, compares for equality, or may fill in a text by `%`."""
    name, argument = instruction.opname, instruction.argrepr
    compares = name == "COMPARE_OP" and ("==" in argument or "!=" in argument)
    return name in _SHOWN_BY or compares or (name == "BINARY_OP" and argument.startswith("%"))


def _with_nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_nested(constant)


def _identifiers(constants: Iterable[object]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, (tuple, frozenset)):
            yield from _identifiers(constant)
        elif isinstance(constant, str) and "{" in constant:  # a format: "{0.alpha}"
            yield from (found[0] for found in _IDENTIFIER.finditer(constant))
        elif isinstance(constant, str) and len(constant) < _LONGEST_NAME and _IDENTIFIER.fullmatch(constant):
            yield constant


def _computes_names(instructions: list[dis.Instruction]) -> bool:
    """Whether `getattr` or one of its like is used in any other way than called with a constant name."""
    return any(
        instruction.opname in _GLOBAL and instruction.argval in _BY_NAME and not _has_constant_name(instructions, i)
        for i, instruction in enumerate(instructions)
    )


def _formats_computed(instructions: list[dis.Instruction]) -> bool:
    """Whether `format` is called on anything but a constant, which could name any attribute."""
    return any(
        instruction.argval in _FORMATS and instructions[i - 1].opname != "LOAD_CONST"
        for i, instruction in enumerate(instructions)
        if instruction.opname in ("LOAD_METHOD", "LOAD_ATTR")
    )


def _has_constant_name(instructions: list[dis.Instruction], start: int) -> bool:
    """Whether the function that instruction `start` loads is called with a constant string in second place.

    The depth of the stack tells the arguments apart: the second one is a constant where one instruction takes the depth
    from 1 to 2, and nothing until the call works on what it left there.
    """
    depth, constant = 0, False
    for instruction in instructions[start + 1 :]:
        if instruction.opname == "PUSH_NULL":
            continue
        if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
            return False
        before, depth = depth, depth + dis.stack_effect(instruction.opcode, instruction.arg)
        if depth < 0 or instruction.opname in ("PRECALL", "KW_NAMES"):  # the call itself
            if depth < 0 or (depth == 0 and instruction.opname == "PRECALL"):
                return constant
        elif before == 1 and depth == 2:
            constant = instruction.opname == "LOAD_CONST" and isinstance(instruction.argval, str)
        elif depth <= 2 <= before:
            constant = False
    return False


def imported_names(level: int, name: str, scope: dict[str, Any]) -> Iterator[str]:
    """The modules that an import statement may lead to."""
    if level == 0:
        parts = name.split(".")
        yield from (".".join(parts[: i + 1]) for i in range(len(parts)))
        return
    package = str(scope.get("__package__") or "").split(".")
    base = package[: len(package) - level + 1]
    yield ".".join([*base, name] if name else base)


def named_through(value: Any, names: Names) -> Names | None:
    """The names of code that has `value` in hand, however it came there: a function in C may look up names that it is
    given, or that it was made with. None where they are no more than `names`.
    """
    if isinstance(value, _IN_C):
        further, attribute, scope = _NOTHING, value.__name__ in _OF_ATTRIBUTES, value.__name__ in _SCOPE
    elif isinstance(value, _NAMED_BY_C):
        words = [word for word in value.__reduce__()[1] if isinstance(word, str)]
        further, attribute, scope = frozenset(name for word in words for name in word.split(".")), False, False
    else:
        further, attribute, scope = _NOTHING, value is operator.attrgetter or value is operator.methodcaller, False
    any_name, any_global = names.any_name or attribute, names.any_global or scope
    if any_name == names.any_name and any_global == names.any_global and further <= names.attributes:
        return None
    attributes = names.attributes | further
    return dataclasses.replace(names, attributes=attributes, any_name=any_name, any_global=any_global)


@functools.lru_cache(maxsize=4096)
def with_forward(names: frozenset[str]) -> frozenset[str]:
    """The attributes that a look at an nn.Module asks for: those that `nn.Module.__call__` looks up, too."""
    return names | {"forward", "_call_impl", "_wrapped_call_impl"}
