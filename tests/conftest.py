"""Every test starts from the same random state, on one thread, without ORTModule's variables of the caller's shell.

One thread, because the tensors are small: threads that wait for each other take most of the time on a busy machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch


def _modes() -> dict[str, object]:
    return {
        "gradient mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "default dtype": torch.get_default_dtype(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "anomaly detection": torch.is_anomaly_enabled(),
    }


@pytest.fixture(autouse=True)
def clean_start(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in [v for v in os.environ if v.startswith("ORTMODULE_")]:
        monkeypatch.delenv(variable)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_grad_enabled(True)
    before = _modes()
    yield
    after = _modes()
    torch.set_grad_enabled(True)
    assert after == before, "the test leaves a mode of torch changed, in which others would run"
