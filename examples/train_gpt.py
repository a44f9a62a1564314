"""Trains a small GPT-2 on real text with ortmodule, from nothing to a text sample, in about three minutes on two cores.

The text is the documentation that ships inside CPython (or --text FILE), its tokens a byte-level BPE trained on the
spot, the model transformers' GPT2LMHeadModel from a config. `--compare` trains eager PyTorch beside it.
The line that turns a PyTorch script into this one is `wrap` in common/engine.py.
On several ranks: `torchrun --nproc-per-node 2 examples/train_gpt.py --zero 2 --out runs/sharded`, resumed on any number
of ranks and at any stage with `--resume`.
"""

from __future__ import annotations

import argparse

import torch
import transformers
from tokenizers import Tokenizer
from torch import nn

from common import arguments, data, sharded, training

_MODEL_ARGUMENTS = ("context", "width", "layers", "heads", "vocabulary")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    top = arguments.parser("gpt", __doc__.split("\n")[0], steps=240, batch_size=8, lr=1e-3, dropout=0.1)
    top.set_defaults(accumulation=2)
    model = top.add_argument_group("model and text")
    model.add_argument(
        "--text", type=arguments.Path, metavar="FILE", help="UTF-8 text (default: CPython's help topics)"
    )
    model.add_argument("--context", type=arguments.at_least(2), default=128, help="tokens per example")
    model.add_argument("--width", type=arguments.at_least(8), default=256, help="size of the hidden states")
    model.add_argument("--layers", type=arguments.at_least(1), default=4, help="transformer blocks")
    model.add_argument("--heads", type=arguments.at_least(1), default=4, help="attention heads")
    model.add_argument("--vocabulary", type=arguments.at_least(300), default=2048, help="tokens of the BPE")
    model.add_argument("--prompt", default="The ", help="how the sample at the end begins")
    model.add_argument(
        "--zero",
        type=int,
        choices=[1, 2, 3],
        help="under torchrun: divide optimizer, gradients, parameters among ranks",
    )
    args = arguments.parse(top, argv)
    if args.zero and args.compare:
        top.error("--compare is of one process; --zero trains on many")
    if args.width % args.heads:
        top.error(f"--width {args.width} is no multiple of --heads {args.heads}")
    return args


def build_model(args: argparse.Namespace, vocabulary: int) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=vocabulary,
        n_positions=args.context,
        n_embd=args.width,
        n_layer=args.layers,
        n_head=args.heads,
        resid_pdrop=args.dropout,
        embd_pdrop=args.dropout,
        attn_pdrop=args.dropout,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return transformers.GPT2LMHeadModel(config)


@torch.no_grad()
def generate(model: nn.Module, tokenizer: Tokenizer, args: argparse.Namespace, tokens: int = 120) -> str:
    """Samples from the 20 likeliest tokens at each place; the same text for the same weights and seed."""
    generator = torch.Generator().manual_seed(args.seed)
    ids = torch.tensor([tokenizer.encode(args.prompt).ids or [0]])
    for _ in range(tokens):
        logits = model(input_ids=ids[:, -args.context :].to(args.device)).logits[0, -1].float().cpu()
        best = torch.topk(logits / 0.8, min(20, logits.numel()))
        ids = torch.cat(
            [ids, best.indices[torch.multinomial(best.values.softmax(-1), 1, generator=generator)][None]], 1
        )
    return tokenizer.decode(ids[0].tolist())


def main(argv: list[str] | None = None) -> None:
    transformers.logging.set_verbosity_error()
    args = parse(argv)
    resumed = None if args.zero else training.load_resumed(args)
    text = data.read_text(args.text)
    if resumed is None:
        tokenizer = data.train_tokenizer(text, args.vocabulary)
    else:
        tokenizer = Tokenizer.from_str(resumed["extra"]["tokenizer"])
    ids = torch.tensor(tokenizer.encode(text).ids)
    windows = len(ids) // args.context
    if windows < args.batch_size * args.accumulation:
        arguments.fail(
            f"the text is too short: {len(ids):,} tokens make {windows} examples of {args.context} tokens, and a step "
            f"takes {args.batch_size * args.accumulation}; give more text, or a smaller --context or --batch-size"
        )
    examples = ids[: windows * args.context].view(windows, args.context)

    def batch(indices: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"input_ids": examples[indices]}

    def loss(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        return model(input_ids=inputs["input_ids"], labels=inputs["input_ids"]).loss

    task = training.Task(
        model=lambda: build_model(args, tokenizer.get_vocab_size()),
        examples=windows,
        batch=batch,
        loss=loss,
        unit="tokens",
        units_per_example=args.context,
        data=data.fingerprint(text),
        sample=lambda model: generate(model, tokenizer, args),
        extra={"tokenizer": tokenizer.to_str()},
    )
    if args.zero:
        sharded.train(task, args)
    else:
        training.train(task, args, resumed, fixed=_MODEL_ARGUMENTS)


if __name__ == "__main__":
    arguments.run(main)
