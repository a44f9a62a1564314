"""The table that drives all operator tests: the rows of every family."""

from __future__ import annotations

from . import samples_constant, samples_elementwise, samples_index, samples_nn, samples_reduce, samples_shape
from .table import Row

FAMILIES = [samples_elementwise, samples_reduce, samples_shape, samples_index, samples_constant, samples_nn]
ROWS: list[Row] = [row for family in FAMILIES for row in family.ROWS]
