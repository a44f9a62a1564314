"""What `torch.export` sees in place of the user's module: tensors in, tensors out.

Everything else that a call is given and returns (Python values, structure) is kept beside the program. So no
restriction of export on argument or output types applies, and values that are baked are known. The wrapper also
re-enters the caller's autocast inside the trace, where its casts become nodes.
"""

from __future__ import annotations

import contextlib
import contextvars
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from ...errors import CaptureError, ChangedValueError, GivenChangeError
from ...naming import full_name
from .. import torch_private
from ..containers.flattening import PLAIN, CallShape, FilledCall, ResultWalk, flatten_result
from ..containers.given import FoundChange, GivenContainers
from ..containers.plain_objects import holds_tensor
from ..layouts import Layouts
from ..module_tensors import named_buffers, named_parameters
from ..result_order import ResultOrder, result_order
from ..rewrite.regions import is_write
from ..written_saved import saved_storages
from .aliases import alias_names, read_alias
from .assigned_tensors import AssignedTensors
from .hook_order import leaves_in_hook_order
from .patches import tensor_data
from .patches.autograd_inside import refuse_left_mode
from .patching import FORWARD, installed
from .tracing import TraceState

__all__ = ["CHANGED_WITH_GRADIENTS", "TraceAudit", "Wrapper"]

CHANGED_WITH_GRADIENTS = "where a gradient is wanted, no graph changes a list, a dict or an object that it is given"


class GivenNames(Protocol):
    """Gives the user's functions globals that they do not have."""

    def entered(self, function: types.FunctionType, names: frozenset[str]) -> None: ...
    def taken_back(self) -> None: ...


class BlockReads(Protocol):
    """What the run of a block has read."""

    def ended(self) -> bool:
        """Whether it can stand for the runs of others; called at its end."""

    def unchanged(self) -> bool:
        """Whether all of it is still as it was read."""

    def repeated(self, others: Mapping[int, Any]) -> None:
        """Another block was not run, which would have read these objects in place of those that the first one owns."""


class TraceAudit(Protocol):
    """Listens to the traced forward.

    Attributes:
        own_hooks: whether the module's own forward hooks belong to the call.
        given: hears of each function of the user's that begins, and of the names among globals and builtins that it
            reads; not of one that reads names made at run time. What it puts there it takes back before the audit looks
            at what the forward has changed.
    """

    own_hooks: bool
    given: GivenNames | None

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Around the module's own forward, until after `finished`."""

    def finished(self, results: Iterable[tuple[torch.nn.Module, str]], given: Sequence[Any]) -> None:
        """After it, with everything that the trace has replaced still in place; `results`: the attributes of modules
        that it has set before it looked at them; `given`: containers of the trace's, whose changes are results, too.
        """

    def has_changed(self) -> bool:
        """After it: whether the forward has changed anything but tensors."""

    def is_kept(self, value: Any) -> bool:
        """After it: whether a value is an object that was there before, which is returned as it is."""

    def returned(self, value: Any) -> Any:
        """After it: what gives an object of the result at each call, an instance of which the trace has; None where
        that is the value itself.

        Raises:
            CaptureError: there is no such thing.
        """

    def root(self, text: str, value: Any) -> None:
        """The forward has asked this object, which is called `text`."""

    def no_module(self, names: Iterable[str]) -> None:
        """The forward has found that there are no modules of these names to import."""

    def beside(self, owned: Mapping[int, Any]) -> contextlib.AbstractContextManager[BlockReads]:
        """Around the run of a block, which owns these objects, by their identities: hears what it reads."""

    def pause(self) -> None:
        """Torch itself runs from here on, until `resume`."""

    def resume(self) -> None: ...

    def region(self) -> contextlib.AbstractContextManager[None]:
        """Within it, what runs is what eager's backward will run again."""

    def follows(self, function: Any) -> bool:
        """Whether it hears of what a function reads: it is the user's, or one of torch's that reads what users set."""

    def replaced(self, function: Any, values: Sequence[Any]) -> None:
        """What the capture has put in the place of such a function is called with these values, and reads as it may."""

    def value_read(self, tensor: torch.Tensor | None) -> None:
        """A number was made of a tensor's value; of one that was computed, where `tensor` is None."""

    def knows(self, value: Any) -> bool:
        """Whether an object was met where the forward can have it from."""

    def hears(self, hook: Any) -> bool:
        """Whether it is heard of what a hook does that torch calls."""

    def caches(self) -> Iterable[Any]:
        """Functions with a cache (`functools.lru_cache`) that the forward can reach."""


class _Result:
    """What the traced forward returned; kept outside the wrapper, whose attributes export restores."""

    def __init__(self) -> None:
        self.outputs: list[tuple[str, Any]] = []
        self.spec: pytree.TreeSpec | None = None
        self.left_on_modules: list[tuple[torch.nn.Module, str, pytree.TreeSpec]] = []
        self.given_changes: list[tuple[FoundChange, pytree.TreeSpec]] = []
        self.changed: list[str] = []
        self.hook_order: list[str | int] = []
        self.histories: list[str | int] = []
        self.result_order = ResultOrder()
        self.recorded: list[str | int] | None = None
        self.saved: list[str | int] = []
        self.results = 0  # how many of the values are the result's; the others are left behind
        self.saved_left: list[int] = []


class Wrapper(torch.nn.Module):
    """The traced module: tensors in, tensors out.

    Args:
        module: the user's.
        leaves, shape: the call.
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
        shape: CallShape,
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
        self._shape = shape
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
        call = self._shape.filled(leaves)
        self._given = GivenContainers(call.given)
        self._state.side_outputs.begin()
        if self._state.repeats is not None:
            self._state.repeats.begin(self._state)
        self._assigned.begin()
        layouts = Layouts(t for _, t in self._named(leaves))
        with contextlib.ExitStack() as stack:
            for device, dtype in self.autocast:
                stack.enter_context(
                    torch.autocast(device, dtype=dtype, cache_enabled=torch.is_autocast_cache_enabled())
                )
            stack.enter_context(installed(self._state, FORWARD))
            context = contextvars.copy_context()  # what the forward sets in it is gone with it
            result, left, changes = self._run(context, leaves, call)
        values = self._collect(result, left, changes)
        with torch_private.outside_the_trace():
            self.result.hook_order = self._hook_order(values, leaves)
            self.result.result_order = result_order(values)
            saved = saved_storages(values)
            self.result.saved = [name for name, t in self._named(leaves) if torch_private.storage_of(t) in saved]
            self.result.saved_left = [i for i, t in self._left(values) if torch_private.storage_of(t) in saved]
        self.result.recorded = self._recorded(leaves)
        tensor_data.check_data_writes(values)
        layouts.check()
        return values

    def _run(
        self, context: contextvars.Context, leaves: list[Any], call: FilledCall
    ) -> tuple[Any, list[tuple[torch.nn.Module, str, Any]], list[FoundChange]]:
        """The forward's result, what it leaves on its modules, and what it changes of what it is given. Whatever else
        it changes is taken back, whether the trace goes on or ends here.
        """
        with self._audit.running() if self._audit is not None else contextlib.nullcontext():
            enabled = torch.is_grad_enabled()
            self._state.forward_runs, self._state.refusal = True, None
            try:
                # A part's own hooks run around its graph.
                own_hooks = self._audit is None or self._audit.own_hooks
                result = context.run(self.module if own_hooks else self.module.forward, *call.args, **call.kwargs)
            finally:
                self._state.forward_runs = False
            if self._state.refusal is not None:
                raise self._state.refusal
            refuse_left_mode(enabled)
            changes = list(self._given.changes())
            if changes and enabled and any(t.requires_grad for _, t in self._named(leaves)):
                raise GivenChangeError(CHANGED_WITH_GRADIENTS)
            with torch_private.outside_the_trace():  # the history of a view that was written is made when asked for
                self.result.histories = [name for name, t in self._named(leaves) if t.grad_fn is not None]
            buffers, self.result.changed = self._assigned.finish()
            left = self._state.side_outputs.finish()
            if self._audit is not None:
                context.run(self._audit.finished, [(module, name) for module, name, _ in left], call.given)
                if forgotten := ", ".join(self._state.side_outputs.forgotten()):
                    raise ChangedValueError(
                        f"the forward changes Python values, which a graph cannot repeat: the attributes {forgotten}"
                    )
        return result, left + buffers, changes

    @staticmethod
    def _flag(value: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.tensor(value, dtype=dtype, device=device)

    def _hook_order(self, values: list[Any], leaves: list[Any]) -> list[str | int]:
        """What the call has of leaves, in the order in which hooks hear of their gradients."""
        names = {id(tensor): name for name, tensor in self._named(leaves)}
        return [names[id(leaf)] for leaf in leaves_in_hook_order(values) if id(leaf) in names]

    def _recorded(self, leaves: list[Any]) -> list[str | int] | None:
        """What the call has of tensors that want a gradient, if the forward writes any: autograd may refuse that."""
        if not any(is_write(node) and _may_be_refused(node) for node in torch_private.running_tracer().graph.nodes):
            return None
        return [name for name, t in self._named(leaves) if torch.is_grad_enabled() and t.requires_grad]

    def _named(self, leaves: list[Any]) -> Iterator[tuple[str | int, torch.Tensor]]:
        """The call's tensors by their places, then the module's by their names."""
        yield from ((i, t) for i, t in enumerate(leaves) if isinstance(t, torch.Tensor) and i not in self._flags)
        yield from named_buffers(self.module)
        yield from named_parameters(self.module)

    def _collect(
        self, result: Any, left: list[tuple[torch.nn.Module, str, Any]], changes: list[FoundChange]
    ) -> list[Any]:
        walk = ResultWalk(self._is_kept)
        flat, self.result.spec = flatten_result(result, walk)
        self.result.results = sum(isinstance(leaf, (torch.Tensor, torch.SymInt)) for leaf in flat)
        self.result.left_on_modules = []
        for holder, name, value in left:
            leaves, spec = flatten_result(value, walk)
            flat = flat + leaves
            self.result.left_on_modules.append((holder, name, spec))
        self.result.given_changes = []
        for change in changes:
            leaves, spec = flatten_result(change.content, walk)
            flat = flat + leaves
            self.result.given_changes.append((change, spec))
        values: list[Any] = []
        self.result.outputs = []
        for leaf in flat:
            if isinstance(leaf, (torch.Tensor, torch.SymInt)):
                self.result.outputs.append(("value", len(values)))
                values.append(leaf)
            else:
                self.result.outputs.append(self._object(leaf, walk))
        return values

    def _left(self, values: list[Any]) -> Iterator[tuple[int, torch.Tensor]]:
        """Tensors without a history that the forward has made and leaves behind, by their places."""
        for i, value in enumerate(values):
            if i >= self.result.results and isinstance(value, torch.Tensor) and not value.requires_grad:
                yield i, value

    def _is_kept(self, value: Any) -> bool:
        """Whether a value was there before the forward."""
        return self._given.number(value) is not None or (self._audit is not None and self._audit.is_kept(value))

    def _object(self, leaf: Any, walk: ResultWalk) -> tuple[str, Any]:
        """Where a leaf of the result comes from that is no tensor."""
        if isinstance(leaf, PLAIN):
            return "constant", leaf
        if (container := self._given.number(leaf)) is not None:
            return "container", container
        if isinstance(leaf, torch.Size) and not all(type(size) is int for size in leaf):
            raise CaptureError("the module returns the shape of a tensor that is another at each call")
        given = next((i for i, one in enumerate(self._leaves) if one is leaf), None)
        if given is not None:
            return "given", given
        number = walk.number(leaf)
        if number is not None:
            return "again", number
        if (self._audit is None or not self._audit.is_kept(leaf)) and holds_tensor(leaf):
            name = full_name(type(leaf))
            advice = "register the class with torch.utils._pytree.register_pytree_node"
            raise CaptureError(f"the module returns an object of class {name} that holds tensors; {advice}")
        maker = None if self._audit is None else self._audit.returned(leaf)
        return ("constant", leaf) if maker is None else ("object", maker)


def _may_be_refused(write: torch.fx.Node) -> bool:
    """Whether autograd may refuse a write: not of whole numbers that nothing else reads, such as a count of calls."""
    written = write.args[0] if write.args else None
    value = written.meta.get("val") if isinstance(written, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.is_floating_point() or value.is_complex():
        return True
    return bool(write.users) or len(written.users) > 1  # type: ignore[union-attr]
