"""Translators of aten operators, one file per family.

Importing this package fills `registry.TRANSLATORS`. An operator without a translator, or whose translator returns
NotImplemented for the arguments at hand, becomes an ATen node.
"""

from . import (
    activation,
    create,
    diagonal,
    elementwise,
    image,
    indexing,
    loss,
    nn,
    order,
    recurrent,
    reduction,
    shape,
    special,
    strided,
)
from .registry import TRANSLATORS, Translator

__all__ = [
    "TRANSLATORS",
    "Translator",
    "activation",
    "create",
    "diagonal",
    "elementwise",
    "image",
    "indexing",
    "loss",
    "nn",
    "order",
    "recurrent",
    "reduction",
    "shape",
    "special",
    "strided",
]
