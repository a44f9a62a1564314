"""Ctrl-C at any moment of a training step: a KeyboardInterrupt, and everything is as if the step had not begun."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from ortmodule import Options, ORTModule
from ortmodule.capture.leftovers import leaves_nothing


@pytest.fixture(autouse=True)
def python_handler() -> Iterator[None]:
    """A process that a shell started in the background ignores SIGINT; here it raises, as in the foreground."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(os.name != "posix", reason="sends a signal to the process")
@pytest.mark.parametrize("delay", [0.01, 0.05, 0.1, 0.2, 0.4])
def test_an_interrupted_first_step_leaves_everything_intact(delay: float) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    model = ORTModule(module, options=Options(fallback="error"))
    patched = [set(vars(kind)) for kind in (nn.Module, torch.Tensor)]
    timer = threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            model.zero_grad()
            model(torch.ones(5, 4)).sum().backward()
    timer.join()
    assert [set(vars(kind)) for kind in (nn.Module, torch.Tensor)] == patched
    for name, tensor in module.state_dict().items():
        assert type(tensor) is torch.Tensor and torch.equal(tensor, before[name])
    x = torch.randn(5, 4)
    torch.testing.assert_close(model(x), module(x))


def test_an_interrupt_in_a_weak_references_callback_is_not_lost() -> None:
    class Dropped:
        pass

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    @leaves_nothing
    def capture() -> None:
        dropped = Dropped()
        kept = weakref.ref(dropped, interrupted)
        del dropped
        assert kept() is None
        time.sleep(10)

    before = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt):
        capture()
    assert sys.unraisablehook is before
