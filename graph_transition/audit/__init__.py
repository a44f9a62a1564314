"""What happens in a forward while it is traced: what runs, what it reads, what it changes."""

from .audit import Audit
from .changes import Effect
from .reads import Reads

__all__ = ["Audit", "Effect", "Reads"]
