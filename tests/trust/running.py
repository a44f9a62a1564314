"""Runs a program in a world of its own: its files loaded anew, what is global to the process put back afterwards.

Each wrapper runs the whole schedule by itself, so that what belongs to the process (environment variables, settings,
builtins) is changed for one of them at a time; what each step showed is compared afterwards.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib.util
import io
import linecache
import os
import random
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ortmodule.capture.trace.repeats import repeats

from .comparing import RIGHT, Observation, Outcome, compare
from .observing import rendered
from .programs import Program
from .world import world
from .wrappers import WRAPPERS, Wrapper

__all__ = ["observe", "run"]


def _load(folder: Path, name: str, source: str, library: str) -> tuple[types.ModuleType, types.ModuleType]:
    loaded = []
    for module_name, text in ((f"{name}_lib", library), (name, source)):
        path = folder / f"{module_name}.py"
        path.write_text(text.replace("LIBRARY", f"{name}_lib"))
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        linecache.checkcache(str(path))
        loaded.append(module)
    return loaded[1], loaded[0]


class _Run:
    """One program in one wrapper."""

    def __init__(self, program: Program, wrapper: Wrapper, name: str, folder: Path) -> None:
        self.wrapper, self.program, self.name = wrapper, program, name
        torch.manual_seed(program.number)
        self.main, self.library = _load(folder, name, program.source, program.library)
        self.module = self.main.Stack() if program.depth else self.main.Net()
        self.subject = self.module.parts[program.part] if program.depth else self.module
        vars(self.main)["MODEL"] = self.subject
        self.wrapped = wrapper.make(self.module)
        self.optimizer: Any = None
        self.calls = 0
        self.rounded = False  # whether a call was made under autocast
        self.last: Any = None
        self.clock, self.texts = 0.0, set[str]()

    def steps(self) -> Iterator[Observation]:
        for step in self.program.schedule:
            if "call" in step:
                yield self.call(step["call"])
            elif "spoil" in step:
                yield self.observe("the last result's containers are written", lambda: _spoil(self.last), {})
            elif "optimizer" in step:
                yield self.observe("an optimizer's step", self.optimize, {})
            else:
                how = step["thread"], step.get("through", False)
                yield self.observe("a change", functools.partial(self.change, step["change"], *how), {})

    def optimize(self) -> None:
        torch.optim.SGD(self.module.parameters(), lr=0.05).step()

    def change(self, number: int, thread: bool = False, through: bool = False) -> None:
        """Makes a change on the module, or on the wrapper around it."""
        function = getattr(self.main, f"change_{number}")
        target = self.wrapped if through else self.module
        target = target.parts[self.program.part] if self.program.depth else target
        if thread:
            _in_thread(lambda: function(target))
        else:
            function(target)

    def call(self, call: dict[str, Any]) -> Observation:
        self.calls += 1
        self.module.train(call["train"])
        if not call.get("keep_grad") and not hasattr(self.main, "KEEP"):
            self.module.zero_grad()
        torch.manual_seed(self.calls)
        x = torch.randn(call["batch"], 4, generator=torch.Generator().manual_seed(self.calls))
        x.requires_grad_(call["x_grad"])
        for change in self.main.GIVES.values():
            x = change(x, self.subject)
        for name, value in self.main.ON_X.items():
            setattr(x, name, value)
        random.seed(self.calls)
        np.random.seed(self.calls)
        shown: dict[str, Any] = {"x": x}
        before = self.wrapper.runs(self.wrapped)

        def step() -> None:
            result = self.forward(x, call)
            shown["result"] = self.last = result
            if "change" in call:
                self.change(call["change"])
            losses = [_loss(t) for t in _tensors(result) if t.requires_grad and t.is_floating_point()]
            if losses:
                self.backward(torch.stack(losses).sum())

        found = self.observe("a call", (lambda: _in_thread(step)) if call.get("thread") else step, shown)
        found.engine = self.wrapper.runs(self.wrapped) > before
        return found

    def backward(self, loss: torch.Tensor) -> None:
        """After an error no gradients: eager has those that it came to before it (docs/conditions.md)."""
        try:
            loss.backward()
        except Exception:
            self.module.zero_grad()
            for leaf in _leaves(loss):  # of layers that are none of the module's, too
                leaf.grad = None
            raise

    def forward(self, x: torch.Tensor, call: dict[str, Any]) -> Any:
        around: Any = {
            "on": contextlib.nullcontext, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode,
            "set_grad_enabled(False)": lambda: torch.set_grad_enabled(False),
        }[call["grad"]]  # fmt: skip
        given = {**self.main.GIVEN, **{name: make(x, self.subject) for name, make in self.main.LATER.items()}}
        with contextlib.ExitStack() as stack:
            stack.enter_context(around())
            for context in self.main.AROUND.values():
                stack.enter_context(context())
            self.rounded = self.rounded or torch.is_autocast_enabled("cpu")
            return self.wrapped(x, **given)

    def news(self, value: Any) -> Any:
        """The value; instead of a clock's reading or a random text whether it is a new one."""
        if isinstance(value, tuple):
            return tuple(map(self.news, value))
        if isinstance(value, torch.Tensor) and value.dtype == torch.int64 and value.ndim == 0 and not value.is_meta:
            value = value.item()
        if isinstance(value, int | float) and value > 1e9:
            last, self.clock = self.clock, value
            return f"clock, {'later' if value > last else 'not later'}"
        if isinstance(value, str) and len(value) == 32:
            new = value not in self.texts
            self.texts.add(value)
            return f"text, {'new' if new else 'not new'}"
        return value

    def observe(self, what: str, step: Callable[[], None], shown: dict[str, Any]) -> Observation:
        error, message, printed, classes = None, "", io.StringIO(), frozenset[str]()
        with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(printed):
            warnings.simplefilter("always")
            try:
                step()
            except Exception as raised:
                error, message = type(raised).__name__, " ".join(str(raised).split())[:200]
                classes = frozenset(cls.__name__ for cls in type(raised).__mro__[:-3])  # not Exception and its bases
        names = {self.name, f"{self.name}_lib"}
        if hasattr(self.main, "CLOCKS") and "result" in shown:
            shown["result"] = self.news(shown["result"])
        state: dict[str, Any] = {"model": self.module}
        for where, file in (("program", self.main), ("library", self.library)):
            for n, value in vars(file).items():
                if not n.startswith("__") and not isinstance(value, types.ModuleType) and n != "MODEL":
                    state[f"{where}.{n}"] = value
        # A result apart from the state: whether a returned list is the one that is kept shows once it is written.
        table = rendered(names, **shown) | rendered(names, **state)
        table["class of the model"] = type(self.module).__name__
        table["printed"] = printed.getvalue()
        table["warned"] = repr([str(w.message) for w in warned if str(w.message).startswith("trust ")])
        table["environment"] = repr(sorted((k, v) for k, v in os.environ.items() if k.startswith("TRUST_")))
        return Observation(what, table, error, classes, message, rounded=self.rounded)


def _leaves(loss: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that a backward adds gradients to."""
    pending, met = [loss.grad_fn], {None}
    while pending:
        node = pending.pop()
        if node not in met:
            met.add(node)
            if hasattr(node, "variable"):
                yield node.variable
            pending += [following for following, _ in node.next_functions]  # type: ignore[union-attr]


def _loss(result: torch.Tensor) -> torch.Tensor:
    """A number whose gradient differs from element to element, also behind a normalization."""
    flat = result.float().reshape(-1)
    return (flat * torch.cos(torch.arange(flat.numel(), device=flat.device))).sum() + 0.1 * flat.square().sum()


def _spoil(result: Any) -> None:
    """What a caller may do with a result: add to its lists and dicts."""
    if isinstance(result, dict):
        result["spoiled"] = 1.0
    elif isinstance(result, list):
        result.append(1.0)
    elif isinstance(result, set):
        result.add(99)
    elif isinstance(result, np.ndarray):
        result.fill(9)
    if isinstance(result, tuple | list):
        for child in result:
            _spoil(child)


def _in_thread(function: Callable[[], Any]) -> None:
    raised: list[BaseException] = []

    def body() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for child in value.values():
            yield from _tensors(child)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from _tensors(child)


def observe(program: Program, wrapper: Wrapper, name: str, folder: Path) -> list[Observation]:
    """What each step of the schedule shows; its files are modules that no other program's or wrapper's are."""
    # As long for each wrapper: a program may count the letters of what shows a class, its module's name included.
    name = f"trust_{name:_<9}_{program.seed}_{program.number}"
    with world(), _every_block() if program.depth else contextlib.nullcontext():
        wrapper.reset()
        torch.manual_seed(0)
        return contextvars.copy_context().run(lambda: list(_Run(program, wrapper, name, folder).steps()))


@contextlib.contextmanager
def _every_block() -> Iterator[None]:
    """Within it, blocks of any size are repeated: a program's are small."""
    fewest = repeats._FEWEST_NODES
    repeats._FEWEST_NODES = 1
    try:
        yield
    finally:
        repeats._FEWEST_NODES = fewest


def _changes(step: dict[str, Any]) -> bool:
    return "change" in step or "change" in step.get("call", {})


def run(program: Program, wrappers: list[str]) -> dict[str, Outcome]:
    """The outcome of each wrapper, and under "eager" whether the program raises and whether its changes show."""
    with tempfile.TemporaryDirectory() as folder:
        observed = {name: observe(program, WRAPPERS[name], name, Path(folder)) for name in ("eager", *wrappers)}
    wanted, outcomes = observed["eager"], dict[str, Outcome]()
    for name in wrappers:
        got = observed[name]
        outcome = compare(wanted, got)
        calls = [i for i, step in enumerate(program.schedule) if "call" in step]
        first = next(
            (i for i, step in enumerate(program.schedule) if i > calls[0] and _changes(step)),
            len(got),
        )
        if outcome.verdict == RIGHT:
            before = [i for i in calls if i < first]
            outcome.before = bool(before) and bool(got[before[-1]].engine)
            outcome.after = bool(got[calls[-1]].engine)
        outcomes[name] = outcome
    raises = next((o.error for o in wanted if o.error), "")
    outcomes["eager"] = Outcome(RIGHT, text=raises or "")
    return outcomes
