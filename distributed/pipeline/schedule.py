"""In which order a rank of a pipeline runs its stages: pure functions.

One forward, one backward (1F1B), and the same with several stages a rank (interleaved), whose bubble is smaller by that
number: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters, 2021.
Not here: running them (pipeline.py).
"""

from __future__ import annotations

import dataclasses

__all__ = ["Action", "bubble", "order_of"]


@dataclasses.dataclass(frozen=True)
class Action:
    """Forward or backward of one micro-batch through one of the rank's own stages (`chunk`, counted from 0)."""

    forward: bool
    chunk: int
    micro: int


def order_of(rank: int, ranks: int, micro_batches: int, chunks: int = 1) -> list[Action]:
    """What a rank does in a step. With several chunks the micro-batches must be a multiple of the ranks.

    A rank that is `d` before the last begins with d forwards (2 d and a round of the ranks for each further chunk),
    goes on with one forward and one backward in turn, and ends with the backwards that are left: so that it holds the
    activations of at most so many forwards, however many micro-batches there are.
    """
    total, behind = micro_batches * chunks, ranks - rank - 1
    ahead = behind if chunks == 1 else 2 * behind + (chunks - 1) * ranks
    ahead = min(ahead, total)
    forwards = [_action(True, k, ranks, chunks) for k in range(total)]
    backwards = [_action(False, k, ranks, chunks) for k in range(total)]
    out = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        out += [forward, backward]
    return out + backwards[total - ahead :]


def _action(forward: bool, k: int, ranks: int, chunks: int) -> Action:
    """The k-th forward or backward: chunks take turns after as many micro-batches as there are ranks."""
    if chunks == 1:
        return Action(forward, 0, k)
    round_, within = divmod(k, ranks * chunks)
    chunk, micro = divmod(within, ranks)
    return Action(forward, chunk if forward else chunks - 1 - chunk, round_ * ranks + micro)


def bubble(ranks: int, micro_batches: int, chunks: int = 1) -> float:
    """The part of a step for which a rank waits, where all stages take the same time and messages none."""
    idle = (ranks - 1) / chunks
    return idle / (micro_batches + idle)
