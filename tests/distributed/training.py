"""Training of the small GPT-2 in one process and on ranks, step for step the same arithmetic.

One process computes what each rank would (its micro-batches, one after another), adds the ranks' gradients up and takes
their mean. With 16-bit parameters the micro-batches' gradients are added up in fp32, as the ranks do it, and the norm
to clip by is summed in fp64: the last bit of fp32 that a sum in another order changes becomes another bf16 sooner or
later, and another run after that. Not here: what is asserted (test_*.py), and larger matrices of cases (__main__.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ortmodule import Options, ORTModule
from ortmodule.distributed import ZeroPolicy, gathered, zero
from tests.distributed.models import GPT, batch, groups

# Where a gradient is zero but for rounding (the bias of attention's keys), Adam's default makes whole steps of noise.
EPSILON = 1e-5


@dataclasses.dataclass(frozen=True)
class Case:
    """How a run trains. `engine`: "ortmodule" or "eager"."""

    stage: int = 1
    steps: int = 5
    accumulation: int = 1
    no_sync: bool = False
    bf16: bool = False
    engine: str = "ortmodule"
    clip: float = 1.0
    bucket_bytes: int = 16 << 10
    layers: int = 2
    policy: dict[str, Any] = dataclasses.field(default_factory=dict)
    make_optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW

    def model(self) -> nn.Module:
        model = GPT(self.layers)
        return model.to(torch.bfloat16) if self.bf16 else model

    def wrapped(self, model: nn.Module) -> nn.Module:
        return ORTModule(model, options=Options(fallback="error")) if self.engine == "ortmodule" else model

    def zero_policy(self) -> ZeroPolicy:
        given = {"bucket_bytes": self.bucket_bytes, **self.policy}
        if self.bf16:
            given["master_dtype"] = torch.float32
        return ZeroPolicy(**given)


def one_process(case: Case, world: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Mean losses of the ranks by step, and the parameters at the end (masters, for 16-bit parameters)."""
    model = case.model()
    masters = {p: nn.Parameter(p.detach().float(), p.requires_grad) if case.bf16 else p for p in model.parameters()}
    described = groups(model)
    for group in described:
        group["params"] = [masters[p] for p in group["params"]]  # type: ignore[attr-defined]
    optimizer = case.make_optimizer(described, lr=1e-3, eps=EPSILON)
    run = case.wrapped(model)
    losses = []
    for step in range(case.steps):
        total, sums = 0.0, {}
        for rank in range(world):
            own: dict[nn.Parameter, torch.Tensor] = {}
            for micro in range(case.accumulation):
                model.zero_grad()
                loss = run(batch(step, micro, rank)) / case.accumulation
                loss.backward()
                total += loss.item()
                for p in model.parameters():
                    if p.grad is not None:
                        own[p] = own[p] + p.grad.float() if p in own else p.grad.float()
            for p, gradient in own.items():
                sums[p] = sums[p] + gradient if p in sums else gradient
        for p in model.parameters():
            masters[p].grad = sums[p] / world if p in sums else None
        _clip([m.grad for m in masters.values() if m.grad is not None], case)
        optimizer.step()
        if case.bf16:
            with torch.no_grad():
                for p, master in masters.items():
                    p.copy_(master)
        losses.append(total / world)
    return losses, {name: masters[p].detach().float() for name, p in model.named_parameters()}


def _clip(gradients: list[torch.Tensor], case: Case) -> None:
    norm = nn.utils.get_total_norm([g.double() for g in gradients] if case.bf16 else gradients)
    for g in gradients:
        g.mul_(torch.clamp(case.clip / (norm.float() + 1e-6), max=1.0))


def on_rank(rank: int, case: Case) -> dict[str, Any]:
    """The same on this rank; "losses" are means over ranks."""
    model = case.model()
    run = case.wrapped(model)
    optimizer = case.make_optimizer(groups(model), lr=1e-3, eps=EPSILON)
    run, sharded = zero(run, optimizer, stage=case.stage, policy=case.zero_policy())
    losses, before, seen = [], None, [0, 0]
    for step in range(case.steps):
        if step == case.steps - 1:
            before = sharded.volume.copy()
            seen = observed(run)
        sharded.zero_grad()
        total = 0.0
        for micro in range(case.accumulation):
            waits = case.no_sync and micro < case.accumulation - 1
            with sharded.no_sync() if waits else contextlib.nullcontext():
                loss = run(batch(step, micro, rank)) / case.accumulation
                loss.backward()
            total += loss.item()
        sharded.clip_grad_norm_(case.clip)
        sharded.step()
        mean = torch.tensor(total, dtype=torch.float64)
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    assert before is not None
    moved = sharded.volume - before
    held = sharded.memory()
    return {
        "losses": losses,
        "parameters": sharded.full_parameters(),
        "moved": (moved.reduced, moved.gathered),
        "held": held,
        "observed": tuple(seen),
        "trained": sum(slot.numel for bucket in sharded.buckets for slot in bucket.layout.slots),
        "state": sharded.full_state_dict() if rank == 0 else sharded.full_state_dict() and None,
        "buckets": len(sharded.buckets),
        "events": list(sharded.reducer.events),
        "parameters_match": _same_on_all(model, sharded),
    }


def all_on_rank(rank: int, cases: list[Case]) -> list[dict[str, Any]]:
    """Each case in turn: what `on_rank` gives of it."""
    return [on_rank(rank, case) for case in cases]


def determined(rank: int, case: Case, threads: int) -> tuple[list[float], str]:
    """Losses, and a digest of the bits of all parameters (on rank 0, which has them)."""
    torch.set_num_threads(threads)
    found = on_rank(rank, case)
    digest = hashlib.sha256()
    for name, value in sorted((found["parameters"] or {}).items()):
        digest.update(name.encode() + value.contiguous().numpy().tobytes())
    return found["losses"], digest.hexdigest()


def observed(run: nn.Module) -> list[int]:
    """Bytes that the collectives of a model's graphs reduce and gather from now on, as their nodes run."""
    seen = [0, 0]

    def look(phase: str, node: str, op: str, inputs: Any, outputs: Any) -> None:
        del phase, node
        if op.endswith("ReduceScatter"):
            seen[0] += inputs[0][1].nbytes
        if op.endswith("AllGather"):
            seen[1] += outputs[0][1].nbytes

    if isinstance(run, ORTModule):
        for transition in run._manager.transitions():
            transition.session.observe(look)
    return seen


def _same_on_all(model: nn.Module, sharded: Any) -> bool:
    with gathered(sharded):
        for p in model.parameters():
            first = p.detach().clone()
            dist.broadcast(first, 0)
            if not torch.equal(first, p):
                return False
    return True


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Relative distance of two tensors, in the 2-norm."""
    return float((a.double() - b.double()).norm() / max(float(b.double().norm()), 1e-30))
