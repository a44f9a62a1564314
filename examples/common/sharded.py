"""Training on several ranks with sharded optimizer, gradients and parameters (`--zero 1|2|3`, under torchrun).

Every rank takes its part of each batch; a checkpoint is a folder that any number of ranks resumes.
Not here: one process, engines side by side, reports (training.py).
"""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from common.arguments import fail
from common.data import ShuffledOrder
from common.engine import wrap
from common.training import Task
from ortmodule.distributed import ZeroPolicy, latest_checkpoint, load_checkpoint, save_checkpoint, zero
from ortmodule.optim import warmup_cosine


def train(task: Task, args: argparse.Namespace) -> None:
    """Trains to --steps, on each rank; --batch-size is of a rank. Rank 0 speaks."""
    cuda = torch.cuda.is_available() and args.device == "cuda"
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    out = [str(args.out)]
    dist.broadcast_object_list(out)  # a name that was made of the time may differ from rank to rank
    torch.manual_seed(args.seed)
    model = wrap(task.model().to(args.device), args.engine, args.dropout_mode)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": args.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    policy = ZeroPolicy(bucket_bytes=4 << 20, persistence_bytes=4096)
    model, optimizer = zero(model, torch.optim.AdamW(groups, lr=args.lr), stage=args.zero, policy=policy)
    steps = args.schedule_steps or max(args.steps, args.default_steps)  # the same when a run goes on
    scheduler = warmup_cosine(optimizer, warmup_steps=args.warmup, total_steps=steps)
    order, step = ShuffledOrder(task.examples, args.seed), 0
    folder = Path(out[0], "checkpoints")
    if args.resume is not None:
        path = latest_checkpoint(folder)
        if path is None:
            fail(f"--resume found no checkpoint under {folder}")
        loaded = load_checkpoint(path, model, optimizer, scheduler=scheduler)
        step, order.taken = loaded.step, loaded.data["examples_taken"]
        if rank == 0:
            print(f"resuming {path} at step {step} on {world} ranks")
    torch.manual_seed(args.seed + 1 + rank)
    rows = args.batch_size * world
    while step < args.steps:
        start, waited, total = time.perf_counter(), optimizer.agreement.waited, 0.0
        optimizer.zero_grad()
        for micro in range(args.accumulation):
            indices = order.take(rows)[rank::world]
            batch = {name: tensor.to(args.device) for name, tensor in task.batch(indices).items()}
            last = micro == args.accumulation - 1
            with contextlib.nullcontext() if last or args.zero > 1 else optimizer.no_sync():
                loss = task.loss(model, batch) / args.accumulation
                loss.backward()
            total += loss.item()
        if args.clip:
            optimizer.clip_grad_norm_(args.clip)
        optimizer.step()
        scheduler.step()
        step += 1
        _log(task, args, optimizer, step, total, time.perf_counter() - start, optimizer.agreement.waited - waited)
        if step % args.save_every == 0 or step == args.steps:
            data = {"examples_taken": order.taken}
            path = folder / f"step-{step:06d}"
            save_checkpoint(path, model, optimizer, scheduler=scheduler, step=step, data=data)
    dist.destroy_process_group()


def _log(
    task: Task, args: argparse.Namespace, optimizer: Any, step: int, loss: float, seconds: float, waited: float
) -> None:
    mean = torch.tensor(loss)
    dist.all_reduce(mean)
    world = dist.get_world_size()
    if dist.get_rank() == 0 and (step % max(1, args.steps // 10) == 0 or step in (1, args.steps)):
        units = args.batch_size * args.accumulation * task.units_per_example * world
        held = optimizer.memory().total / (1 << 20)
        print(
            f"step {step}/{args.steps}  loss {mean.item() / world:.4f}  {task.unit}/s {units / seconds:,.0f}  "
            f"model, gradients and states {held:.1f} MiB a rank  waited for other ranks {1e3 * waited:.1f} ms",
            flush=True,
        )
