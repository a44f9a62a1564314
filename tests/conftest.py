"""Every test starts from the same random state, on one thread, without ORTModule's variables of the caller's shell.

One thread, because the tensors are small: threads that wait for each other take most of the time on a busy machine.
"""

from __future__ import annotations

import os

import pytest
import torch


@pytest.fixture(autouse=True)
def clean_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [v for v in os.environ if v.startswith("ORTMODULE_")]:
        monkeypatch.delenv(variable)
    torch.manual_seed(0)
    torch.set_num_threads(1)
