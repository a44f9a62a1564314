"""Gradients with history (`create_graph=True`): a gradient penalty, a Hessian, the derivatives in a physical equation.

The engine's backward cannot be differentiated. Where that is asked for, the call is run again by PyTorch, whose
gradients can. It draws the random numbers that the engine drew, the masks of dropout too (same_masks.py). The gradients
are compared with the engine's, so that a forward that is not the same the second time (a parameter that changed) is an
error and no wrong number. Later calls of the kind run in PyTorch at once.
Not here: what is kept of a call (csrc/bindings/higher_order.h), where later calls are sent (ortmodule.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..errors import UnsupportedError
from .info import PostExportProcessedModelInfo
from .same_masks import SameMasks, draws_of
from .signature import Call, module_state

__all__ = ["REASON", "HigherOrder"]

REASON = "gradients are differentiated again (create_graph=True), which the engine's cannot be"
# Relative difference of the two gradients, each in the arithmetic of its own: far above rounding, far below what
# another mask or another step of the optimizer makes.
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-2}
_COARSE = 0.2  # 16-bit floats


class HigherOrder:
    """The gradients of one session's calls, as PyTorch computes them.

    Args:
        module: the wrapped module.
        info: the session's.
        call: one that the session is for; of its leaves only the Python values are kept.
        counted: whether the session's dropout is counter-based.
        asked: called when a second derivative is asked for.
        own_hooks: whether the module's own forward hooks belong to the call.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        info: PostExportProcessedModelInfo,
        call: Call,
        counted: bool,
        asked: Callable[[], None],
        own_hooks: bool = True,
    ) -> None:
        self._own_hooks = own_hooks
        self._module, self._signature, self._spec, self._asked = module, call.signature, call.spec, asked
        self._values = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in call.leaves]
        self._places = [info.data_accessor[name] for name in info.onnx_graph_input_names_user_defined]
        self._wanted = [info.data_accessor.get(name, name) for name in info.onnx_graph_input_names_require_grad]
        self._info, self._counted = info, counted
        self._outputs = [ref.name if ref.kind == "tensor" else None for ref in info.captured.outputs]

    def gradients(
        self,
        given: Sequence[torch.Tensor | None],
        dys: dict[str, torch.Tensor],
        dxs: Sequence[torch.Tensor | None],
        random_state: torch.Tensor | None,
    ) -> list[torch.Tensor | None]:
        """The gradients of the graph's trainable inputs, with history.

        Args:
            given: the call's tensors, in the order of the graph's inputs; None where one is gone.
            dys: gradients of graph outputs, by name.
            dxs: the engine's gradients, in the order of the trainable inputs; None where one is identically zero.
            random_state: what torch's generator was before the call; None: the call drew nothing.

        Raises:
            UnsupportedError: the call cannot be repeated.
        """
        self._asked()
        if any(tensor is None for tensor in given):
            raise _refused("a tensor that the forward was given is gone (keep a reference to it)")
        if module_state(self._module) != self._signature.modules:
            raise _refused("the module's mode, hooks or parameters changed since the forward")
        results, wanted = self._forward_again(given, random_state)
        named = dict(zip(self._outputs, results, strict=True))
        if not dys.keys() <= named.keys():
            raise _refused("a gradient reaches it through a buffer or an input that the forward changes")
        again = torch.autograd.grad(
            [named[name] for name in dys], wanted, list(dys.values()), create_graph=True, allow_unused=True
        )
        pairs = zip(again, dxs, strict=True)
        if not all(_same(mine, theirs) for mine, theirs in pairs):
            raise _refused(
                "the forward, run again in PyTorch, gives other gradients (a value was changed after it, or it is "
                "random in a way that cannot be repeated)"
            )
        return list(again)

    def _forward_again(
        self, given: Sequence[torch.Tensor | None], random_state: torch.Tensor | None
    ) -> tuple[list[Any], list[Any]]:
        """The flat results of the call, and its wanted tensors as it saw them. Buffers and random generators are as if
        it had not been.
        """
        leaves = list(self._values)
        with contextlib.ExitStack() as stack:
            for one in (torch.enable_grad(), _autocast(self._signature.autocast), _stand_ins(self._module)):
                stack.enter_context(one)
            for place, tensor in zip(self._places, given, strict=True):
                leaves[place] = None if tensor is None else _unhooked(tensor)
            wanted = [leaves[x] if isinstance(x, int) else _parameter(self._module, x) for x in self._wanted]
            args, kwargs = pytree.tree_unflatten(leaves, self._spec)
            if random_state is not None:
                torch.default_generator.set_state(random_state)
                if self._counted and (draws := draws_of(self._info.captured.model)):
                    stack.enter_context(SameMasks(draws))
            call = self._module if self._own_hooks else self._module.forward
            return pytree.tree_leaves(call(*args, **kwargs)), wanted


def _refused(why: str) -> UnsupportedError:
    return UnsupportedError(
        f"this call's gradients cannot be differentiated again (create_graph=True): {why}. Later calls of this kind "
        "run in PyTorch, where they can; or call the wrapped module itself (model.module)"
    )


def _parameter(module: torch.nn.Module, name: str) -> Any:
    owner, _, key = name.rpartition(".")
    return getattr(module.get_submodule(owner), key)


def _same(mine: torch.Tensor | None, engine: torch.Tensor | None) -> bool:
    if mine is None or engine is None:
        return all(one is None or not one.any() for one in (mine, engine))
    limit = _TOLERANCE.get(mine.dtype, _COARSE)
    left, right = mine.detach().double(), engine.double()
    difference, size = (left - right).norm(), right.norm()
    return not bool(difference > limit * size + 1e-6) or not bool(torch.isfinite(size))


@contextlib.contextmanager
def _autocast(state: Sequence[tuple[str, torch.dtype]]) -> Iterator[None]:
    on = dict(state)
    with contextlib.ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if device in on or torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, on.get(device), enabled=device in on))
        yield


def _unhooked(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor; a view of one with hooks, which hear of its gradient when the engine hands it on, and only then."""
    return tensor.view_as(tensor) if tensor._backward_hooks or tensor.retains_grad else tensor


@contextlib.contextmanager
def _stand_ins(module: torch.nn.Module) -> Iterator[None]:
    """The module runs on copies of its buffers, which autograd may save, and on a generator of the same state."""
    others: dict[int, torch.Tensor] = {}
    entries: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    for one in module.modules():
        tables: tuple[dict[str, Any], dict[str, Any]] = (one._parameters, one._buffers)
        for table in tables:
            for name, tensor in table.items():
                if tensor is not None:
                    entries.append((table, name, tensor))
                    if id(tensor) not in others:
                        others[id(tensor)] = _unhooked(tensor) if table is tables[0] else tensor.clone()
    devices = sorted({p.device.index or 0 for p in module.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        try:
            for table, name, tensor in entries:
                table[name] = others[id(tensor)]
            yield
        finally:
            for table, name, tensor in entries:
                table[name] = tensor
