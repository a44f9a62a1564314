"""Where what a call gives back, and what it leaves on its modules and on what it is given, comes from.

Not here: how that is found out (product.py), how it is put together at each call (graph_transition/info.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .containers.plain_objects import set_attributes
from .result_views import ViewStep

__all__ = ["GivenChange", "OutputRef", "SideOutput"]


@dataclasses.dataclass(frozen=True)
class OutputRef:
    """Where one leaf of the module's result comes from.

    Attributes:
        kind: "tensor": the graph output `name`; "size": the same, a 0-d int64 tensor that stands for a Python int;
            "input": the caller's own tensor (`flat_index` among the call's leaves, or the parameter or buffer `name`),
            to be returned as the very same object; "constant": `value`; "object": what `value` gives at each call
            (TraceAudit.returned); "again": the container number `flat_index` (ResultWalk), another time; "container": a
            list, dict or object of the caller's own, number `flat_index` of those that are no tuples.
        name: graph output, or the FQN of a parameter or buffer.
        flat_index: index among the flat leaves of (args, kwargs).
        value: a Python value.
        view: of a "tensor" that is a view of the caller's tensors or of another result: of which one, and the steps.
    """

    kind: str
    name: str | None = None
    flat_index: int | None = None
    value: Any = None
    view: tuple[OutputRef, Sequence[ViewStep]] | None = None


@dataclasses.dataclass(frozen=True)
class SideOutput:
    """What the forward leaves on a module at each call: `holder.name`, with this structure and these leaves."""

    holder: torch.nn.Module
    name: str
    spec: pytree.TreeSpec
    leaves: list[OutputRef]

    @property
    def table(self) -> dict[str, Any]:
        """Where the holder has it: among its buffers or its plain attributes."""
        return self.holder._buffers if self.name in self.holder._buffers else vars(self.holder)


@dataclasses.dataclass(frozen=True)
class GivenChange:
    """What the forward changes of a container that it is given (containers/given.py has the attributes).

    Attributes:
        number, removed: see there.
        spec, leaves: of what the container holds anew.
    """

    number: int
    removed: tuple[Hashable, ...]
    spec: pytree.TreeSpec
    leaves: list[OutputRef]

    def make(self, container: Any, content: Any) -> None:
        """Changes the caller's container; `content` is what it holds anew."""
        if isinstance(content, list):
            if isinstance(container, list):
                container[:] = content
            else:  # a deque
                container.clear()
                container.extend(content)
            return
        if not isinstance(container, dict):
            set_attributes(container, content, self.removed)  # type: ignore[arg-type]
            return
        for key in self.removed:
            del container[key]
        container.update(content)
