"""Autocast made explicit: the casts that torch inserts while dispatching become nodes.

A traced autocast region has the right result dtypes but no casts. For an operator that autocast handles, the result's
dtype says which way its operands were cast: to the region's dtype (matrix products), or to float32 (losses, softmax on
CUDA). A composite operator without a kernel of its own may reach such an operator inside (`einsum`); its operands are
cast in the same way, but for normalization, which takes float32 weights to operands of any type as it is.

As in torch, the cast of a parameter is made once per region. Which region applies is the business of regions.py.

Operators that only a trace knows (recurrent layers, CTC) are cast while they are traced: `recurrent`, `in_float32`.
Python that is run later on, a custom Function's, is run under the autocast that it was called under: `AutocastState`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils._pytree import tree_map_only

__all__ = ["AutocastRegion", "AutocastState", "in_float32", "recurrent"]

_DEVICES = ("cpu", "cuda")
_TO = torch.ops.aten._to_copy.default
_MIXED = frozenset(f"aten::{name}" for name in ("batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"))


@functools.cache
def _handled(operator: str, device: str) -> bool:
    """Whether autocast has a rule for the operator on this device type."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator, f"Autocast{device.upper()}")


@functools.cache
def _composite(operator: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator, "CompositeImplicitAutograd")


@dataclasses.dataclass(frozen=True)
class AutocastState:
    """Which autocast is on.

    Attributes:
        settings: of each device type: its name, whether autocast is on, and the dtype.
    """

    settings: tuple[tuple[str, bool, torch.dtype], ...]

    @classmethod
    def now(cls) -> AutocastState:
        """That of the caller."""
        return cls(tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES))

    @classmethod
    def inside(cls, entered: Iterable[Sequence[Any]]) -> AutocastState:
        """That inside of autocasts, outermost first: device type, dtype, whether it is on, and more of each."""
        settings = {d: (d, False, torch.get_autocast_dtype(d)) for d in _DEVICES}
        settings |= {device: (device, enabled, dtype) for device, dtype, enabled, *_ in entered if device in settings}
        return cls(tuple(settings.values()))

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Autocast as it was; nothing is recorded of it in a trace, and no copy of a weight is kept."""
        outer, cached = AutocastState.now(), torch.is_autocast_cache_enabled()
        self.set()
        torch.set_autocast_cache_enabled(False)
        try:
            yield
        finally:
            torch.set_autocast_cache_enabled(cached)
            outer.set()

    def set(self) -> None:
        """Turns autocast on and off as it is here."""
        for device, enabled, dtype in self.settings:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)


def in_float32(x: torch.Tensor) -> torch.Tensor:
    """`x` as autocast hands it to an operator that it runs in float32."""
    on = torch.is_autocast_enabled(x.device.type) and x.dtype in (torch.bfloat16, torch.float16)
    return x.float() if on else x


def _wider(one: torch.dtype, other: torch.dtype) -> torch.dtype:
    """`torch.promote_types` of two that autocast knows; that of torch would become a part of the trace."""
    return one if one == other else torch.float32


def recurrent(name: str, run: Callable[..., Any], x: torch.Tensor, states: Any, params: Any) -> Any:
    """Results of `run(x, states, params)`, a recurrent layer, with the dtype that they have in eager.

    Under autocast operands may differ in their dtypes. They are widened here, and the results rounded once; eager
    rounds between the steps, in the way of whichever library it finds.
    """
    device = x.device.type
    if not torch.is_autocast_enabled(device):
        return run(x, states, params)
    results = run(*tree_map_only(torch.Tensor, in_float32, (x, states, params)))
    dtypes = [torch.get_autocast_dtype(device)] * len(results)
    if device == "cpu" and name == "gru":  # its steps add to the state what they multiply, which widens to the state
        dtypes = [_wider(dtypes[0], states.dtype)] * len(results)
    elif device == "cpu" and name == "lstm" and states[0].shape[-1] != states[1].shape[-1]:
        dtypes[2] = _wider(dtypes[2], states[1].dtype)  # so do those of cells with a projection
    return tuple(y.to(dtype) for y, dtype in zip(results, dtypes, strict=True))


class AutocastRegion:
    """One region: `cast` is called on each of its nodes, in order."""

    def __init__(self, device: str, dtype: torch.dtype | None, enabled: bool) -> None:
        self._device = device
        self._dtype = dtype or torch.get_autocast_dtype(device)
        self._enabled = enabled
        self._parameters: dict[tuple[Node, torch.dtype], Node] = {}

    def cast(self, graph: Graph, node: Node) -> None:
        """Inserts the casts in front of `node`, which has been copied into `graph`."""
        if not self._enabled or not isinstance(node.target, torch._ops.OpOverload):
            return
        wanted = self._result_dtype(node.meta.get("val"))
        operands = [n for n in node.all_input_nodes if self._castable(n)]
        differing = [n for n in operands if n.meta["val"].dtype != wanted]
        if wanted is None or not differing:
            return
        name = node.target.name()
        takes_both = name.partition(".")[0] in _MIXED and len(differing) < len(operands)
        if not _handled(name, self._device) and (takes_both or not _composite(name)):
            return
        with graph.inserting_before(node):
            for operand in differing:
                node.replace_input_with(operand, self._converted(graph, node, operand, wanted))

    def _result_dtype(self, result: Any) -> torch.dtype | None:
        first = result[0] if isinstance(result, (list, tuple)) and result else result
        dtype = first.dtype if isinstance(first, torch.Tensor) else None
        if dtype == torch.complex64:  # a Fourier transform's
            return torch.float32
        return dtype if dtype in (self._dtype, torch.float32) else None

    def _castable(self, node: Node) -> bool:
        fake = node.meta.get("val")
        return isinstance(fake, torch.Tensor) and fake.dtype in (self._dtype, torch.float32)

    def _converted(self, graph: Graph, user: Node, operand: Node, dtype: torch.dtype) -> Node:
        found = self._parameters.get((operand, dtype))
        if found is not None:
            return found
        cast = graph.call_function(_TO, (operand,), {"dtype": dtype})
        fake = operand.meta["val"]
        with torch.no_grad():
            cast.meta = {**user.meta, "val": fake.to(dtype)}
        cast.meta.pop("unbacked_bindings", None)
        if operand.op == "placeholder" and fake.requires_grad:
            self._parameters[operand, dtype] = cast
        return cast
