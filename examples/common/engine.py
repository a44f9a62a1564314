"""One model in training on one engine: PyTorch's eager mode or ortmodule.

Every engine owns its weights, its optimizer and its random state. The random state is put into torch's generator for
the engine's step and taken out again, so that engines that train side by side draw the same numbers.
Not here: data, checkpoints, progress (training.py).
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import random
import resource
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ortmodule.optim import warmup_cosine

Batch = dict[str, torch.Tensor]


def wrap(model: nn.Module, engine: str, dropout_mode: str) -> nn.Module:
    """The one line that an ortmodule user adds to a training script."""
    if engine == "eager":
        return model
    from ortmodule import Options, ORTModule

    return ORTModule(model, options=Options(dropout=dropout_mode))


class PeakMemory:
    """Highest memory while a block runs: of the device on CUDA, of the whole process on a CPU."""

    def __init__(self, device: str):
        self.device, self.bytes = device, 0

    def __enter__(self) -> PeakMemory:
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            try:
                with open("/proc/self/clear_refs", "w") as control:
                    control.write("5")  # resets the high-water mark, so that it can be told per engine
            except OSError:
                pass
        return self

    def __exit__(self, *_: object) -> None:
        self.bytes = max(self.bytes, self._peak())

    def _peak(self) -> int:
        if self.device == "cuda":
            return torch.cuda.max_memory_allocated()
        try:
            with open("/proc/self/status") as status:
                return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
        except (OSError, StopIteration):
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@dataclasses.dataclass
class StepResult:
    """One optimizer step: mean loss of its micro-batches, gradient norm before clipping, wall-clock seconds."""

    loss: float
    gradient_norm: float
    seconds: float


class Engine:
    """Trains `module` in place on the engine called `name`."""

    def __init__(
        self, name: str, module: nn.Module, loss: Callable[[nn.Module, Batch], torch.Tensor], args: argparse.Namespace
    ):
        self.name, self.module, self.args, self._loss = name, module.to(args.device).train(), args, loss
        start = time.perf_counter()
        self.model = wrap(self.module, name, args.dropout_mode)
        self._seconds_to_wrap = time.perf_counter() - start
        matrices = [p for p in module.parameters() if p.requires_grad and p.ndim >= 2]
        vectors = [p for p in module.parameters() if p.requires_grad and p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": args.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=True)
        self.scheduler = warmup_cosine(
            self.optimizer, warmup_steps=args.warmup, total_steps=args.schedule_steps, floor=0.1
        )
        self.parameters = matrices + vectors
        self.random_state = self._seeded(args.seed + 1)
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.seconds_to_first_step: float | None = None
        self.memory = PeakMemory(args.device)

    @property
    def learning_rate(self) -> float:
        return self.scheduler.get_last_lr()[0]

    def step(self, batches: list[Batch]) -> StepResult:
        """Forward and backward of every micro-batch, clipping, one optimizer step."""
        outside = self._take_random_state()
        self._put_random_state(self.random_state)
        start = time.perf_counter()
        with self.memory:
            losses = []
            for batch in batches:
                with torch.autocast(self.args.device, torch.bfloat16, enabled=self.args.bf16):
                    loss = self._loss(self.model, batch)
                (loss / len(batches)).backward()
                losses.append(loss.detach())
            limit = self.args.clip or math.inf
            norm = torch.nn.utils.clip_grad_norm_(self.parameters, limit)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad(set_to_none=True)
            value = torch.stack(losses).double().mean().item()
        seconds = time.perf_counter() - start
        if self.seconds_to_first_step is None:
            self.seconds_to_first_step = self._seconds_to_wrap + seconds
        self.random_state = self._take_random_state()
        self._put_random_state(outside)
        self.losses.append(value)
        self.seconds.append(seconds)
        return StepResult(value, float(norm), seconds)

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "random_state": self.random_state,
            "losses": self.losses,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.random_state = state["random_state"]
        self.losses = list(state["losses"])

    def _take_random_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"python": random.getstate(), "cpu": torch.get_rng_state()}
        if self.args.device == "cuda":
            state["cuda"] = torch.cuda.get_rng_state()
        return state

    def _put_random_state(self, state: dict[str, Any]) -> None:
        version, numbers, gauss = state["python"]
        random.setstate((version, tuple(numbers), gauss))
        torch.set_rng_state(state["cpu"])
        if "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"])

    def _seeded(self, seed: int) -> dict[str, Any]:
        outside = self._take_random_state()
        random.seed(seed)
        torch.manual_seed(seed)
        state = self._take_random_state()
        self._put_random_state(outside)
        return state
