"""Optimizers, clipping, mixed precision and schedules, installed as `ortmodule.optim`: docs/optimizers.md."""

from ortmodule.optim.adafactor import Adafactor
from ortmodule.optim.adam import Adam, AdamW
from ortmodule.optim.clipping import clip_grad_norm_
from ortmodule.optim.in_backward import OptimizerInBackward, optimizer_in_backward
from ortmodule.optim.lamb import LAMB
from ortmodule.optim.loss_scaler import DynamicLossScaler
from ortmodule.optim.mixed_precision import MixedPrecision
from ortmodule.optim.schedules import warmup_cosine
from ortmodule.optim.sgd import SGD
from ortmodule.optim.states import full_precision

__all__ = [
    "LAMB",
    "SGD",
    "Adafactor",
    "Adam",
    "AdamW",
    "DynamicLossScaler",
    "MixedPrecision",
    "OptimizerInBackward",
    "clip_grad_norm_",
    "full_precision",
    "optimizer_in_backward",
    "warmup_cosine",
]
