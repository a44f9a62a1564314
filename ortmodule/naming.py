"""What classes and functions say that they are called. Any of it may be missing, or no string: a class that `exec` has
made in a namespace without `__name__` has no module.
"""

from __future__ import annotations

from typing import Any

__all__ = ["full_name", "module_of"]


def module_of(thing: Any) -> str:
    """The name of the module that a class or a function is of; empty where it says none."""
    name = getattr(thing, "__module__", "")
    return name if isinstance(name, str) else ""


def full_name(kind: type) -> str:
    """`package.module.Class`, for messages."""
    module = module_of(kind)
    return f"{module}.{kind.__qualname__}" if module else kind.__qualname__
