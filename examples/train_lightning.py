"""Lightning with an ORTModule: the wrapped model is an attribute of the LightningModule, made in `configure_model`."""

from __future__ import annotations

import argparse
import logging
import warnings

import lightning
import torch
from torch.utils.data import DataLoader

from common import trainers
from common.arguments import run


class LanguageModel(lightning.LightningModule):
    """Trains a GPT-2; `losses` is one mean per optimizer step."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.args = args
        self.net: torch.nn.Module | None = None
        self.losses: list[float] = []
        self._micro: list[torch.Tensor] = []

    def configure_model(self) -> None:
        if self.net is None:
            self.net = trainers.wrap(trainers.build_gpt(self.args), self.args)

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        loss = self.net(**batch).loss
        self._micro.append(loss.detach())
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.losses.append(torch.stack(self._micro).mean().item())
        self._micro.clear()

    def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
        self.log("validation_loss", self.net(**batch).loss)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.args.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.args.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    top = trainers.parser(__doc__.split("\n")[0])
    top.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    args = top.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    module = LanguageModel(args)
    trainer = lightning.Trainer(
        max_steps=args.steps,
        accumulate_grad_batches=args.accumulation,
        gradient_clip_val=args.clip,
        precision="bf16-mixed" if args.bf16 else "32-true",
        default_root_dir=args.out,
        enable_checkpointing=args.out is not None,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = trainers.Sequences(args, args.steps * args.accumulation * args.batch_size)
    held_out = trainers.Sequences(args, 2 * args.batch_size)
    torch.manual_seed(args.seed + 1)
    trainer.fit(module, DataLoader(data, args.batch_size), DataLoader(held_out, args.batch_size))
    if args.out:
        path = args.out / "last.ckpt"
        trainer.save_checkpoint(path)
        again = LanguageModel(args)
        again.configure_model()
        again.load_state_dict(torch.load(path, weights_only=True)["state_dict"])
    trainers.finish(args, module.losses, validation_loss=float(trainer.callback_metrics["validation_loss"]))


if __name__ == "__main__":
    run(main)
