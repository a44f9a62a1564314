"""Debuggers, coverage and profilers use the interpreter's hooks as well: a forward that is traced under one is watched
as without it, and the tool goes on to hear of everything."""

from __future__ import annotations

import bdb
import contextlib
import cProfile
import pstats
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn as nn

from ortmodule import Options, ORTModule

FACTOR = 2.0


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.alpha = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return helper(self.linear(x)) * self.alpha


Told = Callable[[], bool]  # whether the tool has heard of `helper`


@contextlib.contextmanager
def tracer() -> Iterator[Told]:
    seen: set[str] = set()

    def trace(frame: Any, event: str, argument: Any) -> Any:
        seen.add(frame.f_code.co_name)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lambda: "helper" in seen
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)


@contextlib.contextmanager
def profiler() -> Iterator[Told]:
    seen: set[str] = set()

    def profile(frame: Any, event: str, argument: Any) -> None:
        seen.add(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield lambda: "helper" in seen
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(before)


@contextlib.contextmanager
def c_profiler() -> Iterator[Told]:
    profile = cProfile.Profile()
    profile.enable()
    try:
        yield lambda: any(key[2] == "helper" for key in pstats.Stats(profile).stats)  # type: ignore[attr-defined]
    finally:
        profile.disable()


@contextlib.contextmanager
def debugger() -> Iterator[Told]:
    lines: list[str] = []

    class Debugger(bdb.Bdb):
        def user_line(self, frame: Any) -> None:
            lines.append(frame.f_code.co_name)
            self.set_continue()

    before = sys.gettrace()
    debugger = Debugger()
    debugger.reset()
    assert debugger.set_break(__file__, helper.__code__.co_firstlineno + 1) is None
    sys.settrace(debugger.trace_dispatch)
    try:
        yield lambda: "helper" in lines
    finally:
        sys.settrace(before)
        debugger.clear_all_breaks()


@contextlib.contextmanager
def covered(core: str) -> Iterator[Told]:
    coverage = pytest.importorskip("coverage")
    if core == "sysmon" and sys.version_info < (3, 12):
        pytest.skip("Python 3.11 has no sys.monitoring")
    if sys.gettrace() is not None:
        pytest.skip("the tests run under a tracer")
    measured = coverage.Coverage(data_file=None, include=[__file__])
    measured.set_option("run:core", core)
    measured.start()
    line = helper.__code__.co_firstlineno + 1
    try:
        yield lambda: line in (measured.get_data().lines(__file__) or ())
    finally:
        measured.stop()


@contextlib.contextmanager
def torch_profiler() -> Iterator[Told]:
    with torch.profiler.profile(with_stack=True):
        yield lambda: True


@contextlib.contextmanager
def every_monitoring_id() -> Iterator[Told]:
    if sys.version_info < (3, 12):
        pytest.skip("Python 3.11 has no sys.monitoring")
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    seen: set[str] = set()
    taken = [i for i in range(6) if monitoring.get_tool(i) is None]
    for i in taken:
        monitoring.use_tool_id(i, "test")
        monitoring.register_callback(i, monitoring.events.PY_START, lambda code, at: seen.add(code.co_name))
        monitoring.set_events(i, monitoring.events.PY_START)
    try:
        yield lambda: "helper" in seen
    finally:
        for i in taken:
            monitoring.set_events(i, 0)
            monitoring.free_tool_id(i)


TOOLS: dict[str, Callable[[], contextlib.AbstractContextManager[Told]]] = {
    "sys.settrace": tracer,
    "sys.setprofile": profiler,
    "cProfile": c_profiler,
    "a debugger": debugger,
    "coverage": lambda: covered("ctrace"),
    "coverage by sys.monitoring": lambda: covered("sysmon"),
    "torch.profiler": torch_profiler,
    "every id of sys.monitoring": every_monitoring_id,
}


@pytest.mark.parametrize("tool", TOOLS)
def test_a_change_is_seen_when_a_tool_was_active_during_the_trace(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 4)
    model = ORTModule(Net(), options=Options(fallback="error"))
    with TOOLS[tool]() as told:
        model(x)
        y = model(x)
        assert told()
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    torch.testing.assert_close(model(x), y * 1.5)
    model.module.alpha = 2.0
    torch.testing.assert_close(model(x), y * 3.0)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_change_is_seen_while_a_tool_is_active(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 4)
    model = ORTModule(Net(), options=Options(fallback="error"))
    model(x)
    y = model(x)
    with TOOLS[tool]():
        monkeypatch.setitem(globals(), "FACTOR", 3.0)
        torch.testing.assert_close(model(x), y * 1.5)


def test_another_thread_is_not_listened_to() -> None:
    x = torch.randn(2, 4)
    model = ORTModule(Net(), options=Options(fallback="error"))
    done = threading.Event()

    def busy() -> None:
        while not done.is_set():
            helper(x)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        model(x)
    finally:
        done.set()
        thread.join()
    assert sys.getprofile() is None
