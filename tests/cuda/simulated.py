"""The CUDA kernels on the simulated GPU: loads their library and gives it the guarded device's streams and memory.

In a process that has the guarded device (tests/device). ORTMODULE_SIMULATED_CUDA names another build of the library: of
sources that somebody changed (mutations.py), or one with sanitizers. Not here: what is run (cases.py, models.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path

from ..device.__main__ import NAME, ROOT, library, register

SANITIZED = ROOT / "build" / "libsanitized_cuda.so"
LIBRARY = Path(os.environ.get("ORTMODULE_SIMULATED_CUDA", ROOT / "build" / "libsimulated_cuda.so"))
ORDERS = ("forward", "backward", "shuffled")

Counts = dict[str, dict[str, int]]


@functools.cache
def simulator() -> ctypes.CDLL:
    """What simulated_cuda.cpp exports; from the first call on "cuda" kernels serve the guarded device."""
    register()
    knobs = ctypes.CDLL(str(LIBRARY))
    knobs.simulated_set.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_int]
    knobs.simulated_counts.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    knobs.simulated_counts.restype = ctypes.c_size_t
    knobs.simulated_serve.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p]
    knobs.simulated_compile.argtypes = [ctypes.c_char_p]
    for name in ("simulated_serve", "simulated_compile", "simulated_set", "simulated_reset_counts"):
        getattr(knobs, name).restype = None
    device = library()
    functions = [ctypes.cast(getattr(device, f"guarded_{name}"), ctypes.c_void_p) for name in ("reach", "enqueue")]
    knobs.simulated_serve(NAME.encode(), *functions)
    knobs.simulated_compile(NAME.encode())
    device.guarded_set_delay(-1, -1, 0, 0)  # test_streams.py is about delays
    return knobs


@contextlib.contextmanager
def order(name: str, *, sectors: bool = False) -> Iterator[None]:
    """Threads, warps and blocks of kernels that are queued in here run in this order."""
    simulator().simulated_set(ORDERS.index(name), 1, int(sectors))
    try:
        yield
    finally:
        library().guarded_synchronize()
        simulator().simulated_set(0, 0, 0)


@contextlib.contextmanager
def counted() -> Iterator[Counts]:
    """By kernel that runs in here: launches, threads, bytes loaded and stored, and sectors where they are counted."""
    found: Counts = {}
    library().guarded_synchronize()
    simulator().simulated_reset_counts()
    yield found
    library().guarded_synchronize()
    text = ctypes.create_string_buffer(simulator().simulated_counts(None, 0))
    simulator().simulated_counts(text, len(text))
    found.update(json.loads(text.value))
