"""A vocabulary that is divided among ranks: its embedding, its scores, and the cross entropy over them.

The table is filled up to a multiple of the ranks. Rows without a word are zero, and their scores are minus infinity, so
that neither is ever read nor gets a gradient.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ortmodule.distributed.parallel.collectives import (
    GroupRanks,
    copied,
    gathered_along,
    maximum,
    summed,
    summed_parts,
)

__all__ = ["VocabularyCrossEntropy", "VocabularyEmbedding", "VocabularyLinear", "vocabulary_cross_entropy"]


class VocabularyEmbedding(nn.Embedding):
    """weight [ceil(words / world), width]: this rank's words."""

    ranks: GroupRanks
    sequence: int | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """input [..] -> [.., width], or its part along `sequence`.

        Raises:
            IndexError: no word has such a number; on every rank, as the undivided Embedding does.
        """
        ranks, rows = self.ranks, self.weight.shape[0]
        own = input - ranks.rank * rows
        is_word = (input >= 0) & (input < self.num_embeddings)
        elsewhere = ((own < 0) | (own >= rows)) & is_word
        padding = self.padding_idx
        if padding is not None:
            padding -= ranks.rank * rows
            padding = padding if 0 <= padding < rows else None
        # What is no word is looked for, and not found, by all ranks: none waits for the others' sum.
        found = F.embedding(own.masked_fill(elsewhere, 0).masked_fill(~is_word, rows), self.weight, padding)
        found = found.masked_fill(elsewhere.unsqueeze(-1), 0.0)
        return summed(found, ranks) if self.sequence is None else summed_parts(found, ranks, self.sequence)


class VocabularyLinear(nn.Linear):
    """weight [ceil(words / world), in], bias [ceil(words / world)]: the scores of this rank's words."""

    ranks: GroupRanks
    words: int
    gather: bool
    sequence: int | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """input [.., in] (or its part along `sequence`) -> [.., ceil(words / world)], or [.., words] if it gathers."""
        ranks, rows = self.ranks, self.weight.shape[0]
        if self.sequence is None:
            whole = copied(input, ranks)
        else:
            whole = gathered_along(input, ranks, self.sequence)
        scores = F.linear(whole, self.weight, self.bias)
        if self.gather:
            return gathered_along(scores, ranks, -1, alike=True)[..., : self.words]
        if rows * ranks.world == self.words:
            return scores
        no_word = torch.arange(rows, device=scores.device) >= self.words - ranks.rank * rows
        return scores.masked_fill(no_word, float("-inf"))


class VocabularyCrossEntropy(nn.CrossEntropyLoss):
    """nn.CrossEntropyLoss over scores [n, words / world] of this rank's words."""

    ranks: GroupRanks

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return vocabulary_cross_entropy(input, target, self.ranks, self.ignore_index, self.reduction)


def vocabulary_cross_entropy(
    scores: torch.Tensor,
    target: torch.Tensor,
    ranks: GroupRanks,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> torch.Tensor:
    """The cross entropy over a vocabulary of which each rank has the scores of its words; the same on all ranks.

    Args:
        scores: [n, words / world], what a `Vocabulary()` Linear gives; computed with in at least fp32.
        target: int64 [n], of the whole vocabulary.
        ranks: of the group (`GroupRanks.of(group)`).
        ignore_index: a target that does not count.
        reduction: "mean" over what counts, "sum", or "none" ([n]).

    Raises:
        RuntimeError: a target is no class, on every rank.

    log(sum(exp(s))) - s[target], with the largest of all ranks' scores taken off first: two small collectives.
    """
    if scores.dim() != 2 or target.shape != scores.shape[:1]:
        raise ValueError(f"expected scores [n, words] and targets [n], got {[*scores.shape]} and {[*target.shape]}")
    words = scores.shape[1]
    scores = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    largest = maximum(scores.detach().amax(1), ranks)
    scores = scores - largest.unsqueeze(1)
    own = target - ranks.rank * words
    is_own = (own >= 0) & (own < words)
    counts = target != ignore_index
    # A target that is no class is looked for, and not found, by all ranks: none waits for the others' sum.
    is_none = counts & ((target < 0) | (target >= words * ranks.world))
    place = own.clamp(0, words - 1).masked_fill(is_none, words)
    hit = scores.gather(1, place.unsqueeze(1)).squeeze(1)
    both = torch.stack([scores.exp().sum(1), torch.where(is_own, hit, torch.zeros_like(hit))])
    total, hit = summed(both, ranks).unbind(0)
    losses = torch.where(counts, total.log() - hit, torch.zeros_like(total))
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / counts.sum()
