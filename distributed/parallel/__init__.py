"""Models that are divided among ranks: tensor, vocabulary, sequence and expert parallelism."""

from ortmodule.distributed.parallel.clip import clip_grad_norm_
from ortmodule.distributed.parallel.collectives import GroupRanks
from ortmodule.distributed.parallel.experts import FeedForwardExperts, MixtureOfExperts
from ortmodule.distributed.parallel.parallelize import ParallelLayout, parallelize
from ortmodule.distributed.parallel.plan import Plan
from ortmodule.distributed.parallel.propose import Choice, Proposal, propose_plan
from ortmodule.distributed.parallel.state import load_whole_state_dict, whole_state_dict
from ortmodule.distributed.parallel.styles import (
    Column,
    Divide,
    Experts,
    GatherInput,
    Row,
    Sequence,
    SplitOutput,
    Style,
    Vocabulary,
    VocabularyLoss,
)
from ortmodule.distributed.parallel.vocabulary import vocabulary_cross_entropy

__all__ = [
    "Choice",
    "Column",
    "Divide",
    "Experts",
    "FeedForwardExperts",
    "GatherInput",
    "GroupRanks",
    "MixtureOfExperts",
    "ParallelLayout",
    "Plan",
    "Proposal",
    "Row",
    "Sequence",
    "SplitOutput",
    "Style",
    "Vocabulary",
    "VocabularyLoss",
    "clip_grad_norm_",
    "load_whole_state_dict",
    "parallelize",
    "propose_plan",
    "vocabulary_cross_entropy",
    "whole_state_dict",
]
