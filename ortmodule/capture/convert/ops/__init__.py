"""Translators of aten operators, one file per family.

Importing this package fills `registry.TRANSLATORS`. An operator without a translator, or whose translator returns
NotImplemented for the arguments at hand, becomes an ATen node.
"""

import importlib
import pkgutil

from ..registry import TRANSLATORS, Translator

__all__ = ["TRANSLATORS", "Translator"]

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")
