"""Trains a BERT classifier on padded batches of text with ortmodule.

The task: which help topic of CPython is this passage from? The passages, 8 to 48 tokens long, are cut from the eight
longest topics; every fifth is held out. Batches are padded to their longest passage, so that their size changes from
step to step.
"""

from __future__ import annotations

import argparse
import dataclasses

import torch
import transformers
from tokenizers import Tokenizer
from torch import nn

from common import arguments, data, training

CLASSES = 8
SHORTEST, LONGEST = 8, 48  # tokens of a passage
_MODEL_ARGUMENTS = ("width", "layers", "heads", "vocabulary")


@dataclasses.dataclass
class Passages:
    """Token lists and their classes."""

    tokens: list[list[int]]
    labels: list[int]

    def batch(self, indices: torch.Tensor) -> dict[str, torch.Tensor]:
        """input_ids and attention_mask int64[n, longest of the batch], labels int64[n]."""
        rows = [torch.tensor(self.tokens[i]) for i in indices.tolist()]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0)
        mask = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor(self.labels)[indices]}


def cut(topics: dict[str, str], tokenizer: Tokenizer, seed: int) -> tuple[Passages, Passages]:
    """Training and held-out passages; lengths are drawn from `seed`."""
    generator = torch.Generator().manual_seed(seed)
    training_part, held_out = Passages([], []), Passages([], [])
    start = tokenizer.token_to_id(data.START)
    for label, (_, text) in enumerate(sorted(topics.items())):
        ids, position, count = tokenizer.encode(text).ids, 0, 0
        while position + SHORTEST <= len(ids):
            length = int(torch.randint(SHORTEST, LONGEST, (), generator=generator))
            part = held_out if count % 5 == 4 else training_part
            part.tokens.append([start, *ids[position : position + length]])
            part.labels.append(label)
            position, count = position + length, count + 1
    return training_part, held_out


def build_model(args: argparse.Namespace, vocabulary: int) -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=vocabulary,
        hidden_size=args.width,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        intermediate_size=4 * args.width,
        max_position_embeddings=LONGEST + 1,
        hidden_dropout_prob=args.dropout,
        attention_probs_dropout_prob=args.dropout,
        num_labels=CLASSES,
        pad_token_id=0,
    )
    return transformers.BertForSequenceClassification(config)


@torch.no_grad()
def accuracy(model: nn.Module, passages: Passages, args: argparse.Namespace) -> float:
    correct = 0
    for indices in torch.arange(len(passages.tokens)).split(64):
        inputs = {name: tensor.to(args.device) for name, tensor in passages.batch(indices).items()}
        labels = inputs.pop("labels")
        correct += int((model(**inputs).logits.argmax(-1) == labels).sum())
    return correct / len(passages.tokens)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    top = arguments.parser("bert", __doc__.split("\n")[0], steps=300, batch_size=32, lr=1e-3, dropout=0.1)
    model = top.add_argument_group("model")
    model.add_argument("--width", type=arguments.at_least(8), default=128, help="size of the hidden states")
    model.add_argument("--layers", type=arguments.at_least(1), default=3, help="transformer blocks")
    model.add_argument("--heads", type=arguments.at_least(1), default=4, help="attention heads")
    model.add_argument("--vocabulary", type=arguments.at_least(300), default=2048, help="tokens of the BPE")
    args = arguments.parse(top, argv)
    if args.width % args.heads:
        top.error(f"--width {args.width} is no multiple of --heads {args.heads}")
    return args


def main(argv: list[str] | None = None) -> None:
    transformers.logging.set_verbosity_error()
    args = parse(argv)
    resumed = training.load_resumed(args)
    longest = sorted(data.python_topics().items(), key=lambda item: (-len(item[1]), item[0]))[:CLASSES]
    if resumed is None:
        tokenizer = data.train_tokenizer(data.END.join(text for _, text in longest), args.vocabulary)
    else:
        tokenizer = Tokenizer.from_str(resumed["extra"]["tokenizer"])
    passages, held_out = cut(dict(longest), tokenizer, args.seed)
    share = max(held_out.labels.count(label) for label in range(CLASSES)) / len(held_out.labels)
    print(f"{CLASSES} topics, {len(held_out.labels)} passages held out; always saying the commonest scores {share:.1%}")
    task = training.Task(
        model=lambda: build_model(args, tokenizer.get_vocab_size()),
        examples=len(passages.tokens),
        batch=passages.batch,
        loss=lambda model, inputs: model(**inputs).loss,
        unit="tokens",
        units_per_example=sum(map(len, passages.tokens)) / len(passages.tokens),
        data=data.fingerprint(*(text for _, text in longest)),
        accuracy=lambda model: accuracy(model, held_out, args),
        extra={"tokenizer": tokenizer.to_str()},
    )
    training.train(task, args, resumed, fixed=_MODEL_ARGUMENTS)


if __name__ == "__main__":
    arguments.run(main)
