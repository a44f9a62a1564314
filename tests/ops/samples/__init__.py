"""The table that drives all operator tests: the rows of every module of this folder, one a family."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from ..table import Row

FAMILIES = [
    importlib.import_module(f"{__package__}.{module.name}")
    for module in pkgutil.iter_modules([str(Path(__file__).parent)])
]
ROWS: list[Row] = [row for family in FAMILIES for row in family.ROWS]
