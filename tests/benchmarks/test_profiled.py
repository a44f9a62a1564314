"""What a profile of a step on a GPU is made into: the device's kernels, and how long the host waited."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from worker import profiled


def _event(key: str, on: str, count: int, microseconds: float) -> SimpleNamespace:
    device, host = (microseconds, 0.0) if on == "CUDA" else (0.0, microseconds)
    kind = getattr(torch.autograd.DeviceType, on)
    return SimpleNamespace(
        key=key, device_type=kind, count=count, self_device_time_total=device, self_cpu_time_total=host
    )


def test_calls_of_the_host_are_no_kernels() -> None:
    events = [
        _event("fused_add_layer_norm", "CUDA", 4, 60.0),
        _event("Memcpy DtoD (Device -> Device)", "CUDA", 2, 100.0),
        _event("cudaLaunchKernel", "CPU", 6, 900.0),
        _event("Activity Buffer Request", "CPU", 2, 2000.0),
        _event("cudaEventSynchronize", "CPU", 2, 5000.0),
        _event("cudaStreamSynchronize", "CPU", 2, 1000.0),
        _event("cudaDeviceSynchronize", "CPU", 1, 7000.0),
    ]
    found = profiled(events, "cuda", 2)
    assert found["kernels"] == [["Memcpy DtoD (Device -> Device)", 1, 50], ["fused_add_layer_norm", 2, 30]]
    assert found["waited_us"] == 3000
