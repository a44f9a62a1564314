"""Runs a part of the checks on the guarded device: `python -m tests.device operators --out results.jsonl`.

operators, models: benchmarks/gpu_units.py, without bfloat16, of which the device knows no more than the CPU.
features: features.py. streams: test_streams.py, the device by itself. --no-delays: its streams are not slowed.
In a process of its own, since an access to the device's memory from the host ends it. Not here: the device
(guarded_device/), and what the results must be (test_guarded_device.py).
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import sys
import types
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build" / "libguarded_device.so"
NAME = "guarded"


@functools.cache
def library() -> ctypes.CDLL:
    """What guarded_device/knobs.cpp exports; calls let go of the GIL."""
    knobs = ctypes.CDLL(str(LIBRARY))
    knobs.guarded_set_delay.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int, ctypes.c_int]
    knobs.guarded_set_seed.argtypes = [ctypes.c_uint64]
    knobs.guarded_copies.argtypes = [ctypes.c_int]
    knobs.guarded_copies.restype = knobs.guarded_jobs.restype = ctypes.c_uint64
    knobs.guarded_counts.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    knobs.guarded_counts.restype = ctypes.c_size_t
    for name in ("set_delay", "set_seed", "reset_copies", "reset_counts", "synchronize"):
        getattr(knobs, f"guarded_{name}").restype = None
    return knobs


def synchronize(device: object = None) -> None:
    """Waits for both devices, and raises what went wrong there."""
    library().guarded_synchronize()
    for index in range(torch.accelerator.device_count()):
        torch.accelerator.synchronize(index)


def register() -> None:
    """Makes torch.device("guarded") known; its generator is the CPU's."""
    torch.utils.rename_privateuse1_backend(NAME)
    torch.ops.load_library(str(LIBRARY))
    module = types.ModuleType(f"torch.{NAME}")
    functions = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": torch.accelerator.device_count,
        "current_device": torch.accelerator.current_device_index,
        "set_device": torch.accelerator.set_device_index,
        "device": torch.accelerator.device_index,
        "synchronize": synchronize,
        "current_stream": torch.accelerator.current_stream,
        "set_stream": torch.accelerator.set_stream,
        "Stream": torch.Stream,
        "Event": torch.Event,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda device=0: torch.get_rng_state(),
        "set_rng_state": lambda state, device=0: torch.set_rng_state(state),
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
        "_is_in_bad_fork": lambda: False,
    }
    for name, function in functions.items():
        setattr(module, name, function)
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend()


if __name__ == "__main__":
    faulthandler.enable()
    register()
    if "--no-delays" in sys.argv:
        sys.argv.remove("--no-delays")
        library().guarded_set_delay(-1, -1, 0, 0)
    if sys.argv[1:2] == ["features"]:
        from . import features

        del sys.argv[1]
        sys.exit(features.main())
    if sys.argv[1:2] == ["streams"]:
        from . import test_streams

        del sys.argv[1]
        sys.exit(test_streams.main())
    if sys.argv[1:2] == ["split"]:
        from . import split

        sys.exit(split.main())
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import gpu_units

    sys.argv += ["--device", NAME, "--no-bf16"]
    sys.exit(gpu_units.main())
