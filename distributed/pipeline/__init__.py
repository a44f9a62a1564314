"""Pipeline parallelism: a model's stages on different ranks."""

from ortmodule.distributed.pipeline.pipeline import Pipeline
from ortmodule.distributed.pipeline.schedule import Action, bubble, order_of

__all__ = ["Action", "Pipeline", "bubble", "order_of"]
