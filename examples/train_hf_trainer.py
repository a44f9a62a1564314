"""Hugging Face's Trainer with an ORTModule: accumulation, clipping, evaluation, checkpoints and resuming are its own.

A plain wrap is enough: the Trainer finds the wrapped model's class, signature and `save_pretrained` through it. With
`--zero` under torchrun training is divided among the processes (docs/sharding.md).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import transformers

from common import trainers
from common.arguments import fail, run
from ortmodule.distributed.integrations import for_accelerate


def main() -> None:
    top = trainers.parser(__doc__.split("\n")[0])
    top.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    top.add_argument("--resume", action="store_true", help="continue from the last checkpoint in --out")
    trainers.add_zero(top)
    args = top.parse_args()
    if args.zero and args.out:
        fail("--out has the Trainer write one process's part of the state: with --zero use save_checkpoint")
    model = trainers.wrap(trainers.build_gpt(args), args)
    per_step = args.batch_size * args.accumulation
    with tempfile.TemporaryDirectory() as temporary:
        out = args.out or Path(temporary)
        settings = transformers.TrainingArguments(
            output_dir=str(out),
            max_steps=args.steps,
            per_device_train_batch_size=args.batch_size,
            gradient_accumulation_steps=args.accumulation,
            learning_rate=args.lr,
            max_grad_norm=args.clip,
            seed=args.seed,
            bf16=args.bf16,
            logging_steps=1,
            logging_nan_inf_filter=False,
            save_strategy="steps" if args.out else "no",
            save_steps=max(1, args.steps // 2),
            eval_strategy="steps",
            eval_steps=args.steps,
            per_device_eval_batch_size=args.batch_size,
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
            use_cpu=not torch.cuda.is_available(),
            ddp_backend="gloo"
            if torch.distributed.is_torchelastic_launched() and not torch.cuda.is_available()
            else None,
        )
        optimizer = None
        if args.zero:
            optimizer = torch.optim.AdamW(model.parameters(), args.lr, weight_decay=0.0)
            settings.distributed_state  # noqa: B018  # makes the process group
            model, optimizer = trainers.shard(model, optimizer, args)
        trainer = transformers.Trainer(
            model=model,
            args=settings,
            optimizers=(optimizer, None),
            train_dataset=trainers.Sequences(args, args.steps * per_step),
            eval_dataset=trainers.Sequences(args, 2 * args.batch_size),
        )
        if args.zero:
            for_accelerate(trainer.accelerator, model, optimizer)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train(resume_from_checkpoint=args.resume or None)
        if args.out:
            trainer.save_model(str(out / "final"))
    history = trainer.state.log_history
    evaluation = [entry["eval_loss"] for entry in history if "eval_loss" in entry]
    norms = [entry["grad_norm"] for entry in history if "grad_norm" in entry]
    losses = [entry["loss"] for entry in history if "loss" in entry]
    if trainer.is_world_process_zero():
        trainers.finish(args, losses, evaluation_loss=evaluation[-1], gradient_norms=norms)


if __name__ == "__main__":
    run(main)
