"""Optimizers and learning-rate schedules for training with ortmodule (installed as `ortmodule.optim`)."""

from ortmodule.optim.schedules import warmup_cosine

__all__ = ["warmup_cosine"]
