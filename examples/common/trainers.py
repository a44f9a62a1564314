"""What the examples share whose training loop is another library's: arguments, a small GPT-2 on text, the losses.

The text is CPython's own documentation, its tokens the bytes, so that nothing is downloaded and nothing is prepared.
Not here: the loop of our own examples (training.py).
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
import transformers
from torch import nn

from common.arguments import at_least, between, fail
from common.data import read_text

VOCABULARY = 256


def parser(description: str, **defaults: object) -> argparse.ArgumentParser:
    """A parser with the arguments that every one of these examples has."""
    top = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    top.add_argument("--engine", choices=["ortmodule", "eager"], default="ortmodule", help="what trains the model")
    top.add_argument("--steps", type=at_least(1), default=30, help="optimizer steps")
    top.add_argument("--batch-size", type=at_least(1), default=4, help="sequences per micro-batch and process")
    top.add_argument("--accumulation", type=at_least(1), default=2, help="micro-batches per optimizer step")
    top.add_argument("--lr", type=float, default=1e-3, help="learning rate of AdamW")
    top.add_argument("--clip", type=float, default=1.0, help="largest gradient norm")
    top.add_argument("--seed", type=at_least(0), default=0, help="of weights, data order and dropout")
    top.add_argument("--dropout", type=between(0, 1), default=0.1, metavar="P", help="dropout probability")
    top.add_argument(
        "--dropout-mode", choices=["fast", "torch"], default="torch", help="ortmodule's masks: its own, or eager's"
    )
    top.add_argument("--context", type=at_least(2), default=64, help="bytes per sequence")
    top.add_argument("--width", type=at_least(8), default=64, help="size of the hidden states")
    top.add_argument("--layers", type=at_least(1), default=2, help="transformer blocks")
    top.add_argument("--out", type=Path, help="folder for what is written besides (default: nothing is)")
    top.add_argument("--json", type=Path, metavar="OUT", help="write the losses to this file")
    top.set_defaults(**defaults)
    return top


def build_gpt(args: argparse.Namespace) -> nn.Module:
    """A GPT-2 over bytes; the same weights for the same seed."""
    torch.manual_seed(args.seed)
    transformers.logging.set_verbosity_error()
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=args.context,
        n_embd=args.width,
        n_layer=args.layers,
        n_head=max(1, args.width // 32),
        resid_pdrop=args.dropout,
        embd_pdrop=args.dropout,
        attn_pdrop=args.dropout,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config).train()


def wrap(model: nn.Module, args: argparse.Namespace) -> nn.Module:
    """The one line that an ortmodule user adds to a training script."""
    if args.engine == "eager":
        return model
    from ortmodule import Options, ORTModule

    return ORTModule(model, options=Options(dropout=args.dropout_mode, fallback="error"))


def add_zero(top: argparse.ArgumentParser) -> None:
    """--zero, for examples that torchrun may start."""
    top.add_argument("--zero", type=int, choices=[1, 2], help="divide training among the processes, to this stage")


def shard(
    model: nn.Module, optimizer: torch.optim.Optimizer, args: argparse.Namespace
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """What --zero asks for; the loop's library has made the process group."""
    from ortmodule.distributed import zero

    return zero(model, optimizer, stage=args.zero)


class Sequences(torch.utils.data.Dataset):
    """Every sequence as {"input_ids": int64[context], "labels": the same}, in an order of `seed`."""

    def __init__(self, args: argparse.Namespace, count: int) -> None:
        text = torch.frombuffer(bytearray(read_text(None).encode()), dtype=torch.uint8)
        windows = text[: len(text) // args.context * args.context].view(-1, args.context).long()
        if count > len(windows):
            fail(f"the run takes {count} sequences and the text has {len(windows)}; make --steps smaller")
        order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(args.seed))
        self._windows = windows[order[:count]]

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._windows[index], "labels": self._windows[index]}


def finish(args: argparse.Namespace, losses: list[float], **more: object) -> None:
    """Prints the losses and writes the file that --json asks for."""
    every = max(1, len(losses) // 10)
    for step, loss in enumerate(losses, 1):
        if step % every == 0 or step in (1, len(losses)):
            print(f"step {step}/{len(losses)}  loss {loss:.6f}")
    for name, value in more.items():
        print(f"{name.replace('_', ' ')}: {value}")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"engine": args.engine, "losses": losses, **more}) + "\n")


def one_machine_defaults() -> None:
    """Lets a script that was started without torchrun be rank 0 of 1."""
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
        os.environ.setdefault(name, value)
