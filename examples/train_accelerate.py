"""Accelerate with an ORTModule: `prepare`, `accumulate`, autocast, clipping, `save_state` and `unwrap_model`.

accelerate launch examples/train_accelerate.py        (or plain python)
torchrun --nproc-per-node 2 examples/train_accelerate.py --zero 2        (training divided among the processes)
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

from common import trainers
from common.arguments import run
from ortmodule.distributed import save_checkpoint
from ortmodule.distributed.integrations import for_accelerate


def main() -> None:
    top = trainers.parser(__doc__.split("\n")[0])
    top.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    trainers.add_zero(top)
    args = top.parse_args()
    accelerator = Accelerator(
        mixed_precision="bf16" if args.bf16 else "no", gradient_accumulation_steps=args.accumulation
    )
    model = trainers.wrap(trainers.build_gpt(args), args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    if args.zero:
        model, optimizer = trainers.shard(model, optimizer, args)
        for_accelerate(accelerator, model, optimizer)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps * accelerator.num_processes)
    data = trainers.Sequences(args, args.steps * args.accumulation * args.batch_size * accelerator.num_processes)
    loader = DataLoader(data, args.batch_size)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    set_seed(args.seed + 1)

    losses: list[float] = []
    total = torch.zeros((), device=accelerator.device)
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            total += loss.detach() / args.accumulation
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), args.clip)
                losses.append(accelerator.gather(total[None]).mean().item())
                total.zero_()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

    if args.out and args.zero:
        save_checkpoint(args.out / "state", model, optimizer.optimizer, step=args.steps)
    elif args.out:
        accelerator.save_state(str(args.out / "state"))
        accelerator.load_state(str(args.out / "state"))
        accelerator.unwrap_model(model).save_pretrained(args.out / "model", is_main_process=accelerator.is_main_process)
    if accelerator.is_main_process:
        trainers.finish(args, losses)
    accelerator.end_training()


if __name__ == "__main__":
    run(main)
