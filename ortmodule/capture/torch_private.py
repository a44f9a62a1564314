"""What of torch is private or differs between its versions and is asked during a capture, in one place.

Not here: what a capture replaces in torch (trace/patches).
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.utils.checkpoint
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from .. import _C

__all__ = [
    "SILENCED",
    "casts_once",
    "defined_symbols",
    "export_guards",
    "forget_last_trace",
    "is_batched",
    "is_undecided",
    "may_be_written",
    "modes_now",
    "outside_the_trace",
    "recompute_region",
    "release_example_inputs",
    "running_tracer",
    "saves_for_checkpoint",
    "storage_of",
    "traced_constant",
    "traced_node",
    "value_of",
    "without_left_hooks",
    "without_marks",
]

# Loggers that a capture switches off, for themselves and those below them, as long as it runs (trace/patches/costs).
SILENCED = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")


@contextlib.contextmanager
def without_marks(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Within it, an export may note on example tensors which of their sizes are symbolic; afterwards it has not."""
    before = [set(vars(tensor)) for tensor in tensors]
    try:
        yield
    finally:
        for tensor, names in zip(tensors, before, strict=True):
            for name in vars(tensor).keys() - names:
                delattr(tensor, name)


@contextlib.contextmanager
def without_left_hooks() -> Iterator[None]:
    """Within it, an export may watch which buffers modules are given; afterwards it does not.

    An export that fails leaves its hook, which is one for all modules, and holds the wrapper and its fake tensors.
    """
    hooks = torch.nn.modules.module._global_buffer_registration_hooks
    before = set(hooks)
    try:
        yield
    finally:
        for key in [key for key in hooks if key not in before and hooks[key].__module__.startswith("torch.")]:
            hooks.pop(key, None)


def recompute_region(meta: dict[str, Any]) -> int | None:
    """The checkpoint region that a traced node belongs to, or None."""
    return (meta.get("custom") or {}).get("recompute")


def saves_for_checkpoint() -> bool:
    """Whether what is saved for backward on this thread is dropped, and made anew by a second run of the forward."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True) if torch.is_grad_enabled() else None
    return hooks is not None and getattr(hooks[0], "__globals__", None) is vars(torch.utils.checkpoint)


def storage_of(fake: torch.Tensor) -> int:
    """A number shared by exactly the fake tensors of one trace that share memory."""
    return _C.memory_of(fake)


def is_batched(value: Any) -> bool:
    """Whether a value of a trace is a tensor inside `torch.vmap`, with an axis that it does not show."""
    return isinstance(value, torch.Tensor) and torch._C._functorch.is_batchedtensor(value)


def traced_node(traced: torch.Tensor) -> torch.fx.Node | None:
    """The node of the running trace that made a tensor."""
    mode = proxy_tensor.get_proxy_mode()
    found: Any = mode and proxy_tensor.get_proxy_slot(traced, mode.tracer, None)
    return found.proxy.node if found else None


def is_constant_in_trace(tracer: Any, traced: Any) -> bool:
    """Whether a trace knows the value of a tensor: of a small one that is made of constants alone."""
    if not isinstance(traced, torch.Tensor):
        return False
    found: Any = proxy_tensor.get_proxy_slot(traced, tracer, None)
    return found is not None and found.constant is not None


def running_tracer() -> Any:
    """What records the running trace: `graph` is what it has recorded, `root` holds the constants."""
    return getattr(proxy_tensor.get_proxy_mode(), "tracer", None)


def traced_constant(tracer: Any, node: torch.fx.Node) -> torch.Tensor | None:
    """The tensor that a node of a tracer's graph stands for, if it is one that was there before."""
    found = getattr(tracer.root, str(node.target), None) if node.op == "get_attr" else None
    return found if isinstance(found, torch.Tensor) and not isinstance(found, FakeTensor) else None


def defined_symbols(node: torch.fx.Node) -> dict[Any, Callable[[Any], Any]]:
    """The symbols of data-dependent numbers that a node brings into its trace, and how to find each in its value."""
    return {
        symbol: functools.partial(pytree.key_get, kp=path)
        for symbol, path in (node.meta.get("unbacked_bindings") or {}).items()
    }


def value_of(expression: Any, numbers: Mapping[Any, Any]) -> Any:
    """An expression over sizes and numbers as Python computes it, given the value of each of its symbols."""
    return sympy_interp(PythonReferenceAnalysis, dict(numbers), expression)


@contextlib.contextmanager
def outside_the_trace() -> Iterator[None]:
    """Within it real tensors are computed, and no node is made."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


def casts_once() -> bool:
    """Whether autocast keeps what it has cast of a leaf for who reads that again."""
    return torch.is_autocast_cache_enabled() and any(map(torch.is_autocast_enabled, ("cpu", "cuda")))


def modes_now() -> list[int]:
    """The modes before torch's functions and operators on this thread, and what is called for saved tensors."""
    modes = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return [*map(id, modes), *map(id, hooks or ())]


def may_be_written(tensor: torch.Tensor) -> bool:
    """Whether autograd would let a tensor be written in place: not one of several views that an operator has given."""
    autograd: Any = torch._C._autograd
    return not tensor._is_view() or autograd._get_creation_meta(tensor) == autograd.CreationMeta.DEFAULT


def is_undecided(error: BaseException) -> bool:
    """Whether a trace ended at a branch whose way only the data say."""
    return isinstance(error, GuardOnDataDependentSymNode)


def export_guards(program: torch.export.ExportedProgram) -> list[str]:
    """The conditions on the inputs under which the exported program holds, as Python expressions over `L`."""
    return list(getattr(program, "_guards_code", None) or [])


def release_example_inputs(program: torch.export.ExportedProgram) -> None:
    """Drops the reference to the tensors of the example call, which would stay in memory otherwise."""
    program._example_inputs = None


def forget_last_trace() -> None:
    """Empties the table by which torch's export finds the proxies of fake tensors, which would last until the next, and
    tracers that calls of other threads have gone through, and hold until they return.
    """
    getattr(proxy_tensor, "_FAKE_TENSOR_ID_TO_PROXY_MAP_FOR_EXPORT", {}).clear()
    for reference in _passed_tracers:
        if (tracer := reference()) is not None:
            vars(tracer).clear()
            vars(tracer).update(_autowrap_function_ids=set(), call_module=called_plainly, getattr=read_plainly)
    _passed_tracers.clear()


_passed_tracers: list[weakref.ref[Any]] = []


def pass_through(tracer: Any) -> None:
    """Notes that a call of another thread has got into what `tracer` has put in place of `nn.Module.__call__`."""
    if all(reference() is not tracer for reference in _passed_tracers):
        _passed_tracers.append(weakref.ref(tracer))


def called_plainly(module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
    """A tracer's `call_module`, for a call that is not traced."""
    return forward(*args, **kwargs)


def read_plainly(name: str, value: Any, cache: Any) -> Any:
    """A tracer's `getattr`, for the same."""
    return value
