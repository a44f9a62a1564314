"""GPUs as five numbers each, what a kernel is to them, and the time of a list of kernels.

A kernel takes the longer of its bytes at the memory's rate and its operations at its unit's rate (the roofline of
Williams, Waterman and Patterson, 2009), and no less than FLOOR_US. The host issues kernels one after the other and runs
ahead; the device waits for it where it is late. Nothing here was measured on a GPU.
Not here: which kernels there are (eager.py, planned.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

FLOOR_US = 2.0  # of a kernel on the device, with the gap before it: assumed, in the range that public profiles show


@dataclasses.dataclass(frozen=True)
class Gpu:
    """`bandwidth`: bytes a second; `bf16`, `tf32`, `fp32`: operations a second without sparsity, the first two of the
    tensor cores with float32 sums."""

    title: str
    bandwidth: float
    bf16: float
    tf32: float
    fp32: float
    source: str


GPUS: dict[str, Gpu] = {
    "h200": Gpu("H200 SXM", 4.8e12, 989e12, 494e12, 67e12, "NVIDIA H200 datasheet, halved where it counts sparsity"),
    "a100": Gpu("A100 SXM 80 GB", 2.039e12, 312e12, 156e12, 19.5e12, "NVIDIA A100 80 GB datasheet"),
    "l4": Gpu("L4", 0.3e12, 121e12, 60e12, 30.3e12, "NVIDIA L4 datasheet, halved where it counts sparsity"),
    "rtx4090": Gpu(
        "RTX 4090", 1.008e12, 165.2e12, 82.6e12, 82.6e12, "NVIDIA Ada GPU architecture whitepaper, appendix"
    ),
}


@dataclasses.dataclass(frozen=True)
class Efficiencies:
    """Shares of the datasheet's numbers that a kernel reaches; one set for eager and for the engine. Assumed: what
    well-tuned libraries show at such sizes. A session with a GPU should replace them by measurements."""

    memory: float = 0.85
    product: float = 0.70
    attention: float = 0.40
    convolution: float = 0.45


@dataclasses.dataclass(frozen=True)
class HostCosts:
    """Microseconds of the host, assumed (a launch) or rounded from CPU measurements (the others).

    `launch`: the driver's for one kernel; `call`: what the framework adds to an operator; `view`: an operator that
    launches nothing.
    """

    launch: float
    call: float
    view: float


EAGER_HOST = HostCosts(launch=2.5, call=5.0, view=2.0)
ATEN_HOST = HostCosts(launch=2.5, call=3.0, view=1.0)  # the engine that calls ATen for each node
OWN_HOST = HostCosts(launch=2.5, call=1.0, view=0.5)  # the engine with launches of its own


@dataclasses.dataclass
class Kernel:
    """What one operator or node runs on the device.

    Attributes:
        name, node, half: "aten.mm" or "Linear"; the node's name, empty for eager; "forward" or "backward".
        launches: kernels; 0 for a view.
        bytes: read and written, each value once.
        flops: of products, attention and convolutions alone; others are bound by memory.
        unit: "product", "attention", "convolution" or "memory".
        dtype: "bf16", "tf32" or "fp32": whose peak counts.
        calls: of the framework, for the host's time; with `launches` 0 each is a view.
        waits: how often the host waits for the device before it goes on.
        own: launched without ATen.
    """

    name: str
    half: str
    launches: int
    bytes: float
    flops: float = 0.0
    unit: str = "memory"
    dtype: str = "bf16"
    node: str = ""
    calls: int = 1
    waits: int = 0
    own: bool = False


def device_us(kernel: Kernel, gpu: Gpu, shares: Efficiencies) -> float:
    """Microseconds of the device, without the wait for the host."""
    if not kernel.launches:
        return 0.0
    seconds = kernel.bytes / (gpu.bandwidth * shares.memory)
    if kernel.flops:
        seconds = max(seconds, kernel.flops / (getattr(gpu, kernel.dtype) * getattr(shares, kernel.unit)))
    return max(1e6 * seconds, FLOOR_US * kernel.launches)


def host_us(kernel: Kernel, costs: HostCosts, own: HostCosts) -> float:
    if not kernel.launches:
        return kernel.calls * costs.view
    call = own.call if kernel.own else costs.call
    return kernel.calls * call + kernel.launches * costs.launch


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Milliseconds of a step, of the device's work and of the host's; `idle`: the device has nothing to do."""

    step: float
    device: float
    host: float
    launches: int
    gigabytes: float
    teraflops: float

    @property
    def idle(self) -> float:
        return self.step - self.device

    @property
    def launch_bound(self) -> bool:
        """Whether more than a tenth of the step goes by while the device waits for the host."""
        return self.idle > 0.1 * self.step


def predict(kernels: Sequence[Kernel], gpu: Gpu, costs: HostCosts, shares: Efficiencies) -> Prediction:
    """The step of these kernels in this order: the host runs ahead, the device waits where it is late."""
    host = device = busy = 0.0
    for kernel in kernels:
        if kernel.waits:
            host = max(host, device) + kernel.waits * costs.launch
        host += host_us(kernel, costs, OWN_HOST)
        took = device_us(kernel, gpu, shares)
        if took:
            device = max(device, host) + took
            busy += took
    total = sum(host_us(k, costs, OWN_HOST) for k in kernels)
    return Prediction(
        step=max(host, device) / 1e3,
        device=busy / 1e3,
        host=total / 1e3,
        launches=sum(k.launches for k in kernels),
        gigabytes=sum(k.bytes for k in kernels) / 1e9,
        teraflops=sum(k.flops for k in kernels) / 1e12,
    )


def by_name(kernels: Iterable[Kernel], gpu: Gpu, shares: Efficiencies) -> list[dict[str, float | str]]:
    """Launches, gigabytes and milliseconds by operator and half, the longest first."""
    rows: dict[tuple[str, str], list[float]] = {}
    for kernel in kernels:
        if not kernel.launches:
            continue
        row = rows.setdefault((kernel.half, kernel.name), [0, 0.0, 0.0, 0.0])
        for i, more in enumerate((kernel.launches, kernel.bytes / 1e9, kernel.flops / 1e12)):
            row[i] += more
        row[3] += device_us(kernel, gpu, shares) / 1e3
    keys = ("launches", "gigabytes", "teraflops", "ms")
    listed = [{"half": half, "op": op, **dict(zip(keys, row))} for (half, op), row in rows.items()]
    return sorted(listed, key=lambda row: -float(row["ms"]))
