"""Runs a part of the checks on the guarded device: `python -m tests.device operators --out results.jsonl`.

operators, models: benchmarks/gpu_units.py, without bfloat16, of which the device knows no more than the CPU.
features: features.py.
In a process of its own, since an access to the device's memory from the host ends it. Not here: the device
(guarded_device.cpp), and what the results must be (test_guarded_device.py).
"""

from __future__ import annotations

import faulthandler
import sys
import types
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build" / "libguarded_device.so"
NAME = "guarded"


def register() -> None:
    """Makes torch.device("guarded") known; its generator is the CPU's."""
    torch.utils.rename_privateuse1_backend(NAME)
    torch.ops.load_library(str(LIBRARY))
    module = types.ModuleType(f"torch.{NAME}")
    functions = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "synchronize": lambda device=None: None,
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
    if sys.argv[1:2] == ["features"]:
        from . import features

        del sys.argv[1]
        sys.exit(features.main())
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import gpu_units

    sys.argv += ["--device", NAME, "--no-bf16"]
    sys.exit(gpu_units.main())
