"""Settings of torch's that a forward changes and leaves so: no graph sets them, and the trace takes them back.

Which settings there are is read off torch's own functions: each in C that sets one and has another that tells it, by
their names. A forward that gives back what it has changed (a context manager) may be a graph.

Not here: what a forward asks of settings (graph_transition/conditions/contexts.py), random states (random_states.py).
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch._tensor_str import PRINT_OPTS

from ....errors import CaptureError

__all__ = ["same_settings", "settings_now"]

# Of other devices: to ask of one may start it.
_OF_DEVICES = re.compile(r"_?(accelerator|cuda|mps|mtia|xpu)_|.*(autocast_(cpu|gpu|ipu|xla)|cublas|cudnn_depth)")
# What names do not tell: those of torch's attention, by what they choose; a setting of two values.
_TOLD_BY = {
    f"_set_sdp_use_{kind}": f"_get_{kind}_sdp_enabled"
    for kind in ("cudnn", "fa3", "flash", "math", "mem_efficient", "overrideable")
}
_APART = frozenset(
    {"_set_deterministic_algorithms", "_set_thread_name", "set_autocast_enabled", "set_num_interop_threads"}
)
_AUTOCAST = ("cpu", "cuda")


class _Setting(NamedTuple):
    name: str
    tell: Callable[[], Any]
    give: Callable[[Any], object]


@contextlib.contextmanager
def same_settings() -> Iterator[None]:
    """Leaves the settings as they were.

    Raises:
        CaptureError: what ran within it had left another one.
    """
    before = [(setting, setting.tell()) for setting in _settings()]
    try:
        yield
    finally:
        changed = [(setting, value) for setting, value in before if setting.tell() != value]
        for setting, value in changed:
            setting.give(value)
    if changed:
        names = ", ".join(setting.name for setting, _ in changed)
        raise CaptureError(f"the forward changes settings of torch and leaves them so, which no graph does: {names}")


def settings_now() -> list[Any]:
    """What each of them is at the moment."""
    return [setting.tell() for setting in _settings()]


@functools.cache
def _settings() -> tuple[_Setting, ...]:
    torch_c: Any = torch._C
    found = [
        _Setting("deterministic algorithms", _deterministic, _be_deterministic),
        _Setting("how tensors are printed", lambda: dict(vars(PRINT_OPTS)), vars(PRINT_OPTS).update),
    ]
    for device in _AUTOCAST:
        for what in ("enabled", "dtype"):
            tell = torch_c.is_autocast_enabled if what == "enabled" else torch_c.get_autocast_dtype
            give = functools.partial(getattr(torch_c, f"set_autocast_{what}"), device)
            found.append(_Setting(f"autocast's {what} ({device})", functools.partial(tell, device), give))
    for name in vars(torch_c):
        match = re.fullmatch(r"_?set_(\w+)", name)
        if match is None or name in _APART or _OF_DEVICES.match(name):
            continue
        setting = match.group(1)
        tellers = (
            _TOLD_BY.get(name, ""),
            *(f"{under}{verb}_{setting}" for under in ("_", "") for verb in ("get", "is")),
        )
        tell = next((getattr(torch_c, teller) for teller in tellers if hasattr(torch_c, teller)), None)
        if tell is not None and _is_answered(tell):
            found.append(_Setting(setting, tell, getattr(torch_c, name)))
    return tuple(found)


def _is_answered(tell: Callable[[], Any]) -> bool:
    """Whether it tells a setting when it is asked for nothing in particular."""
    try:
        return tell() is not None
    except (RuntimeError, TypeError):
        return False


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _be_deterministic(value: tuple[bool, bool]) -> None:
    torch._C._set_deterministic_algorithms(value[0], warn_only=value[1])  # torch's own function loads its compiler
