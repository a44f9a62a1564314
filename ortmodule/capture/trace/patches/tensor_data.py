"""`.data` during a trace: reading a traced tensor's detaches, and setting it writes its values. A real parameter that
no traced module holds is a constant to torch's export, which takes its `.data`; here it is known whose that is.

Not here: other writes of a forward (rewrite/writes.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ....errors import CaptureError
from ...source_lines import current_source_line
from ...torch_private import running_tracer, storage_of, traced_node
from ..patching import Around, Patch
from ..tracing import TraceState

__all__ = ["PATCHES", "check_data_writes", "restore_parameters"]

# Values that a traced forward has set `.data` to: their version then, readers of the old memory, and the line.
_data_writes: list[tuple[torch.Tensor, int, dict[torch.fx.Node, int], str | None]] = []
# Parameters whose `.data` was taken, by the identity of that.
_data_of: dict[int, tuple[torch.Tensor, torch.nn.Parameter]] = {}
_OUTSIDE_DATA = "`.data` of a tensor outside of the module is set inside forward; a captured graph cannot do that"
_SHARED_DATA = "`.data` of a tensor is set to another's memory inside forward; a captured graph cannot honour it"


@contextlib.contextmanager
def _notes(state: TraceState) -> Iterator[None]:
    _data_writes.clear()
    _data_of.clear()
    try:
        yield
    finally:
        _data_writes.clear()
        _data_of.clear()


def _data(descriptor: Any, state: TraceState) -> property:
    """`.data` of a traced tensor is a `detach`, and setting it to a tensor of the same kind a write of its values.

    Setting it shares the new tensor's memory. That cannot be told from a copy of its values where nothing else is in
    that memory and nothing is written there afterwards; elsewhere it is a CaptureError.
    """

    def get(self: torch.Tensor) -> torch.Tensor:
        if isinstance(self, FakeTensor):
            return self.detach()
        data = descriptor.__get__(self)
        if isinstance(self, torch.nn.Parameter):
            _data_of[id(data)] = (data, self)
        return data

    def put(self: torch.Tensor, value: torch.Tensor) -> None:
        line = current_source_line()
        if not isinstance(self, FakeTensor):  # which would keep it, also where the trace is not used
            raise CaptureError(_OUTSIDE_DATA, line)
        alike = (self.shape, self.dtype, self.device) == (value.shape, value.dtype, value.device)
        if not alike or not isinstance(value, FakeTensor) or not _has_own_memory(value):
            raise CaptureError(_SHARED_DATA, line)
        _data_writes.append((value, _version(value), _readers_of_others(self), line))
        with torch.no_grad():
            self.copy_(value)

    return property(get, put)


def _version(tensor: torch.Tensor) -> int:
    """How often the tensor was written, past the property that refuses the forward's own reads of it."""
    return int(torch._C.TensorBase._version.__get__(tensor))  # type: ignore[attr-defined]


def restore_parameters(constants: dict[str, Any]) -> None:
    """Puts the parameters themselves in place of their `.data`: they are trained like any other."""
    for name, value in constants.items():
        known = _data_of.get(id(value))
        if known is not None and known[0] is value:
            constants[name] = known[1]


def check_data_writes(results: Sequence[Any]) -> None:
    """Called at the end of a traced forward: raises CaptureError where memory that a tensor's `.data` was, or has
    become, is used under another name afterwards.

    Args:
        results: what the forward returns.
    """
    returned = {traced_node(one) for one in results if isinstance(one, FakeTensor)}
    for value, version, readers, line in _data_writes:
        used = any(len(node.users) != count or node in returned for node, count in readers.items())
        if _version(value) != version or used:
            raise CaptureError(_SHARED_DATA, line)


def _readers_of_others(tensor: torch.Tensor) -> dict[torch.fx.Node, int]:
    """The nodes that are other names of a traced tensor's memory, and how often each is read so far."""
    own = traced_node(tensor)
    found = {}
    for node in running_tracer().graph.nodes:
        value = node.meta.get("val")
        if node is not own and isinstance(value, torch.Tensor) and storage_of(value) == storage_of(tensor):
            found[node] = len(node.users)
    return found


def _has_own_memory(value: torch.Tensor) -> bool:
    """Whether a traced tensor was computed into memory of its own: no view, no input, no conversion to itself."""
    node = traced_node(value)
    if node is None or node.op != "call_function":
        return False
    given = [one.meta.get("val") for one in node.all_input_nodes]
    return storage_of(value) not in [storage_of(one) for one in given if isinstance(one, torch.Tensor)]


PATCHES = (Around(_notes), Patch(torch.Tensor, "data", _data))
