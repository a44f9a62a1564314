"""A real GPU in the place of the simulated one (simulated.py): `python -m tests.cuda kernels --device cuda`.

A GPU chooses the order of its threads itself: instead of three orders a case runs three times, which have to give the
same bits. Not here: that a model's own kernels are the ones that run, and how fast (benchmarks/gpu_check.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .simulated import Counts


@contextlib.contextmanager
def order(name: str, *, sectors: bool = False) -> Iterator[None]:
    """Nothing that could be chosen."""
    yield


@contextlib.contextmanager
def counted() -> Iterator[Counts]:
    """Nothing is counted."""
    yield {}
