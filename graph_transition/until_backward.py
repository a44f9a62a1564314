"""What must be the same when a step's backward runs as it was after its forward, where eager looks again.

- A region of `torch.utils.checkpoint` runs once more in eager's backward, and reads the program's values and tensors
  anew. The engine computes it again from the graph: with others its gradient would be another one than eager's.
- A tensor that the forward writes, or makes and leaves behind, and computes with: autograd has saved it, and refuses a
  backward when it was written again. (Of tensors that are only read, the engine itself knows:
  csrc/runtime/training_agent.cpp.)

Only calls of such graphs pay for it. Not here: what holds for a whole graph (captured_graph.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import torch

from .. import _C
from ..capture import Captured
from ..errors import ORTModuleError
from .conditions import Check

__all__ = ["UntilBackward"]


class UntilBackward:
    """Looks at the steps of one session.

    Args:
        captured: the graph.
        places: of the call's tensors among its leaves, by graph input.
        same: whether the native patterns of steady calls tell that nothing has changed: the quick answer.
        refused: called with the reason when eager's gradient is another one than the engine's.
    """

    def __init__(
        self,
        captured: Captured,
        places: Mapping[str, int],
        same: Callable[[], bool],
        refused: Callable[[str], None],
    ) -> None:
        self._roots = captured.repeats
        self._written = [places.get(name, name) for name in captured.saved_writes]
        self._left = captured.saved_left
        read = read_in_regions(captured.model)
        self._read = [places.get(name, name) for name in read]
        self.names = {*captured.saved_writes, *read}  # of the graph inputs whose tensors are looked at
        check = Check()
        check.refusal(self._roots)
        self._modules = [one for _, one in check.bound if isinstance(one, torch.nn.Module)]
        self._same, self._refused = same, refused

    @staticmethod
    def is_needed(captured: Captured) -> bool:
        """Whether there is anything to look at."""
        return bool(captured.repeats or captured.saved_writes or captured.saved_left or read_in_regions(captured.model))

    def begin(
        self, outputs: Mapping[str, torch.Tensor | None], leaves: Sequence[Any], own: Mapping[str, torch.Tensor]
    ) -> None:
        """A forward has run, whose backward looks again.

        Args:
            outputs: the session's, by their names.
            leaves: the call's.
            own: the module's tensors, by graph input.
        """

        def found(places: Sequence[str | int]) -> list[torch.Tensor]:
            return [leaves[one] if isinstance(one, int) else own[one] for one in places]

        saved = found(self._written) + [t for name in self._left if (t := outputs.get(name)) is not None]
        versions = [(tensor, tensor._version, _memory_of(tensor)) for tensor in saved]
        modes = [one.training for one in self._modules]
        read = [(tensor, tensor._version) for tensor in found(self._read)]

        def look() -> None:
            self._look_at_writes(versions)
            self._look_at_values(modes, read)

        _C.before_backward(list(outputs.values()), look)

    def _look_at_writes(self, versions: Sequence[tuple[torch.Tensor, int, tuple[Any, ...]]]) -> None:
        for tensor, version, memory in versions:
            if _memory_of(tensor) != memory:
                raise ORTModuleError(
                    "one of the variables needed for gradient computation was given other memory (`.data = `) between "
                    f"forward and backward: [{tensor.type()} {list(tensor.shape)}]. Set it before the forward or after "
                    "the backward, or call the wrapped module itself (model.module)"
                )
            if tensor._version != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; expected version "
                    f"{version} instead."
                )

    def _look_at_values(self, modes: Sequence[bool], read: Sequence[tuple[torch.Tensor, int]]) -> None:
        why = None
        written = next((tensor for tensor, version in read if tensor._version != version), None)
        if written is not None:
            why = f"a tensor was written: {written.type()} {list(written.shape)}"
        elif modes != [one.training for one in self._modules]:
            why = "the module's mode changed"
        elif self._roots and not self._same() and (refusal := Check().refusal(self._roots)) is not None:
            why = refusal.reason
        if why is not None:
            self._refused("backward computes a region of torch.utils.checkpoint again, with another value")
            raise ORTModuleError(
                f"between the forward and its backward, {why}; PyTorch would compute the regions of "
                "torch.utils.checkpoint again with that, a graph cannot. Change it before the forward or after the "
                "backward. Later calls of this kind run in PyTorch"
            )


def read_in_regions(model: onnx.ModelProto) -> list[str]:
    """The graph inputs that regions of `torch.utils.checkpoint` read."""
    inputs = {one.name for one in model.graph.input}
    regions = (node for node in model.graph.node if any(one.key == "recompute" for one in node.metadata_props))
    return [*dict.fromkeys(name for node in regions for name in node.input if name in inputs)]


def _memory_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What `.data = ` changes of a tensor."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
