"""A few operators with PyTorch's own samples, at changing sizes; all: `python -m tests.conformance.torch_operators`."""

from __future__ import annotations

import pytest

pytest.importorskip("expecttest", reason="torch.testing's list of operators needs it")

from tests.conformance.torch_operators import operators, run

NAMES = (
    "add", "arange", "cat", "cumsum", "einsum", "index_put", "nn.functional.conv2d", "nn.functional.cosine_similarity",
    "scatter_reduce", "squeeze", "std", "take_along_dim",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_trains_as_eager_at_changing_sizes(name: str) -> None:
    for entry in operators([name]):
        state, why, ran = run(entry, 2)
        assert state == "passed" and ran, why
