"""What `torch.export` sees in place of the user's module: tensors in, tensors out.

Everything else that a call is given and returns (Python values, structure) is kept beside the program. So no
restriction of export on argument or output types applies, and values that are baked are known. The wrapper also
re-enters the caller's autocast inside the trace, where its casts become nodes.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from ...errors import CaptureError
from .aliases import alias_names, read_alias
from .assigned_tensors import AssignedTensors
from .flattening import PLAIN, flatten_result, holds_tensor
from .hook_order import leaves_in_hook_order
from .patches import tensor_data
from .patches.autograd_inside import refuse_left_mode
from .patching import FORWARD, installed
from .tracing import TraceState

__all__ = ["TraceAudit", "Wrapper"]


class TraceAudit(Protocol):
    """Listens to the traced forward."""

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Around the module's own forward."""

    def finished(self, results: Iterable[tuple[torch.nn.Module, str]]) -> None:
        """After it, with everything that the trace has replaced still in place; `results`: the attributes of modules
        that it has set before it looked at them.
        """

    def pause(self) -> None:
        """Torch itself runs from here on, until `resume`."""

    def resume(self) -> None: ...

    def value_read(self, tensor: torch.Tensor | None) -> None:
        """A number was made of a tensor's value; of one that was computed, where `tensor` is None."""


class _Result:
    """What the traced forward returned; kept outside the wrapper, whose attributes export restores."""

    def __init__(self) -> None:
        self.outputs: list[tuple[str, Any]] = []
        self.spec: pytree.TreeSpec | None = None
        self.left_on_modules: list[tuple[torch.nn.Module, str, pytree.TreeSpec]] = []
        self.changed: list[str] = []
        self.hook_order: list[str | int] = []
        self.histories: list[str | int] = []


class Wrapper(torch.nn.Module):
    """The traced module: tensors in, tensors out.

    Args:
        module: the user's.
        leaves, spec: the call.
        state: the capture.
        flags: by leaf index, the values of tensors that shall be constants.
        audit: hears of the forward.

    Attributes:
        aliases: by leaf index, which other tensor of the call or the module a leaf is.
        autocast: (device type, dtype) of the caller's autocasts.
        result: what the forward returned.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        leaves: list[Any],
        spec: pytree.TreeSpec,
        state: TraceState,
        flags: Mapping[int, Any],
        audit: TraceAudit | None,
    ) -> None:
        super().__init__()
        self._audit = state.audit = audit
        self.module = module
        self._state = state
        self._assigned = AssignedTensors(module)
        self._leaves = leaves
        self._flags = {i: (value, leaves[i].dtype, leaves[i].device) for i, value in flags.items()}
        self._spec = spec
        self.aliases = alias_names(leaves, module)
        self.autocast = [
            (device, torch.get_autocast_dtype(device))
            for device in ("cpu", "cuda")
            if torch.is_autocast_enabled(device)
        ]
        self.result = _Result()
        self.training = module.training

    def forward(self, *tensors: torch.Tensor) -> list[Any]:
        if self._state.branches is not None:
            self._state.branches.begin(tensors)
        given = iter(tensors)
        leaves = [
            self._flag(*self._flags[i]) if i in self._flags else next(given) if isinstance(leaf, torch.Tensor) else leaf
            for i, leaf in enumerate(self._leaves)
        ]
        for i, what in self.aliases.items():
            if i not in self._flags:
                leaves[i] = read_alias(self.module, leaves, what)
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        self._state.side_outputs.begin()
        self._assigned.begin()
        with contextlib.ExitStack() as stack:
            for device, dtype in self.autocast:
                stack.enter_context(
                    torch.autocast(device, dtype=dtype, cache_enabled=torch.is_autocast_cache_enabled())
                )
            stack.enter_context(installed(self._state, FORWARD))
            if self._audit is not None:
                stack.enter_context(self._audit.running())
            enabled = torch.is_grad_enabled()
            context = contextvars.copy_context()  # what the forward sets in it is gone with it
            result = context.run(self.module, *args, **kwargs)
            refuse_left_mode(enabled)
        self.result.histories = [name for name, t in self._named(leaves) if t.grad_fn is not None]
        self.result.changed = self._assigned.finish()
        left = self._state.side_outputs.finish()
        if self._audit is not None:
            context.run(self._audit.finished, [(module, name) for module, name, _ in left])
        _refuse_changed_containers(leaves, self._spec, args, kwargs)
        values = self._collect(result, left)
        self.result.hook_order = self._hook_order(values, leaves)
        tensor_data.check_data_writes(values)
        return values

    @staticmethod
    def _flag(value: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.tensor(value, dtype=dtype, device=device)

    def _hook_order(self, values: list[Any], leaves: list[Any]) -> list[str | int]:
        """What the call has of leaves, in the order in which hooks hear of their gradients."""
        names = {id(tensor): name for name, tensor in self._named(leaves)}
        return [names[id(leaf)] for leaf in leaves_in_hook_order(values) if id(leaf) in names]

    def _named(self, leaves: list[Any]) -> Iterator[tuple[str | int, torch.Tensor]]:
        """The call's tensors by their places, then the module's by their names."""
        yield from ((i, t) for i, t in enumerate(leaves) if isinstance(t, torch.Tensor) and i not in self._flags)
        yield from self.module.named_buffers()
        yield from self.module.named_parameters()

    def _collect(self, result: Any, left: list[tuple[torch.nn.Module, str, Any]]) -> list[Any]:
        flat, self.result.spec = flatten_result(result)
        self.result.left_on_modules = []
        for holder, name, value in left:
            leaves, spec = flatten_result(value)
            flat = flat + leaves
            self.result.left_on_modules.append((holder, name, spec))
        values: list[Any] = []
        self.result.outputs = []
        for leaf in flat:
            if isinstance(leaf, (torch.Tensor, torch.SymInt)):
                self.result.outputs.append(("value", len(values)))
                values.append(leaf)
            elif isinstance(leaf, PLAIN) or not holds_tensor(leaf):
                self.result.outputs.append(("constant", leaf))
            else:
                name = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
                advice = "register the class with torch.utils._pytree.register_pytree_node"
                raise CaptureError(f"the module returns an object of class {name} that holds tensors; {advice}")
        return values


def _refuse_changed_containers(
    leaves: list[Any], spec: pytree.TreeSpec, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """A graph writes into tensors that it is given, not into the lists, dicts and objects around them."""
    now, structure = pytree.tree_flatten((args, kwargs))
    if structure != spec or any(a is not b and _differ(a, b) for a, b in zip(now, leaves, strict=True)):
        raise CaptureError("the forward changes a list, a dict or an object that it is given, which a graph cannot do")


def _differ(now: Any, before: Any) -> bool:
    return isinstance(now, torch.Tensor) or isinstance(before, torch.Tensor) or bool(now != before)
