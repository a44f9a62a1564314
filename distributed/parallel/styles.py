"""How one module is divided among ranks: plain data, chosen per module by a plan (plan.py).

Not here: what the modules become (linear.py, vocabulary.py, sequence.py, experts.py).
"""

from __future__ import annotations

import dataclasses

__all__ = ["Column", "Divide", "Experts", "GatherInput", "Row", "Sequence", "SplitOutput", "Style", "Vocabulary",
           "VocabularyLoss"]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Style:
    """What all styles have in common: nothing but that they are frozen data."""


@dataclasses.dataclass(frozen=True)
class Column(Style):
    """A Linear whose outputs are divided: each rank computes some of them of the whole input.

    Attributes:
        parts: of how many equal blocks the outputs consist, each of which is divided (3 for queries, keys and values in
            one Linear).
        gather: the result is put together again; else each rank goes on with its own outputs.
        sequence: the axis along which the input is divided (sequence parallelism); None: it is whole.
    """

    parts: int = 1
    gather: bool = False
    sequence: int | None = None


@dataclasses.dataclass(frozen=True)
class Row(Style):
    """A Linear whose inputs are divided: the results of the ranks are added up.

    Attributes:
        split: the input is whole, and each rank takes its part; else it comes divided, from a Column.
        sequence: the axis along which the result is divided; None: every rank has all of it.
    """

    split: bool = False
    sequence: int | None = None


@dataclasses.dataclass(frozen=True)
class Vocabulary(Style):
    """An Embedding, or the Linear in front of the loss, whose rows are divided. The vocabulary need not be a multiple
    of the ranks: it is filled up with rows that nothing reads.

    Attributes:
        gather: of a Linear: the result is whole; else each rank has the scores of its words, for VocabularyLoss.
        sequence: the axis along which the Embedding's result, or the Linear's input, is divided; None: it is whole.
    """

    gather: bool = False
    sequence: int | None = None


@dataclasses.dataclass(frozen=True)
class VocabularyLoss(Style):
    """An nn.CrossEntropyLoss over scores that are divided by words."""


@dataclasses.dataclass(frozen=True)
class Sequence(Style):
    """A module (a norm, for one) with whole parameters that is given a part of each sequence."""


@dataclasses.dataclass(frozen=True)
class GatherInput(Style):
    """A module whose first argument is put together before it runs. Attributes: the axis along which it is divided."""

    dim: int = 1


@dataclasses.dataclass(frozen=True)
class SplitOutput(Style):
    """A module of whose result each rank keeps its part along an axis (an Embedding of positions, for one)."""

    dim: int = 1


@dataclasses.dataclass(frozen=True)
class Divide(Style):
    """A module of which numbers are divided by how many ranks there are: those of heads, where its code reads them."""

    attributes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Experts(Style):
    """A MixtureOfExperts whose experts are divided; rows travel to them and back by AllToAll.

    Attributes:
        divided: whether each rank has rows of its own (in a region with divided sequences); else all have the same, and
            each takes a part of them.
    """

    divided: bool = False
