"""What a forward can have read: followed from the functions that ran, by the names that they use.

Whatever a function reads, it reads of what it has in hand: its arguments, its globals, the variables around it, what
they lead to by the names in its bytecode, the items of containers, what the functions that it calls give back. So the
walk starts at each function when it is entered, which is before the function can have changed anything, and again at
what the functions that it calls return. It may take in more than was read, never less. What cannot be watched or
compared ends the trace as soon as the module, an argument, a global or a variable leads to it, and so does a call of a
C function that no graph can repeat: before anything was used up, written or printed.

Not here: the conditions (../conditions), what the forward has changed (changes.py), whose frames are heard (frames.py).
"""

from __future__ import annotations

import decimal
import sys
import threading
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import _AttrProxy

from ...capture.trace.patching import ADDED
from ...capture.trace.wrapper import GivenNames
from ...errors import CaptureError, ChangedValueError
from ..conditions import (
    ASKING,
    MISSING,
    OF_IMPORT,
    ClassCondition,
    Condition,
    ContextVariableCondition,
    FunctionCondition,
    ModuleCondition,
    NamespaceCondition,
    ObjectCondition,
    OuterTensorCondition,
    QueryCondition,
    UnknownCondition,
    ValueCondition,
    cell_content,
    condition_of,
    decimal_context,
    every_logger,
    is_opaque_module,
    is_query,
    is_value,
    reachable,
    spoken,
)
from ..conditions.contexts import numpy_settings, uses_numpy
from .code_names import Names, imported_names, named_through, names_of
from .contents import Contents, code_inside
from .frames import FOLLOWED, is_followed, kind_of
from .leads import is_handed_over, led_to_by
from .purity import impure_reason

__all__ = ["Reads"]

_REFILLED = (list, dict, set)  # what may hold more when it is met again
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
# Methods in C that give a tensor's values away, past torch's dispatch.
_READERS = frozenset({"item", "tolist", "numpy", "__array__", "data_ptr", "untyped_storage", "storage", "__repr__"})
_BUILTINS = "__builtins__"  # of a function: type checkers do not agree on whether it has one
_FRAMES = "the forward looks at frames, and so at the variables of its callers"
_HANDLED = "the forward asks which exception is handled, be it by its callers"
# What the standard library asks for its own purposes, and whose answer hangs on where a call is made.
_OF_THE_CALL = {sys._getframe: _FRAMES, sys.exc_info: _HANDLED, getattr(sys, "exception", None): _HANDLED}
_MOST_OBJECTS = 200_000
_MOST_LOOKS = 4_000_000  # some seconds; a model of 500 blocks takes 20,000


class Reads:
    """The walk of one trace.

    Args:
        originals: tables of what was there, by the identity of what the capture has put in its place.
        vouched: identities of functions and objects that the user vouches for.
        tree: identities of the traced module and its sub-modules.
    """

    def __init__(
        self,
        originals: Sequence[Mapping[int, Any]],
        vouched: frozenset[int] = frozenset(),
        tree: frozenset[int] = frozenset(),
    ) -> None:
        self.originals, self.vouched, self.tree = originals, vouched, tree
        self.roots: list[tuple[str, Condition, Any]] = []
        self.values: dict[int, Any] = {}  # by a condition's identity, the object that it is of
        self._conditions: dict[int, Condition] = {}
        self._kept: list[Any] = []  # their identities are theirs for as long as the walk lasts
        self._visited: set[tuple[int, int, bool]] = set()
        self._contents = Contents()
        self._outer: set[int] = set()  # identities of what was there before the forward
        self._names: dict[int, Names] = {}
        self._more: dict[int, Names] = {}  # by the identity of names, those with what was met in hand
        self._judged: dict[Any, str | None] = {}
        self._ran: list[tuple[FunctionCondition, types.FunctionType]] = []
        self._imported: set[str] = set()
        self._finders: list[Names] = []  # of functions that look modules up
        self._strings: set[str] = set()  # that were met: they may name a module
        self._begun = False  # whether a frame was entered: the first one's arguments are the caller's
        self._queries: dict[int, Any] = {}  # functions of torch that tell a setting
        self._tensors: dict[int, torch.Tensor] = {}  # whose values were read
        self._looks = 0  # at objects, those met before included
        self._cells: dict[int, tuple[types.CellType, Any]] = {}  # with what was in each when it was met first
        self._decimals = False  # whether the forward reaches any
        self._scalar_read = False  # whether a value computed of such was
        self.given: GivenNames | None = None

    # -- what is heard of frames (frames.Listener) ------------------------------------------------------------------

    def entered(
        self, code: types.CodeType, function: types.FunctionType | None, values: Sequence[Any], keywords: Any = None
    ) -> None:
        names = self._names_of(code)
        condition = None if function is None else self.part(function)
        if function is not None and isinstance(condition, FunctionCondition) and not condition.ran:
            self._run(condition, function, names)
        begins = not self._begun
        self._begun = True
        if function is not None and self.given is not None and not names.any_global:
            self.given.entered(function, names.globals)
        for value in values:
            self.follow(value, names, begins and value is not keywords)  # Python makes that dict for each call
        for value in keywords.values() if begins and keywords else ():
            self.follow(value, names, True)
        if id(names) in self._more:
            self._look_again(code, values)

    def returned(self, frame: types.FrameType, value: Any) -> None:
        if value is None or isinstance(value, torch.Tensor) or is_value(value):
            return
        caller = frame.f_back
        while caller is not None and not is_followed(caller):
            caller = caller.f_back
        if caller is None:
            return
        if isinstance(value, types.FrameType) and kind_of(caller.f_code, caller.f_globals) == FOLLOWED:
            raise ChangedValueError(_FRAMES, f"{caller.f_code.co_filename}:{caller.f_lineno}")
        names = self._names_of(caller.f_code)
        if isinstance(value, types.ModuleType) and sys.modules.get(value.__name__) is value:
            self._follow_module(value.__name__, names)  # found by a name that the function was given
        else:
            self.follow(value, names)
        if id(names) in self._more:
            self._look_again(caller.f_code, list(caller.f_locals.values()))

    def called(self, frame: types.FrameType, function: Any) -> None:
        if not isinstance(function, types.BuiltinFunctionType):
            return
        if is_query(function):
            self._queries[id(function)] = function
            if function.__module__ == "sys":
                return
        owner = getattr(function, "__self__", None)
        if type(owner) in _PLAIN_TENSORS and function.__name__ in _READERS:
            self.value_read(owner)
        why = self._impure(function)
        if function in _OF_THE_CALL and _is_asking(frame):
            why = _OF_THE_CALL[function]
        elif function is threading.get_ident and _is_asking(frame):
            self._queries[id(function)] = function
        if why is not None:
            raise ChangedValueError(why, f"{frame.f_code.co_filename}:{frame.f_lineno}")

    def _impure(self, function: Any) -> str | None:
        """Why a C function cannot be part of a graph; None where it can, or where the user vouches for it."""
        owner = getattr(function, "__self__", None)
        itself = isinstance(owner, (type, types.ModuleType, torch.Generator))
        key = (function.__name__, owner if itself else type(owner), function.__module__)
        if key not in self._judged:
            self._judged[key] = impure_reason(function)
        return None if self._is_vouched(function, owner) else self._judged[key]

    def _hand_over(self, holder: Any, found: Iterable[Any], names: Names) -> None:
        """Refuses C functions that code may have others in C call, which nobody hears of: `map(os.listdir, paths)`."""
        for function in found:
            if type(function) is types.BuiltinFunctionType and (why := self._impure(function)) is not None:
                if is_handed_over(holder, function, names):
                    raise ChangedValueError(why)

    def value_read(self, tensor: torch.Tensor | None) -> None:
        """Hears that a number was made of a tensor's value; of None where it was computed of some."""
        if tensor is None:
            self._scalar_read = True
        else:
            self._tensors[id(tensor)] = tensor

    def _is_vouched(self, *values: Any) -> bool:
        return any(id(value) in self.vouched for value in values)

    # -- conditions -------------------------------------------------------------------------------------------------

    def part(self, value: Any) -> Condition:
        """The condition of a value; the same one for the same object."""
        value = self.own(value)
        known = self._conditions.get(id(value))
        if known is not None:
            return known
        self._decimals = self._decimals or value is decimal.Decimal or type(value) is decimal.Decimal
        return condition_of(value, self)

    def keep(self, value: Any, condition: Condition) -> None:
        """Notes a condition before its parts are made: they may lead back to it."""
        self._kept.append(value)
        self._conditions[id(value)] = condition
        self.values[id(condition)] = value
        if len(self._kept) > _MOST_OBJECTS:
            raise RecursionError("the forward can reach too many Python objects to watch them")

    def knows(self, value: Any) -> bool:
        """Whether a tensor was there before the forward, and has a condition."""
        return id(value) in self._conditions and id(value) in self._outer

    def own(self, value: Any) -> Any:
        """What the user knows, where a trace has put something in its place."""
        for table in self.originals:
            value = table.get(id(value), value)
        return value.get_base() if isinstance(value, _AttrProxy) else value  # type: ignore[attr-defined]

    def original(self, part: Condition) -> Any:
        """The object that a condition was made of."""
        return part.value if isinstance(part, ValueCondition) else self.values[id(part)]

    def root(self, text: str, value: Any) -> None:
        """Notes that the walk's reader gets hold of `value` on its own."""
        self.roots.append((text, self.part(value), self.own(value)))

    # -- the walk ---------------------------------------------------------------------------------------------------

    def _names_of(self, code: types.CodeType) -> Names:
        found = self._names.get(id(code))
        if found is None:
            self._kept.append(code)
            found = self._names[id(code)] = names_of(code)
        return found

    def _run(self, condition: FunctionCondition, function: types.FunctionType, names: Names) -> None:
        scope = self.namespace("the global ", function.__globals__)
        builtins = self.namespace("the builtin ", getattr(function, _BUILTINS))
        condition.run(function, scope, builtins, self.part, self._first_content)
        self._ran.append((condition, function))
        self._look(function, names)

    def _first_content(self, cell: types.CellType) -> Any:
        """What a variable held that functions share when the first of them was met."""
        return self._cells.setdefault(id(cell), (cell, cell_content(cell)))[1]

    def _look(self, function: types.FunctionType, names: Names) -> None:
        """Notes what a function can read of its own: globals, variables around it, defaults, modules."""
        scope = self.namespace("the global ", function.__globals__)
        offered: dict[str, Any] = getattr(function, _BUILTINS)
        table = function.__globals__
        looked_up = names.globals
        if names.any_global:
            looked_up |= (table.keys() - OF_IMPORT) | names.words
        scope.entries.keep(table, names.stored_globals)
        added = frozenset(name for name in looked_up if id(table.get(name)) in ADDED) if ADDED else frozenset()
        if names.any_global and not names.of_torch:
            scope.entries.ask_all(table, self.part, added | OF_IMPORT)
        found = scope.grow(table, looked_up - added, self.part)
        own = self.namespace("the builtin ", offered).grow(offered, looked_up - (table.keys() - added), self.part)
        self._hand_over(table, found, names)
        self._hand_over(offered, own, names)
        found += [value for value in own if named_through(value, names) is None]  # `names` are what these do here
        for value in found:
            self.follow(value, names, True)
        own = [cell_content(cell) for cell in function.__closure__ or ()]
        own += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        self._hand_over(own, own, names)
        outer = not self._begun or id(function) in self._outer  # or it was made by the forward, and what it holds too
        for value in own:
            if value is not MISSING:
                self.follow(value, names, outer)
        looked_for = {full for level, name in names.imports for full in imported_names(level, name, table)}
        if names.finds_modules and not names.of_torch:  # `F.interpolate` finds one of torch's
            if kind_of(function.__code__, table) == FOLLOWED:  # the standard library's give what they find back
                self._finders.append(names)
            looked_for |= names.words | {str(table.get("__name__"))}  # `sys.modules[__name__]`
        for full in looked_for:
            self._follow_module(full, names)

    def _look_again(self, code: types.CodeType, values: Sequence[Any]) -> None:
        """Takes in what a function can read by further names, of what it was met with in hand."""
        while (more := self._more.get(id(names := self._names_of(code)))) is not None:
            self._kept.append(names)  # what was visited is known by its identity
            self._names[id(code)] = more
            for _, function in self._ran:
                if function.__code__ is code:
                    self._look(function, more)
            for value in values:
                self.follow(value, more)

    def _follow_module(self, full: str, names: Names) -> None:
        """Notes that a function with these names gets hold of the module `full`, if there is one."""
        if full in sys.modules and full not in self._imported:
            self._imported.add(full)
            self.loaded_modules().grow(sys.modules, {full}, self.part)
        if full in sys.modules:
            self.follow(sys.modules[full], names, True)

    def _follow_found_modules(self) -> None:
        """Takes in the modules that a function has found by a name which it was given."""
        if self._finders:
            words = (names.words for names in self._names.values() if not names.of_torch)
            named = self._strings.union(*words)
            given = named & sys.modules.keys()
            absent = {word for word in named - given if all(part.isidentifier() for part in word.split("."))}
            self.loaded_modules().grow(sys.modules, absent, self.part)
            for full in sorted(name for name in given if not is_opaque_module(name)):
                for names in self._finders:
                    self._follow_module(full, names)

    def loaded_modules(self) -> NamespaceCondition:
        """The condition of `sys.modules`, which is a root from the first call on."""
        table: dict[str, Any] = sys.modules
        loaded = self.namespace("the module ", table)
        if not any(condition is loaded for _, condition, _ in self.roots):
            self.roots.append(("", loaded, table))
        return loaded

    def namespace(self, text: str, table: dict[str, Any]) -> NamespaceCondition:
        known = self._conditions.get(id(table))
        if isinstance(known, NamespaceCondition):
            return known
        made = NamespaceCondition(text)
        self.keep(table, made)
        return made

    def follow(self, value: Any, names: Names, outer: bool = False) -> None:
        """Notes what can be read of `value` by these names.

        Args:
            value: what a function has in hand.
            names: the function's.
            outer: whether `value` was there before the forward.

        Raises:
            CaptureError: it leads to something of the user's that cannot be watched, an iterator say. To go on would
                use that up.
        """
        pending = [(value, outer)]
        while pending:
            value, outer = pending.pop()
            self._looks += 1
            if self._looks > _MOST_LOOKS:
                raise CaptureError("what the forward makes of Python objects is too much to follow")
            value = self.own(value)
            more = named_through(value, self._more.get(id(names), names))
            if more is not None:
                self._more[id(names)] = more
            if isinstance(value, torch.Tensor) or is_value(value):
                if outer and isinstance(value, torch.Tensor):
                    self._outer.add(id(value))
                if type(value) is str:
                    self._strings.add(value)
                continue
            if outer:
                self._outer.add(id(value))
            elif id(value) in self._outer:
                outer = True
            key = (id(value), id(names), outer)
            again = key in self._visited
            if again and not (isinstance(value, _REFILLED) and self._contents.holds_more(key, value)):
                continue
            self._visited.add(key)
            condition = self.part(value)
            if outer and isinstance(condition, UnknownCondition):
                self._refuse(condition)
            if isinstance(condition, ContextVariableCondition) and condition.is_set_inside():
                outer = False
            led_to = led_to_by(self, condition, value, names)
            if outer and isinstance(condition, ClassCondition):
                self._outer.update(map(id, condition.functions()))
            self._hand_over(value, led_to, names)
            if isinstance(value, types.ModuleType):
                self._queries.update((id(f), f) for f in led_to if is_query(f))
                if value.__name__.startswith("torch.distributed") and torch.distributed.is_available():
                    self._queries[id(torch.distributed.is_initialized)] = torch.distributed.is_initialized
            inside: set[int] = set()
            if outer and isinstance(condition, ObjectCondition) and not self._outer.issuperset(map(id, led_to)):
                inside = condition.set_inside(value, self)
            further = [v for v in led_to if not again or (id(v), id(names), outer) not in self._visited]
            pending.extend((v, outer and id(v) not in inside) for v in further)

    def _refuse(self, unknown: UnknownCondition) -> None:
        for text, condition, _ in reachable(self.roots, set(), self.values):
            if condition is unknown:
                raise CaptureError(f"the forward can reach {spoken(text)}, {condition.what}, which cannot be watched")
        raise CaptureError(f"the forward can reach {unknown.what}, which cannot be watched")

    # -- the end ----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Takes in what could not be looked at during the trace; called when nothing is replaced any more."""
        self._follow_found_modules()
        self.settle_classes()
        for condition in list(self._conditions.values()):
            why = condition.settle(self.values[id(condition)], self.part)
            if why is not None:
                raise CaptureError(f"the forward can reach {why}")
            condition.forget()
            if isinstance(condition, OuterTensorCondition):
                tensor = self.values[id(condition)]
                if id(tensor) in self._tensors or (self._scalar_read and tensor.numel() == 1):
                    if not condition.read() and (id(tensor) in self._outer or tensor.numel() > 64):
                        raise CaptureError("the forward makes Python numbers of the values of a large tensor")
        self.settle_classes()  # those of results that caches hold now
        if not ASKING.isdisjoint(self.every_name()):
            for logger in every_logger():
                self.root(f"the logger {logger.name}", logger)
        known = {id(condition) for _, condition, _ in self.roots}
        for one in ModuleCondition.no_children(self._conditions.values()):
            if id(one) not in known:
                self.roots.append((f"the module {type(self.values[id(one)]).__qualname__}", one, self.values[id(one)]))
        if self._decimals:
            self.roots.append(("the context of decimal", QueryCondition(decimal_context), decimal_context))
        if uses_numpy(self._kept):
            self.roots.append(("the settings of numpy", QueryCondition(numpy_settings), numpy_settings))
        self.root("the class torch.Tensor", torch.Tensor)
        tensors = self.part(torch.Tensor)
        assert isinstance(tensors, ClassCondition)
        tensors.grow(self.every_name(), False, self.part)
        tensors.take_special(self.part)
        for function in self._queries.values():
            if self.own(function) is function and QueryCondition.answers(function):
                self.roots.append((f"what {function.__name__}() says", QueryCondition(function), function))

    def close(self, reached: set[int]) -> list[tuple[str, Condition, Any]]:
        """Makes roots of the functions that ran and are not among what is reached, identities of conditions; returns
        those. Called after `settle`.
        """
        begun = len(self.roots)
        for condition, function in self.not_made_inside():
            if id(condition) not in reached:
                self.root(f"the function {function.__qualname__}", function)
        return self.roots[begun:]

    def settle_classes(self) -> None:
        """Takes the special methods of every class in."""
        for condition in list(self._conditions.values()):
            if isinstance(condition, ClassCondition):
                condition.take_special(self.part)

    def every_name(self) -> frozenset[str]:
        """Every attribute that the code that ran can name."""
        return frozenset().union(*(names.attributes for names in self._names.values()))

    def any_name_of_program(self) -> bool:
        """Whether code of the user's computes names of attributes."""
        return any(names.any_name and names.of_program for names in self._names.values())

    def all_roots(self) -> Iterator[tuple[str, Condition, Any]]:
        """The roots, and before the end of the trace every function that ran."""
        yield from self.roots
        yield from ((f"the function {f.__qualname__}", condition, f) for condition, f in self.not_made_inside())

    def outer_condition(self, value: Any) -> Condition | None:
        """The condition of an object that was there before the forward and may change; None for anything else."""
        value = self.own(value)
        if id(value) not in self._outer or isinstance(value, torch.Tensor | tuple) or is_value(value):
            return None
        return self._conditions.get(id(value))

    def met(self) -> Iterator[tuple[Condition, Any]]:
        """(condition, object) of all that was met."""
        yield from ((self._conditions[id(v)], v) for v in list(self._kept) if id(v) in self._conditions)

    def outer_objects(self) -> Iterator[tuple[str, Condition, Any]]:
        """What was met of what there was before the forward, whether a root leads to it or not."""
        for value in [value for value in self._kept if id(value) in self._outer and id(value) in self._conditions]:
            yield f"an object of class {type(value).__qualname__}", self._conditions[id(value)], value

    def not_made_inside(self) -> Iterator[tuple[Condition, types.FunctionType]]:
        """The functions that ran, but those that others of them have made, and the standard library's: what calls
        one of these knows it by name, unless the collector does.
        """
        inner = {id(code) for _, function in self._ran for code in code_inside(function.__code__)}
        for condition, function in self._ran:
            code = function.__code__
            if id(code) not in inner and kind_of(code, function.__globals__) == FOLLOWED:
                yield condition, function


def _is_asking(frame: types.FrameType) -> bool:
    """Whether it is the program that asks, by itself or by what `traceback` tells."""
    return frame.f_globals.get("__name__") == "traceback" or kind_of(frame.f_code, frame.f_globals) == FOLLOWED
