"""One runner's process for step_time.py: builds a model, wraps it, and times steps when told to.

Protocol: one JSON object per line. The worker first sends the result of its first step; then it answers each command
on its standard input: {"do": "warm"}, {"do": "measure", "samples": n}, {"do": "memory"}, {"do": "quit"}; of a real
model (--real) also {"do": "steps", "samples": n} and {"do": "kernels"}. Between
commands it sleeps in a read, so that only one worker uses the machine at a time. A failure is an answer too:
{"failed": reason}.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TextIO

import models
import torch
import used_models
from torch import nn

MIB = 1 << 20
SAMPLE_SECONDS = 0.04  # a sample repeats a short step until it takes about this long
GAPS, NAME = 12, 60  # how many are told, and letters of a name
WAITS = ("cudaEventSynchronize", "cudaStreamSynchronize")
REAL_SAMPLE_SECONDS = 0.25  # of a real model


def status(key: str) -> float:
    """A size from /proc/self/status in MiB: VmRSS is resident memory, VmHWM its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) / 1024
    return 0.0


def trim() -> None:
    """Gives memory that malloc holds free back to the system, so that it is not counted."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def reset_peak(device: str) -> None:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        # Refused in some sandboxes: the peak then includes the capture or compilation before the steps.
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def used(device: str) -> float:
    """MiB in use now."""
    return torch.cuda.memory_allocated() / MIB if device == "cuda" else status("VmRSS")


def peak(device: str) -> float:
    return torch.cuda.max_memory_allocated() / MIB if device == "cuda" else status("VmHWM")


def load_libraries(runner: str) -> None:
    """Loads what a runner needs, so that the memory of a step is the step's; the seconds count as the first step's."""
    libraries = {"ortmodule": "ortmodule", "ortmodule-loss": "ortmodule", "compile": "torch._inductor.compile_fx"}
    if runner in libraries:
        importlib.import_module(libraries[runner])


def wrap(runner: str, module: nn.Module) -> nn.Module:
    if runner == "eager":
        return module
    if runner == "compile":
        return torch.compile(module)  # type: ignore[return-value]
    if runner.startswith("ortmodule"):
        from ortmodule import Options, ORTModule

        return ORTModule(module, options=Options(outputs="loss")) if runner == "ortmodule-loss" else ORTModule(module)
    raise ValueError(f"unknown runner {runner!r}")


def used_model(args: argparse.Namespace) -> tuple[nn.Module, used_models.Batch]:
    module, batch = used_models.build(args.model, small=args.small)
    return module.to(args.device), {name: x.to(args.device) for name, x in batch.items()}


def benchmark_model(args: argparse.Namespace) -> tuple[nn.Module, models.Batch]:
    module, batch = models.build(
        args.model, small=args.small, realistic=args.batches == "realistic", logits=args.logits
    )
    return module.to(args.device), tuple(x.to(args.device) for x in batch)


def real_model(args: argparse.Namespace) -> tuple[nn.Module, models.Batch]:
    """A model of gpu_models.py; its weights are drawn on the device: a processor takes long for a billion of them."""
    model = importlib.import_module("gpu_models").MODELS[args.model]
    with torch.device(args.device):
        torch.manual_seed(0)
        module = (model.small_module if args.small else model.module)().train()
        torch.manual_seed(1)
        return module, (model.small_batch if args.small else model.batch)()


def profiled(events: Iterable[Any], device: str, steps: int) -> dict[str, Any]:
    """Of a step: its `kernels` and `waited_us`, how long the host waited in it.

    A kernel is [name, launches, microseconds], the longest first. Kernels are what ran on the device, copies and fills
    included: a profile has the calls of the CUDA runtime and what the profiler itself takes beside them, which are the
    host's time. The last wait, for the whole device, is ours.
    """
    kernels, waited = [], 0.0
    for event in events:
        if event.device_type == getattr(torch.autograd.DeviceType, device.upper()):
            took = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
            kernels.append([event.key, event.count / steps, took / steps])
        elif event.key in WAITS:
            waited += event.self_cpu_time_total / steps
    return {"kernels": sorted(kernels, key=lambda row: -row[2]), "waited_us": waited}


def idle(events: Iterable[Any], device: str, steps: int) -> dict[str, Any]:
    """Of a step: `idle_us`, how long the device had nothing to do between its kernels, and `gaps`, where.

    A gap is [the kernel before, the one behind, how often, microseconds], the longest in sum first.
    """
    kind = getattr(torch.autograd.DeviceType, device.upper())
    ran = sorted((e.time_range.start, e.time_range.end, e.name[:NAME]) for e in events if e.device_type == kind)
    found: dict[tuple[str, str], list[float]] = {}
    busy_until, before = ran[0][1:] if ran else (0.0, "")
    for start, end, name in ran[1:]:
        if start > busy_until:
            found.setdefault((before, name), []).append(start - busy_until)
        if end > busy_until:
            busy_until, before = end, name
    gaps = [[*pair, len(each) / steps, sum(each) / steps] for pair, each in found.items()]
    return {"idle_us": sum(gap[3] for gap in gaps), "gaps": sorted(gaps, key=lambda gap: -gap[3])[:GAPS]}


class Steps:
    """The step of one wrapped model. Times are wall milliseconds."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.device, self.runner = args.device, args.runner
        self.sync: Callable[[], None] = torch.cuda.synchronize if self.device == "cuda" else lambda: None
        build = real_model if args.real else used_model if args.as_used else benchmark_model
        self.module, self.batch = build(args)
        self.bf16 = args.dtype == "bf16"
        self.sample_seconds = REAL_SAMPLE_SECONDS if args.real else SAMPLE_SECONDS
        self.parameters = list(self.module.parameters())
        self.wrapped: nn.Module | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self.repeats = 1
        start = time.perf_counter()
        load_libraries(self.runner)
        self.library_seconds = time.perf_counter() - start
        trim()
        self.built = used(self.device)
        self.peaks: dict[str, float] = {}

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device, torch.bfloat16) if self.bf16 else contextlib.nullcontext()

    def drop_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def forward(self) -> torch.Tensor:
        assert self.wrapped is not None
        with self.autocast():
            result = self.wrapped(**self.batch) if isinstance(self.batch, dict) else self.wrapped(*self.batch)
        return result["loss"] if isinstance(result, dict) else result

    def fb(self) -> torch.Tensor:
        self.drop_gradients()
        loss = self.forward()
        loss.backward()
        return loss

    def first(self) -> dict[str, Any]:
        torch.manual_seed(2)
        start = time.perf_counter()
        self.wrapped = wrap(self.runner, self.module)
        loss = float(self.fb().detach())
        self.sync()
        seconds = self.library_seconds + time.perf_counter() - start
        parts = {"libraries": self.library_seconds}
        if self.runner.startswith("ortmodule"):
            report = self.wrapped.report()  # type: ignore[operator]
            if report.fallback != "none":
                raise RuntimeError(f"ORTModule fell back to eager ({report.fallback}): {report.fallback_reason}")
            parts["capture"] = sum(export.seconds for export in report.exports)
            parts["session"] = sum(sum(session.seconds.values()) for session in report.sessions)
        count = sum(p.numel() for p in self.parameters)
        return {"first_step_s": seconds, "first_step_parts_s": parts, "loss": loss, "parameters": count}

    def warm(self) -> dict[str, Any]:
        """Runs until the step is steady, measures memory, and chooses how many steps make one sample."""
        seconds = 0.0
        for _ in range(3):
            start = time.perf_counter()
            self.fb()
            self.sync()
            seconds = time.perf_counter() - start
        self.repeats = max(1, int(self.sample_seconds / max(seconds, 1e-5)))
        self.drop_gradients()
        if self.runner.startswith("ortmodule"):
            importlib.import_module("ortmodule").release_memory()  # counted as the step's, not as the module's
        trim()
        idle = used(self.device)
        reset_peak(self.device)
        for _ in range(2):
            self.fb()
        self.sync()
        top = peak(self.device)
        gradients = sum(p.grad.nbytes for p in self.parameters if p.grad is not None) / MIB
        self.peaks = {
            "peak_memory_mib": top - self.built,
            "step_memory_mib": top - idle,
            "beyond_gradients_mib": top - idle - gradients,
            "total_memory_mib": top,
        }
        return {"seconds": seconds}

    def measure(self, samples: int) -> dict[str, Any]:
        self.fb()
        self.sync()
        return {**self.together(samples), **self.apart(samples)}

    def together(self, samples: int) -> dict[str, list[float]]:
        """Wall and processor time (of all threads) of whole steps without the optimizer."""
        out: dict[str, list[float]] = {"fb": [], "fb_cpu": []}
        for _ in range(samples):
            busy = time.process_time()
            out["fb"].append(self.queued() if self.device == "cuda" else self.one_by_one())
            out["fb_cpu"].append(1e3 * (time.process_time() - busy) / self.repeats)
        return out

    def queued(self, optimizer: torch.optim.Optimizer | None = None) -> float:
        """Milliseconds per step when nobody waits between steps, as a training loop does on a GPU."""
        start = time.perf_counter()
        for _ in range(self.repeats):
            self.fb()
            if optimizer is not None:
                optimizer.step()
        self.sync()
        return 1e3 * (time.perf_counter() - start) / self.repeats

    def one_by_one(self) -> float:
        """Median milliseconds of single steps: a thread that lost its core once does not spoil the sample."""
        clock, times = time.perf_counter, []
        for _ in range(self.repeats):
            start = clock()
            self.fb()
            times.append(clock() - start)
        return 1e3 * statistics.median(times)

    def steps(self, samples: int) -> dict[str, list[float]]:
        """Forward with backward, whole steps with AdamW behind them, and what the host takes to ask for one (ms).

        Activations and the optimizer's state are given back, so that other workers have the device's memory.
        """
        self.fb()
        self.sync()
        out = {"fb": [self.queued() for _ in range(samples)]}
        out["host"] = [self.asked_for() for _ in range(3)]
        optimizer = torch.optim.AdamW(self.parameters, lr=1e-5, fused=True)
        self.fb()
        optimizer.step()
        self.sync()
        out["step"] = [self.queued(optimizer) for _ in range(samples)]
        del optimizer
        self.drop_gradients()
        self.give_back()
        return out

    def give_back(self) -> None:
        """What no tensor holds, so that other processes can have it."""
        if self.device == "cuda":
            gc.collect()
            torch.cuda.empty_cache()

    def asked_for(self) -> float:
        """Milliseconds until the host has asked for a step's work, when the device has nothing else to do."""
        self.sync()
        start = time.perf_counter()
        self.fb()
        seconds = time.perf_counter() - start
        self.sync()
        return 1e3 * seconds

    def kernels(self) -> dict[str, Any]:
        """What the device did in a step by torch.profiler: see `profiled`."""
        self.fb()
        self.sync()
        activity = torch.profiler.ProfilerActivity
        kinds = [activity.CUDA] if self.device == "cuda" else [activity.CPU]
        with torch.profiler.profile(activities=kinds) as profiler:
            for _ in range(2):
                self.fb()
            self.sync()
        told = profiled(profiler.key_averages(), self.device, 2)
        return {**told, **idle(profiler.events(), self.device, 2)}

    def apart(self, samples: int) -> dict[str, list[float]]:
        """Forward, backward and optimizer, each waited for; a sample is the median of `repeats` steps."""
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-5, fused=True)
            self.fb()
            self.optimizer.step()
        out: dict[str, list[float]] = {"forward": [], "backward": [], "optimizer": []}
        for _ in range(samples):
            parts = zip(*(self.parts(self.optimizer) for _ in range(self.repeats)))
            for name, seconds in zip(out, parts):
                out[name].append(1e3 * statistics.median(seconds))
        return out

    def parts(self, optimizer: torch.optim.Optimizer) -> tuple[float, float, float]:
        """Seconds of one step's forward, backward and optimizer."""
        self.drop_gradients()
        self.sync()
        clock = time.perf_counter
        start = clock()
        loss = self.forward()
        self.sync()
        ran = clock()
        loss.backward()
        self.sync()
        back = clock()
        optimizer.step()
        self.sync()
        return ran - start, back - ran, clock() - back


def describe(error: BaseException) -> str:
    """The error's type and its first lines, in one line."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:400]}"


def serve(args: argparse.Namespace, say: Callable[[dict[str, Any]], None], commands: TextIO) -> None:
    torch.set_num_threads(args.threads)
    steps = Steps(args)
    first = steps.first()
    if args.real:
        steps.give_back()
    say(first)
    for line in commands:
        command = json.loads(line)
        if command["do"] == "quit":
            return
        if command["do"] == "warm":
            answer = steps.warm()
            if args.real:
                steps.give_back()
            say(answer)
        elif command["do"] == "memory":
            say(steps.peaks)
        elif command["do"] == "steps":
            say(steps.steps(command["samples"]))
        elif command["do"] == "kernels":
            say(steps.kernels())
        else:
            say(steps.measure(command["samples"]))


def main() -> None:
    parser = argparse.ArgumentParser(description="A process of step_time.py; not for use by hand.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--runner", required=True)
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batches", default="dense")
    parser.add_argument("--logits", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--as-used", action="store_true", help="a model of used_models.py")
    parser.add_argument("--real", action="store_true", help="a model of gpu_models.py")
    args = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the answers

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        serve(args, say, sys.stdin)
    except Exception as error:  # reported, so that the other runners go on
        say({"failed": describe(error)})


if __name__ == "__main__":
    main()
