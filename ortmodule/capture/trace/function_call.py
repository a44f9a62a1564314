"""A call of a user's `autograd.Function` in a trace: opaque there, `cls.apply` when it is executed.

Executed, the call runs under autograd, so that the user's own backward gives the gradients. What the trace must know
is learned from one run of the user's forward: the results' shapes, which arguments it writes into, and which of its
results are those arguments. The graph's node writes nothing: it computes on copies, and the new values become writes
of the traced program, where they are resolved as every other write (regions.py).

A forward that needs real numbers (numpy, `.item()`) is run on made-up ones (shape_probes.py).

Not here: the operator itself (library.py), and how calls are intercepted (patches/autograd_function.py).
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import CaptureError, ORTModuleError
from ..autocast import AutocastState
from ..containers.plain_objects import holds_tensor
from .leaks import kept_reason
from .shape_probes import UnknownSizeError, results_by_trial

__all__ = ["FunctionCall", "call_of"]

_fids = itertools.count()
_calls: weakref.WeakValueDictionary[int, FunctionCall] = weakref.WeakValueDictionary()


class _Slot:
    """Marks, among the flat arguments of a call, the place of a tensor or of a symbolic size."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


_TENSOR, _SIZE = _Slot("tensor"), _Slot("size")


class _TraceContext:
    """The `ctx` given to a user's forward when only what it does is to be learned."""

    def __init__(self, arguments: int) -> None:
        self.needs_input_grad = (True,) * arguments
        self.saved_tensors: tuple[Any, ...] = ()
        self.dirty: tuple[Any, ...] = ()
        self.not_differentiable: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        pass

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.not_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        pass

    def mark_dirty(self, *tensors: Any) -> None:
        self.dirty = tensors


class _Writes(TorchDispatchMode):
    """Notes the memory that operators write into."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.is_write and isinstance(value, torch.Tensor):
                self.memory.add(_memory(value))
        return func(*args, **(kwargs or {}))


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _is_whole(value: Any) -> bool:
    """Whether a container is one object for the function: of those that the trace makes, each call makes others."""
    return type(value) in (list, dict) and not holds_tensor(value)


class FunctionCall:
    """One traced call of a custom `autograd.Function`: the class and its arguments that are not tensors.

    `fid` names it in the graph. The registry holds it weakly, so it lives as long as the capture that owns it.

    Attributes:
        cls: the class.
        tensors, sizes: the tensors and symbolic sizes among the arguments, in order.
        returned: argument tensor -> result tensor, by position, for those marked dirty and returned.
        written: positions of the other argument tensors that the forward writes into; their new values follow the
            results.
        saved, saved_results: positions of the argument and result tensors that it saves and does not write itself.
    """

    def __init__(
        self, cls: type[torch.autograd.Function], args: tuple[Any, ...], kwargs: dict[str, Any],
        was_there: Callable[[Any], bool],
    ) -> None:  # fmt: skip
        leaves, self._spec = pytree.tree_flatten((args, kwargs), lambda v: _is_whole(v) and was_there(v))
        self.cls, self._was_there = cls, was_there
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self.sizes = [leaf for leaf in leaves if isinstance(leaf, torch.SymInt)]
        self._leaves = [
            _TENSOR if isinstance(leaf, torch.Tensor) else _SIZE if isinstance(leaf, torch.SymInt) else leaf
            for leaf in leaves
        ]
        self._results: list[Any] = []
        self._results_spec: pytree.TreeSpec | None = None
        self.returned: dict[int, int] = {}
        self.written: list[int] = []
        self.saved: list[int] = []
        self.saved_results: list[int] = []
        self._constant: list[int] = []  # positions of the results marked as not differentiable
        self._autocast = AutocastState.now()
        self.fid = next(_fids)
        _calls[self.fid] = self

    def arguments(self, xs: Sequence[torch.Tensor], sizes: Sequence[int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The `(args, kwargs)` of `cls.apply` for these tensors and sizes."""
        x, s = iter(xs), iter(sizes)
        leaves = [next(x) if leaf is _TENSOR else next(s) if leaf is _SIZE else leaf for leaf in self._leaves]
        return pytree.tree_unflatten(leaves, self._spec)

    # -- while tracing ----------------------------------------------------------------------------------------------

    def infer(self, xs: Sequence[torch.Tensor], sizes: Sequence[Any]) -> list[torch.Tensor]:
        """The results for fake tensors, and the new values of `written`; keeps how the results are structured.

        Raises:
            CaptureError: the user's forward can be run neither on fake tensors nor on made-up ones; or it may read
                tensors of the trace that are no arguments.
        """
        methods = [value for kind in self.cls.__mro__[:-1] for value in vars(kind).values()]
        functions = (getattr(value, "__func__", value) for value in methods)
        kept: list[Any] = [leaf for leaf in self._leaves if not isinstance(leaf, _Slot)]
        kept += (f for f in functions if isinstance(f, types.FunctionType))
        if (why := kept_reason(kept, self._was_there)) is not None:
            raise CaptureError(f"{self.cls.__name__} {why}")
        aliases = [x.view_as(x) for x in xs]  # the forward may write into them; the traced program does so later
        try:
            with _own_symbols(xs):
                results = self._learn(aliases, sizes)
            return [torch.empty_like(r) for r in results] + [torch.empty_like(xs[i]) for i in self.written]
        except CaptureError:
            raise
        except Exception as error:
            return self._infer_by_running(xs, sizes, error)

    def _learn(self, xs: Sequence[torch.Tensor], sizes: Sequence[Any]) -> list[torch.Tensor]:
        """Runs the user's forward and keeps what it returns and what it writes into; the tensors it returned."""
        args, kwargs = self.arguments(xs, sizes)
        context = _TraceContext(len(args))
        with self._autocast.restored(), _Writes() as writes:
            if self.cls.setup_context is torch.autograd.Function.setup_context:
                results = self.cls.forward(context, *args, **kwargs)
            else:
                bound = inspect.signature(self.cls.forward).bind(*args, **kwargs)
                bound.apply_defaults()
                results = self.cls.forward(*bound.args, **bound.kwargs)
                self.cls.setup_context(context, bound.args, results)
        leaves, self._results_spec = pytree.tree_flatten(results)
        self._results = [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self._constant = [k for k, t in enumerate(tensors) if any(t is c for c in context.not_differentiable)]
        self.returned = {}
        for i, x in enumerate(xs):
            if any(x is dirty for dirty in context.dirty):
                self.returned.update((i, k) for k, result in enumerate(tensors) if result is x)
        self.written = [i for i, x in enumerate(xs) if _memory(x) in writes.memory and i not in self.returned]
        own = {*self.written, *self.returned}
        self.saved = [i for i, x in enumerate(xs) if i not in own and any(x is s for s in context.saved_tensors)]
        returned = self.returned.values()
        self.saved_results = [
            k for k, t in enumerate(tensors) if k not in returned and any(t is s for s in context.saved_tensors)
        ]
        return tensors

    def _infer_by_running(self, xs: Sequence[Any], sizes: Sequence[Any], error: Exception) -> list[torch.Tensor]:
        name = self.cls.__name__
        try:
            results = results_by_trial(self._learn, xs, sizes)
        except UnknownSizeError:
            text = f"the forward of {name} returns a size that follows from no size of its arguments"
            raise CaptureError(text) from error
        except Exception as cause:
            text = f"the forward of {name} runs only on the real data: {type(cause).__name__}: {cause}"
            raise CaptureError(text) from error
        return results + [torch.empty_like(xs[i]) for i in self.written]

    def restore(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The value that `cls.apply` returned, with these tensors in it; performs its writes."""
        assert self._results_spec is not None
        count = sum(leaf is _TENSOR for leaf in self._results)
        results = list(tensors[:count])
        for k in self._constant:
            results[k] = results[k].detach()
        for i, k in self.returned.items():
            results[k] = self.tensors[i].copy_(tensors[k])
        for i, value in zip(self.written, tensors[count:], strict=True):
            with torch.no_grad():
                self.tensors[i].copy_(value)
        t = iter(results)
        return pytree.tree_unflatten(
            [next(t) if leaf is _TENSOR else leaf for leaf in self._results], self._results_spec
        )

    # -- when executed ----------------------------------------------------------------------------------------------

    def run(self, xs: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        """Executes the call with real tensors; under grad mode the user's backward is recorded.

        No result shares memory with an argument or with another result.
        """
        own = [x.clone() if i in self.returned or i in self.written else x for i, x in enumerate(xs)]
        args, kwargs = self.arguments(own, sizes)
        with self._autocast.restored():
            leaves = pytree.tree_leaves(self.cls.apply(*args, **kwargs))
        results = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if any(isinstance(result, FakeTensor) for result in results):
            raise ORTModuleError(f"[Expect] {self.cls.__name__} computes with a tensor that it is not given")
        results += [own[i].detach() for i in self.written]
        taken = {_memory(x) for x in xs}
        for k, result in enumerate(results):
            if _memory(result) in taken and result.numel():
                results[k] = result.clone()
            taken.add(_memory(results[k]))
        return results


def _own_symbols(xs: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    """Numbers that the forward reads from its tensors are not the trace's."""
    environments = [x.fake_mode.shape_env for x in xs if isinstance(x, FakeTensor) and x.fake_mode.shape_env]
    return environments[0].ignore_fresh_unbacked_symbols() if environments else contextlib.nullcontext()


def call_of(fid: int) -> FunctionCall | None:
    """The call of that number, while the capture that owns it lives."""
    return _calls.get(fid)
