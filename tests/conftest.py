"""Every test starts from the same random state and without ORTModule's variables of the caller's shell."""

from __future__ import annotations

import os

import pytest
import torch


@pytest.fixture(autouse=True)
def clean_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [v for v in os.environ if v.startswith("ORTMODULE_")]:
        monkeypatch.delenv(variable)
    torch.manual_seed(0)
