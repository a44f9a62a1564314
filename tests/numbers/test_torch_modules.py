"""A few of torch.nn's modules with PyTorch's own samples; all: `python -m tests.conformance.torch_modules`."""

from __future__ import annotations

import pytest

pytest.importorskip("expecttest", reason="torch.testing's list of modules needs it")

from tests.conformance.torch_modules import modules, run

NAMES = ("BatchNorm2d", "Bilinear", "Conv1d", "Embedding", "GRUCell", "LSTM", "MultiheadAttention", "NLLLoss")


@pytest.mark.parametrize("name", NAMES)
def test_trains_as_eager(name: str) -> None:
    (entry,) = modules([name])
    state, why, ran = run(entry, 3)
    assert state == "passed" and ran, why
