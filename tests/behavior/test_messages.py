"""What a forward says, warnings and lines of a log, it says at each call, and as often as in PyTorch."""

from __future__ import annotations

import functools
import logging
import random
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from ortmodule import Options, ORTModule

LOGGER = logging.getLogger("tests.messages")
SCALE = 2.0


class Saying(nn.Module):
    def __init__(self, say: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.linear, self.say = nn.Linear(3, 3), say

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        self.say(y)
        return torch.tanh(y) * SCALE


@functools.lru_cache(None)
def log_once(text: str) -> None:
    LOGGER.warning(text)


@functools.lru_cache(None)
def warn_once(text: str) -> None:
    warnings.warn(text, stacklevel=1)


def quietly(y: torch.Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("nobody hears this", stacklevel=1)


def recording(y: torch.Tensor) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.warn("nobody but the forward hears this", stacklevel=1)
    assert len(found) == 1


SAYS = {
    "a warning": lambda y: warnings.warn(f"said with {SCALE}", stacklevel=1),
    "a warning of a line further out": lambda y: warnings.warn("said", stacklevel=2),
    "a warning of another class": lambda y: warnings.warn("said", FutureWarning, stacklevel=1),
    "two warnings": lambda y: [warnings.warn(f"said {i}", stacklevel=1) for i in range(2)],
    "a size": lambda y: warnings.warn(f"said of {tuple(y.shape)}", stacklevel=1),
    "a warning of torch.nn": lambda y: nn.functional.mse_loss(y, y[:1]),
    "a cached warning": lambda y: warn_once("said once"),
    "ignored": quietly,
    "recorded": recording,
    "a line": lambda y: LOGGER.warning("logged %s", SCALE),
    "a line of the root": lambda y: logging.getLogger().error("logged"),
    "a line below the level": lambda y: LOGGER.debug("logged"),
    "a cached line": lambda y: log_once("logged once"),
}
# What PyTorch runs: the text is another at each call, or Python's generator is drawn from.
SAYS_IN_PYTORCH = {
    "a value": lambda y: warnings.warn(f"said of {y.sum().item()}", stacklevel=1),
    "a tensor": lambda y: LOGGER.warning("logged %s", y.detach()),
    "before a draw": lambda y: (warnings.warn("said", stacklevel=1), LOGGER.warning("logged"), random.random()),
    "once before a draw": lambda y: (warn_once("said once"), log_once("logged once"), random.random()),
}


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[object, ...]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.name, record.levelname, record.getMessage(), record.lineno, record.funcName))


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    for cached in (log_once, warn_once):
        cached.cache_clear()
    yield


def heard(module: nn.Module, action: str, sizes: tuple[int, ...] = (2, 2, 2, 3, 4)) -> list[list[object]]:
    """What each call of the module says."""
    log_once.cache_clear()
    warn_once.cache_clear()
    found: list[list[object]] = []
    torch.manual_seed(0)
    for size in sizes:
        handler = Kept()
        logging.getLogger().addHandler(handler)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter(action)  # type: ignore[arg-type]
            try:
                module(torch.ones(size, 3)).sum().backward()
            finally:
                logging.getLogger().removeHandler(handler)
        texts = [(str(w.message), w.category, w.filename, w.lineno) for w in warned]
        found.append([*(t for t in texts if "PyTorch, not in ORTModule's engine" not in t[0]), *handler.lines])
    return found


@pytest.mark.parametrize("action", ["always", "default", "ignore"])
@pytest.mark.parametrize("what", SAYS)
def test_a_graph_says_what_its_forward_says(what: str, action: str) -> None:
    module = Saying(SAYS[what])
    wanted = heard(module, action)
    model = ORTModule(module, options=Options(fallback="error"))
    assert heard(model, action) == wanted
    assert len(model.report().exports) >= 1


@pytest.mark.parametrize("what", SAYS_IN_PYTORCH)
def test_what_a_graph_cannot_say_again_is_said_by_pytorch_and_once(what: str) -> None:
    module = Saying(SAYS_IN_PYTORCH[what])
    assert heard(ORTModule(module), "always") == heard(module, "always")


def test_a_warning_that_is_shown_once_for_its_line_is_not_shown_again_by_a_capture() -> None:
    module = Saying(lambda y: warnings.warn("said once for this line", stacklevel=1))
    model = ORTModule(module, options=Options(fallback="error"))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        for size in (2, 3, 4):  # the first three calls are captured
            model(torch.ones(size, 3))
    assert len(warned) == 1


def test_a_warning_that_is_an_error_ends_the_call_where_pytorch_ends_it() -> None:
    module = Saying(lambda y: warnings.warn("this may be an error", stacklevel=1))
    model = ORTModule(module)
    x = torch.ones(2, 3)
    model(x)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "this may be")
        for _ in range(2):
            with pytest.raises(UserWarning, match="this may be an error"):
                model(x)
    torch.testing.assert_close(model(x), module(x))


def test_a_lower_level_of_a_logger_is_a_reason_for_another_graph() -> None:
    model = ORTModule(Saying(lambda y: logging.getLogger("tests.messages.own").info("logged")))
    x = torch.ones(2, 3)
    logger, handler = logging.getLogger("tests.messages.own"), Kept()
    logger.addHandler(handler)
    for level, count in ((logging.WARNING, 0), (logging.INFO, 2), (logging.ERROR, 2)):
        logger.setLevel(level)
        model(x)
        model(x)
        assert len(handler.lines) == count
    assert model.report().fallback == "none"
