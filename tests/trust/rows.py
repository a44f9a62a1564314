"""The written-out pieces of all files together."""

from __future__ import annotations

from . import rows_arguments, rows_hooks, rows_left, rows_settings
from .pieces import Row

__all__ = ["ROWS"]

ROWS: list[Row] = [*rows_arguments.ROWS, *rows_settings.ROWS, *rows_hooks.ROWS, *rows_left.ROWS]
