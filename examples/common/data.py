"""The order of training examples, and text made into tokens.

Text comes from the documentation that ships inside CPython, so that nothing is downloaded. The order is a pure function
of the seed and the number of examples taken so far: a resumed run goes on with the very next example.
"""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from common.arguments import fail

END = "<|end|>"  # token 0: the end of a document, and padding
START = "<|start|>"  # token 1: the beginning of a sequence to classify


class ShuffledOrder:
    """Endless epochs of 0 .. size-1, each in a new order; a batch may span two epochs."""

    def __init__(self, size: int, seed: int, taken: int = 0):
        self.size, self.seed, self.taken = size, seed, taken
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def take(self, count: int) -> torch.Tensor:
        """The next `count` indices, int64[count]."""
        picked = []
        for position in range(self.taken, self.taken + count):
            epoch, offset = divmod(position, self.size)
            if epoch != self._epoch:
                generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
                self._epoch, self._order = epoch, torch.randperm(self.size, generator=generator)
            picked.append(self._order[offset])
        self.taken += count
        return torch.stack(picked)


def python_topics() -> dict[str, str]:
    """The help topics of CPython: name -> text, about half a million characters in all."""
    try:
        return dict(importlib.import_module("pydoc_data.topics").topics)
    except ImportError:
        fail("this Python was built without pydoc_data; name a text with --text FILE")


def read_text(path: Path | None) -> str:
    """The user's text, or CPython's documentation with END between its topics."""
    if path is None:
        return END.join(text for _, text in sorted(python_topics().items()))
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        fail(f"--text {path}: no such file")
    except IsADirectoryError:
        fail(f"--text {path}: is a folder; name a file")
    except UnicodeDecodeError as error:
        fail(f"--text {path}: is no UTF-8 text (byte {error.start})")
    except OSError as error:
        fail(f"--text {path}: {error.strerror}")


def train_tokenizer(text: str, vocabulary: int) -> Tokenizer:
    """A byte-level BPE (as GPT-2's) of at most `vocabulary` tokens; every text can be encoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END, START],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.split(END), trainer)
    return tokenizer


def fingerprint(*parts: str | bytes) -> str:
    """A short digest by which a checkpoint knows the data that it was made with."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()[:16]
