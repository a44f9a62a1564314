"""The table that drives all operator tests: the rows of every family."""

from __future__ import annotations

from . import (
    samples_activation,
    samples_attention,
    samples_constant,
    samples_contrib,
    samples_control,
    samples_elementwise,
    samples_forms,
    samples_index,
    samples_nn,
    samples_recurrent,
    samples_reduce,
    samples_rows,
    samples_shape,
    samples_signal,
    samples_training,
    samples_types,
    samples_vision,
)
from .table import Row

FAMILIES = [
    samples_activation,
    samples_attention,
    samples_constant,
    samples_contrib,
    samples_control,
    samples_elementwise,
    samples_forms,
    samples_index,
    samples_nn,
    samples_recurrent,
    samples_reduce,
    samples_rows,
    samples_shape,
    samples_signal,
    samples_training,
    samples_types,
    samples_vision,
]
ROWS: list[Row] = [row for family in FAMILIES for row in family.ROWS]
