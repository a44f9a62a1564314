"""Data-parallel training: DistributedDataParallel around an ORTModule, with gradient accumulation.

    torchrun --nproc-per-node 2 examples/train_ddp.py

Every process trains on its share of each batch; gradients are summed once per optimizer step, since the micro-batches
before the last run under `no_sync`. On CPUs the processes talk through gloo, on GPUs through NCCL.
"""

from __future__ import annotations

import argparse
import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from common import trainers
from common.arguments import run
from ortmodule.distributed import LaunchEnvironment, launch_environment


def train(args: argparse.Namespace, place: LaunchEnvironment, device: torch.device) -> tuple[list[float], torch.Tensor]:
    """The loss of each step, the mean over all processes, and the sum of this process's weights at the end."""
    model = DistributedDataParallel(
        trainers.wrap(trainers.build_gpt(args).to(device), args), find_unused_parameters=args.unused
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    data = trainers.Sequences(args, args.steps * args.accumulation * args.batch_size * place.world_size)
    batches = iter(DataLoader(data, args.batch_size, sampler=DistributedSampler(data, seed=args.seed)))
    torch.manual_seed(args.seed + 1 + place.rank)  # every process draws its own dropout

    losses = []
    for _ in range(args.steps):
        total = torch.zeros((), device=device)
        for micro in range(args.accumulation):
            batch = {name: tensor.to(device) for name, tensor in next(batches).items()}
            last = micro == args.accumulation - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = model(**batch).loss / args.accumulation
                loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        losses.append(float(total) / place.world_size)

    return losses, sum(p.detach().double().sum() for p in model.parameters())


def main() -> None:
    top = trainers.parser(__doc__.split("\n")[0])
    top.add_argument("--unused", action="store_true", help="search for parameters that take no part in the loss")
    args = top.parse_args()
    trainers.one_machine_defaults()
    place = launch_environment()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", place.local_rank) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")

    losses, checksum = train(args, place, device)
    # The model is gone by now. It must not outlive the process group: DDP's reducer would free the group while it holds
    # Python's lock, and gloo's thread may be waiting for that very lock (torch 2.13).
    all_checksums = [torch.zeros_like(checksum) for _ in range(place.world_size)]
    dist.all_gather(all_checksums, checksum)
    if place.rank == 0:
        same = all(torch.equal(c, all_checksums[0]) for c in all_checksums)
        trainers.finish(args, losses, processes=place.world_size, same_weights_everywhere=same)
    dist.destroy_process_group()


if __name__ == "__main__":
    run(main)
