"""Optimizers and learning-rate schedules for training with ortmodule (installed as `ortmodule.optim`)."""

from ortmodule.optim.adamw import AdamW
from ortmodule.optim.schedules import warmup_cosine

__all__ = ["AdamW", "warmup_cosine"]
