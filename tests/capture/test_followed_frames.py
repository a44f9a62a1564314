"""What is heard of frames, and of calls of what a capture has replaced, whoever calls whom."""

from __future__ import annotations

import functools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sympy
from torch.utils.weak import WeakIdKeyDictionary

from ortmodule import _C
from ortmodule.graph_transition.audit import frames

OPAQUE, FOLLOWED, BY_CALLER, PASSED_BY = range(4)
KINDS = {"opaque": OPAQUE, "user": FOLLOWED, "library": BY_CALLER, "between": PASSED_BY}


def kind_of(code: types.CodeType, scope: dict[str, Any]) -> int:
    return next((kind for word, kind in KINDS.items() if code.co_name.startswith(word)), OPAQUE)


class Heard:
    """The names of frames entered, of C functions called, and values returned."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.called: list[str] = []
        self.returned: list[Any] = []

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        monitor = _C.CallMonitor(
            kind_of,
            lambda frame, function, values: self.entered.append(frame.f_code.co_name),
            lambda frame, value: self.returned.append(value),
            lambda frame, function: self.called.append(function.__name__),
        )
        monitor.start()
        try:
            return function(*arguments)
        finally:
            assert monitor.stop() is None


def user_leaf(value: Any = None) -> Any:
    return [abs(-1)]


def library_leaf(value: Any = None) -> Any:
    return [hash(2)]


def opaque_leaf(value: Any = None) -> Any:
    return [round(1.5)]


def opaque_calls(*functions: Callable[..., Any]) -> list[Any]:
    return [function() for function in functions]


def user_calls(*functions: Callable[..., Any]) -> list[Any]:
    found = []
    for function in functions:
        found.append(function())
    return found


def user_yields() -> Iterator[Any]:
    yield [0]
    user_leaf()
    yield [1]


def between_calls(function: Callable[..., Any]) -> Any:
    return function()


def test_user_code_that_opaque_code_calls() -> None:
    heard = Heard()
    heard.run(opaque_calls, opaque_leaf, functools.partial(opaque_calls, user_leaf), opaque_leaf)
    assert heard.entered == ["user_leaf"] and heard.called == ["abs"] and heard.returned == [[1]]


def test_opaque_code_that_user_code_calls() -> None:
    heard = Heard()
    heard.run(user_calls, opaque_leaf, user_leaf, functools.partial(opaque_calls, opaque_leaf))
    assert heard.entered == ["user_calls", "user_leaf"]
    assert "round" not in heard.called and "abs" in heard.called


def test_library_code_counts_as_its_caller_does() -> None:
    heard = Heard()
    heard.run(opaque_calls, library_leaf)
    assert heard.entered == [] and heard.called == []
    heard.run(user_calls, library_leaf, functools.partial(between_calls, library_leaf))
    assert heard.entered[0] == "user_calls" and set(heard.entered[1:]) == {"library_leaf"}
    assert "hash" in heard.called


def test_callbacks_of_functions_in_c() -> None:
    heard = Heard()
    heard.run(lambda: sorted([2, 1], key=user_leaf))
    assert heard.entered and set(heard.entered) == {"user_leaf"}


def test_generators_and_errors() -> None:
    def opaque_loop() -> None:
        for _ in user_yields():
            opaque_leaf()
        loop = user_yields()
        next(loop)
        with pytest.raises(ValueError, match="thrown"):
            loop.throw(ValueError("thrown"))

    def user_fails() -> None:
        raise KeyError("user")

    heard = Heard()
    heard.run(opaque_loop)
    assert "user_leaf" in heard.entered and [0] in heard.returned and [1] in heard.returned
    with pytest.raises(KeyError):
        heard.run(opaque_calls, user_fails)
    heard.run(opaque_calls, user_leaf)
    assert heard.entered[-1] == "user_leaf"


def test_deep_recursion_of_opaque_code() -> None:
    def opaque_deep(depth: int) -> Any:
        return user_leaf() if depth == 0 else opaque_deep(depth - 1)

    heard = Heard()
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        assert heard.run(opaque_deep, 10_000) == [1]
    finally:
        sys.setrecursionlimit(before)
    assert heard.entered == ["user_leaf"] and heard.called == ["abs"]


def test_the_end_of_the_stack() -> None:
    def user_endless() -> Any:
        return user_endless()

    with pytest.raises(RecursionError):
        Heard().run(opaque_calls, user_endless)
    heard = Heard()
    heard.run(opaque_calls, user_leaf)
    assert heard.entered == ["user_leaf"]


def test_other_threads_are_not_heard() -> None:
    def opaque_starts() -> None:
        thread = threading.Thread(target=user_leaf)
        thread.start()
        thread.join()

    heard = Heard()
    heard.run(opaque_starts)
    assert heard.entered == []


def test_one_monitor_within_another() -> None:
    inner, outer = Heard(), Heard()
    outer.run(opaque_calls, user_leaf, lambda: inner.run(opaque_calls, user_leaf), user_calls)
    assert inner.entered == ["user_leaf"]
    assert outer.entered[0] == "user_leaf" and outer.entered[-1] == "user_calls"


def test_nothing_stays_when_it_is_over() -> None:
    heard = Heard()
    heard.run(opaque_calls, user_leaf)
    user_calls(user_leaf)
    assert heard.entered == ["user_leaf"] and sys.getprofile() is None


def test_functions_that_sympy_makes_of_texts() -> None:
    made: dict[str, Any] = {}
    exec("def made(): return 1", made)
    function = made["made"]
    assert frames.kind_of(function.__code__, function.__globals__) == FOLLOWED
    asking = {"ask": frames.kind_of, "code": function.__code__, "scope": function.__globals__}
    exec(compile("kind = ask(code, scope)", sympy.__file__, "exec"), asking)
    assert asking["kind"] == OPAQUE


# -- what a capture puts in a function's place ------------------------------------------------------------------------


def patched(asked: Any) -> tuple[Callable[..., Any], list[str]]:
    told: list[str] = []
    call = _C.patched_call(
        lambda *a, **k: told.append("replacement"), lambda *a, **k: told.append("original"),
        lambda *a, **k: told.append("elsewhere"), asked,
    )  # fmt: skip
    return call, told


def test_instances_of_a_class() -> None:
    call, told = patched(int)
    for argument in (1, True, "one"):
        call(argument, further=1)
    call()
    assert told == ["replacement", "replacement", "original", "replacement"]


def test_pairs_that_were_heard() -> None:
    pairs = _C.HeardPairs()
    call, told = patched(pairs)
    one, name = object(), "name"
    call(one, name)
    pairs.add(one, name)
    call(one, name)
    call(one, "other")
    pairs.listens = False
    call(one, "other")
    pairs.listens = True
    pairs.clear()
    call(one, name)
    assert told == ["replacement", "original", "replacement", "original", "replacement"]


def test_callers_that_count() -> None:
    def kind_of_scope(scope: dict[str, Any]) -> int:
        return int(scope["__name__"] == "counts") if scope["__name__"] != "passes" else 3

    call, told = patched(_C.Callers(kind_of_scope))
    made = {}
    for name in ("counts", "other", "passes"):
        scope: dict[str, Any] = {"__name__": name}
        exec("def run(call): return call()", scope)
        made[name] = scope["run"]
    made["counts"](call)
    made["other"](call)
    made["counts"](lambda: made["passes"](call))  # the lambda's module does not count
    scope = {"__name__": "counts", "passes": made["passes"], "call": call}
    exec("def run(): return passes(call)", scope)
    scope["run"]()
    assert told == ["replacement", "original", "original", "replacement"]


class Key:
    pass


@pytest.mark.parametrize("kept", [weakref.WeakKeyDictionary, weakref.WeakValueDictionary, WeakIdKeyDictionary])
def test_what_dies_meanwhile_is_not_heard_of(kept: type) -> None:
    """A collection may come at any time, and end what lies in dictionaries that the code knows nothing of."""
    heard = Heard()
    monitor = _C.CallMonitor(
        frames.kind_of,
        lambda frame, function, values: heard.entered.append(frame.f_code.co_name),
        lambda frame, value: None,
        lambda frame, function: None,
    )
    table: Any = kept()
    keys = [Key()]
    table[1 if kept is weakref.WeakValueDictionary else keys[0]] = keys[0] if kept is weakref.WeakValueDictionary else 1
    function = types.FunctionType(
        compile("def forward(keys): keys.clear()", "forward.py", "exec").co_consts[0], {"__name__": "user"}
    )
    monitor.start()
    function(keys)
    assert monitor.stop() is None
    assert not table and heard.entered == ["forward"]


def test_as_a_method_and_in_another_thread() -> None:
    call, told = patched(None)

    class Holder:
        method = call

    Holder().method()
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    call.__name__ = "named"
    assert told == ["replacement", "elsewhere"] and call.__name__ == "named"


def test_an_error_of_the_replacement() -> None:
    def fails(*arguments: Any) -> None:
        raise ValueError("fails")

    call = _C.patched_call(fails, len, len, None)
    with pytest.raises(ValueError, match="fails"):
        call([1])
