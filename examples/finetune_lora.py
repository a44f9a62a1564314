"""LoRA on GPT-2 with PEFT: only the adapters get gradients, and only what those need is kept for backward.

`--full` trains every weight instead, to compare. At the end the adapters are saved, switched off and merged.
"""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader

from common import trainers
from common.arguments import at_least, run


def main() -> None:
    top = trainers.parser(__doc__.split("\n")[0], lr=1e-2)
    top.add_argument("--rank", type=at_least(1), default=4, help="rank of the adapters")
    top.add_argument("--full", action="store_true", help="train all weights, without adapters")
    args = top.parse_args()
    module = trainers.build_gpt(args)
    if not args.full:
        config = LoraConfig(
            r=args.rank,
            lora_alpha=2 * args.rank,
            lora_dropout=args.dropout,
            target_modules=["c_attn", "c_proj", "c_fc"],
            fan_in_fan_out=True,
            task_type="CAUSAL_LM",
        )
        module = get_peft_model(module, config)
    model = trainers.wrap(module, args).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=args.lr)
    data = trainers.Sequences(args, args.steps * args.accumulation * args.batch_size)
    batches = iter(DataLoader(data, args.batch_size))
    torch.manual_seed(args.seed + 1)

    losses = []
    for _ in range(args.steps):
        total = 0.0
        for _ in range(args.accumulation):
            loss = model(**next(batches)).loss / args.accumulation
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(trained, args.clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)

    facts: dict[str, object] = {
        "trained_parameters": sum(p.numel() for p in trained),
        "all_parameters": sum(p.numel() for p in model.parameters()),
        "frozen_weights_with_a_gradient": sum(p.grad is not None for p in model.parameters() if not p.requires_grad),
    }
    if args.engine == "ortmodule":
        session = model.report().sessions[0]
        facts |= {
            "gradients_computed": session.gradients,
            "trained_tensors": len(trained),
            "backward_nodes": session.backward_nodes,
            "bytes_saved_for_backward": session.saved_bytes,
        }
    if not args.full:
        facts |= after_training(model, args, data)
    trainers.finish(args, losses, **facts)


@torch.no_grad()
def after_training(model: torch.nn.Module, args: object, data: trainers.Sequences) -> dict[str, object]:
    """Held-out loss with the adapters, without them, and with them merged into the weights."""
    model.eval()
    batch = next(iter(DataLoader(data, 4)))
    adapted = model(**batch).loss.item()
    with model.disable_adapter():
        plain = model(**batch).loss.item()
    if args.out:
        model.save_pretrained(str(args.out))
    model.merge_adapter()
    merged = model(**batch).loss.item()
    model.unmerge_adapter()
    return {"loss_with_adapters": adapted, "loss_without_adapters": plain, "loss_with_merged_adapters": merged}


if __name__ == "__main__":
    run(main)
