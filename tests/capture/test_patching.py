"""What a capture replaces: seen by its own thread alone, known by what was there, and gone in the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ortmodule.capture.trace import patching
from ortmodule.capture.trace.patching import FORWARD, ORIGINALS, Around, Patch, caller, installed
from ortmodule.capture.trace.side_outputs import SideOutputs
from ortmodule.capture.trace.tracing import TraceState, captured_elsewhere, current_trace, running


class Owner:
    def method(self) -> str:
        return "method"

    @classmethod
    def of_class(cls) -> str:
        return f"of {cls.__name__}"

    @property
    def size(self) -> int:
        return 1


class Inheriting(Owner):
    pass


def state() -> TraceState:
    module = torch.nn.Linear(2, 2)
    return TraceState(module, SideOutputs(module))


def elsewhere(call: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def prefixed(original: Any, state: TraceState) -> Any:
    return lambda *args: f"traced {original(*args)}"


def larger(original: Any, state: TraceState) -> Any:
    return property(lambda self: original.__get__(self) + 10)


def with_entries(monkeypatch: pytest.MonkeyPatch, *entries: Patch | Around) -> None:
    monkeypatch.setattr(patching, "entries", lambda: entries)


PLACES = [
    (Patch(Owner, "method", prefixed), lambda: Owner().method(), "traced method", "method"),
    (Patch(Owner, "of_class", prefixed), lambda: Inheriting.of_class(), "traced of Inheriting", "of Inheriting"),
    (Patch(Inheriting, "method", prefixed), lambda: Inheriting().method(), "traced method", "method"),
    (Patch(Owner, "size", larger), lambda: Owner().size, 11, 1),
    (Patch(Owner, "of_class", prefixed, by_code=True), Owner.of_class, "traced of Owner", "of Owner"),
]


@pytest.mark.parametrize(("patch", "look", "here", "there"), PLACES)
def test_a_replacement_is_for_the_capturing_thread_alone(
    monkeypatch: pytest.MonkeyPatch, patch: Patch, look: Callable[[], Any], here: Any, there: Any
) -> None:
    with_entries(monkeypatch, patch)
    before = dict(vars(patch.owner))
    with installed(state()):
        assert look() == here
        assert elsewhere(look) == there
    assert look() == there
    assert dict(vars(patch.owner)) == before
    assert ORIGINALS == {}


@pytest.mark.parametrize("name", ["method", "of_class", "size"])
def test_what_is_put_in_place_tells_what_was_there(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with_entries(monkeypatch, Patch(Owner, name, larger if name == "size" else prefixed))
    raw = vars(Owner)[name]
    with installed(state()):
        assert ORIGINALS[id(vars(Owner)[name])] is raw
        if name == "of_class":
            assert ORIGINALS[id(vars(Owner)[name].__func__)] is raw.__func__


def test_every_attribute_that_a_capture_replaces_tells_what_was_there() -> None:
    places = [
        (e.owner, e.name) for e in patching.entries()
        if isinstance(e, Patch) and not isinstance(e.owner, str) and not e.by_code and e.during != FORWARD
    ]  # fmt: skip
    before = {(owner, name): vars(owner).get(name) for owner, name in places}
    capture = state()
    capture.from_one = capture.symbolic = True
    with running(capture), installed(capture):
        for owner, name in places:
            now = vars(owner).get(name)
            assert now is before[owner, name] or id(now) in ORIGINALS, f"{owner}.{name}"
    assert {(owner, name): vars(owner).get(name) for owner, name in places} == before


def test_patches_of_the_forward_are_in_place_while_it_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with_entries(monkeypatch, Patch(Owner, "method", prefixed, during=FORWARD))
    capture = state()
    with installed(capture):
        assert Owner().method() == "method"
        with installed(capture, FORWARD):
            assert Owner().method() == "traced method"
        assert Owner().method() == "method"


def test_a_patch_that_is_placed_during_a_trace_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with_entries(monkeypatch)
    capture = state()
    with installed(capture):
        capture.place(Patch(Owner, "method", prefixed))
        assert Owner().method() == "traced method"
    assert Owner().method() == "method"


def test_a_replacement_knows_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    with_entries(monkeypatch, Patch(Owner, "method", lambda original, state: lambda self: caller().f_code.co_name))
    with installed(state()):
        assert Owner().method() == "test_a_replacement_knows_its_caller"


def test_the_capture_that_runs_is_known_to_its_own_thread() -> None:
    capture = state()
    with running(capture):
        assert current_trace() is capture and not captured_elsewhere()
        assert elsewhere(current_trace) is None and elsewhere(captured_elsewhere)
    assert current_trace() is None
