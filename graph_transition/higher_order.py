"""Gradients that a session's backward does not give.

- With history (`create_graph=True`): a gradient penalty, a Hessian, the derivatives in a physical equation. They are
  those of a graph of their own (derivatives.py), unless the forward draws random numbers or has an operator whose
  gradient has no gradient.
- Of a result that another result is computed from (`features` of `logits, features = model(x)`), where somebody looks
  at it: a hook, `retain_grad()`, `autograd.grad(logits, features)`.

Otherwise the call is run again by PyTorch. It draws the random numbers that the engine drew, the masks of dropout too
(same_masks.py). The gradients are compared with the engine's, so that a forward that is not the same the second time (a
parameter that changed) is an error and no wrong number. Later calls of the kind run in PyTorch at once.
Not here: what is kept of a call and when that is asked for (csrc/autograd/higher_order.h, result_nodes.h), where later
calls are sent (ortmodule.py).
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..capture.containers.nodes import leaves_of
from ..errors import UnsupportedError
from .derivatives import Derivatives, Gradients
from .info import PostExportProcessedModelInfo
from .same_masks import SameMasks, draws_of
from .signature import Call, module_state

__all__ = ["HigherOrder"]

_LOGGER = logging.getLogger("ortmodule")
_DIFFERENTIATED = "gradients are differentiated again (create_graph=True), which the engine's of this forward cannot be"
_LOOKED_AT = "gradients are looked at where a result is computed from another one, which the engine passes by"
# Relative difference of the two gradients, each in the arithmetic of its own: far above rounding, far below what
# another mask or another step of the optimizer makes.
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-2}
_COARSE = 0.2  # 16-bit floats
_ADVICE = "Later calls of this kind run in PyTorch, where they can; or call the wrapped module itself (model.module)"


class HigherOrder:
    """Runs one session's calls again in PyTorch.

    Args:
        module: the wrapped module.
        info: the session's.
        call: one that the session is for; of its leaves only the Python values are kept.
        counted: whether the session's dropout is counter-based.
        asked: called when that is needed, with the reason.
        own_hooks: whether the module's own forward hooks belong to the call.
        derivatives: of the session's graph; None: PyTorch runs the call again.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        info: PostExportProcessedModelInfo,
        call: Call,
        counted: bool,
        asked: Callable[[str], None],
        own_hooks: bool = True,
        derivatives: Derivatives | None = None,
    ) -> None:
        self._own_hooks, self._derivatives = own_hooks, derivatives
        self._module, self._signature, self._shape, self._asked = module, call.signature, call.shape, asked
        self._values = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in call.leaves]
        self._places = [info.data_accessor[name] for name in info.onnx_graph_input_names_user_defined]
        self._wanted = [info.data_accessor.get(name, name) for name in info.onnx_graph_input_names_require_grad]
        self._info, self._counted = info, counted
        self._outputs = [ref.name if ref.kind == "tensor" else None for ref in info.captured.outputs]

    def repeat(
        self,
        given: Sequence[torch.Tensor | None],
        changed: Sequence[int] | None,
        random_state: torch.Tensor | None,
        looked: bool,
    ) -> Callable[..., Gradients]:
        """What gives a call's gradients, as `_C.Session.differentiate_again` asks for it.

        Raises:
            UnsupportedError: the call cannot be repeated.
        """
        names = self._info.onnx_graph_input_names_user_defined
        if changed is not None:  # given are all of the graph's inputs
            places = {name: i for i, name in enumerate(self._info.onnx_graph_input_names)}
            inputs, given = given, [given[places[name]] for name in names]
        else:
            user = dict(zip(names, given, strict=True))
            inputs = [user.get(n, self._info.buffer_for_ort_runs.get(n)) for n in self._info.onnx_graph_input_names]
        there = [tensor for tensor in inputs if tensor is not None]
        if self._derivatives is None or looked or random_state is not None or len(there) < len(inputs):
            return self._in_pytorch(given, random_state, looked)
        return functools.partial(self._of_engine, there, given, changed)

    def _of_engine(
        self,
        inputs: Sequence[torch.Tensor],
        given: Sequence[torch.Tensor | None],
        changed: Sequence[int] | None,
        dys: Mapping[str, torch.Tensor],
        whole: Sequence[str],
        of: str | None,
        wanted: Sequence[int],
        dxs: Callable[[], Gradients] | None,
    ) -> Gradients:
        assert self._derivatives is not None
        try:
            gradients = self._derivatives.gradients(inputs, changed or (), dys, wanted)
        except UnsupportedError as error:
            if changed is None:  # else it is about this call
                self._derivatives = None
            _LOGGER.info("second derivatives run in PyTorch: %s", error)
            return self._in_pytorch(given, None, False)(dys, whole, of, wanted, dxs)
        if changed is None and dxs is not None:
            _compare(gradients, dxs(), wanted, _history_refused)
        return gradients

    def _in_pytorch(
        self, given: Sequence[torch.Tensor | None], random_state: torch.Tensor | None, looked: bool
    ) -> Callable[..., Gradients]:
        """The call, run again; `RepeatedCall.gradients` of it.

        Args:
            given: the call's tensors, in the order of the graph's inputs; None where one is gone.
            random_state: what torch's generator was before the call; None: the call drew nothing.
            looked: whether for a result that another one is computed from, not for gradients with history.
        """
        self._asked(_LOOKED_AT if looked else _DIFFERENTIATED)
        refused = _looked_refused if looked else _history_refused
        if any(tensor is None for tensor in given):
            raise refused("a tensor that the forward was given is gone (keep a reference to it)")
        if module_state(self._module) != self._signature.modules:
            raise refused("the module's mode, hooks or parameters changed since the forward")
        results, wanted = self._forward_again(given, random_state)
        return RepeatedCall(results, wanted, refused).gradients

    def _forward_again(
        self, given: Sequence[torch.Tensor | None], random_state: torch.Tensor | None
    ) -> tuple[dict[str | None, Any], list[Any]]:
        """The results of the call by graph output, and its wanted tensors as it saw them. Buffers, random generators
        and what the forward leaves on its modules are as if it had not been.
        """
        leaves = list(self._values)
        left = self._info.captured.left
        with contextlib.ExitStack() as stack:
            for one in (torch.enable_grad(), _autocast(self._signature.autocast), _stand_ins(self._module)):
                stack.enter_context(one)
            for side in left:
                stack.enter_context(_same_entry(side.table, side.name))
            for place, tensor in zip(self._places, given, strict=True):
                leaves[place] = None if tensor is None else _unhooked(tensor)
            wanted = [leaves[x] if isinstance(x, int) else _parameter(self._module, x) for x in self._wanted]
            again = self._shape.filled(leaves)
            if random_state is not None:
                torch.default_generator.set_state(random_state)
                if self._counted and (draws := draws_of(self._info.captured.model)):
                    stack.enter_context(SameMasks(draws))
            call = self._module if self._own_hooks else self._module.forward
            results = dict(zip(self._outputs, leaves_of(call(*again.args, **again.kwargs)), strict=True))
            for side in left:
                names = (ref.name if ref.kind == "tensor" else None for ref in side.leaves)
                results.update(zip(names, leaves_of(side.table[side.name]), strict=True))
            return results, wanted


class RepeatedCall:
    """A call that PyTorch has run again.

    Args:
        results: by graph output.
        wanted: the trainable inputs.
        refused: the error for a call that cannot be repeated, from the reason.
    """

    def __init__(
        self, results: dict[str | None, Any], wanted: list[torch.Tensor], refused: Callable[[str], UnsupportedError]
    ) -> None:
        self._results, self._wanted, self._refused = results, wanted, refused

    def gradients(
        self,
        dys: Mapping[str, torch.Tensor],
        whole: Sequence[str],
        of: str | None,
        wanted: Sequence[int],
        dxs: Callable[[], Gradients] | None,
    ) -> Gradients:
        """Gradients of the graph's trainable inputs, or of one output; with history where gradients are enabled.

        Args:
            dys: gradients of graph outputs, by name.
            whole: those of them that are all that flows on from there, whatever comes through others.
            of: the output whose gradient is wanted; None: the trainable inputs'.
            wanted: the places of the trainable inputs whose gradients are asked for; the others may be given, too.
            dxs: gives the engine's gradients of these, None where one is identically zero; None: they are not compared.

        Raises:
            UnsupportedError: the engine's are others.
        """
        results = self._results
        if not dys.keys() <= results.keys():
            raise self._refused("a gradient reaches it through a buffer or an input that the forward changes")
        hooks = [results[name].register_hook(lambda _, total=dys[name]: total) for name in whole]
        try:
            again = torch.autograd.grad(
                [results[name] for name in dys],
                self._wanted if of is None else [results[of]],
                list(dys.values()),
                retain_graph=True,
                create_graph=torch.is_grad_enabled(),
                allow_unused=True,
            )
        finally:
            for hook in hooks:
                hook.remove()
        if dxs is not None:
            _compare(again, dxs(), wanted, self._refused)
        return list(again)


def _compare(
    again: Sequence[torch.Tensor | None],
    first: Gradients,
    wanted: Sequence[int],
    refused: Callable[[str], UnsupportedError],
) -> None:
    if not all(_same(again[i], first[i]) for i in wanted):
        raise refused(
            "the forward, run again, gives other gradients (a value was changed after it, or it is random in a way "
            "that cannot be repeated)"
        )


def _history_refused(why: str) -> UnsupportedError:
    return UnsupportedError(
        f"this call's gradients cannot be differentiated again (create_graph=True): {why}. {_ADVICE}"
    )


def _looked_refused(why: str) -> UnsupportedError:
    return UnsupportedError(
        f"the gradient of this call's result, from which another result is computed, cannot be had: {why}. {_ADVICE}"
    )


@contextlib.contextmanager
def _same_entry(table: dict[str, Any], name: str) -> Iterator[None]:
    """In the end the table has there what it had."""
    missing = object()
    before = table.get(name, missing)
    try:
        yield
    finally:
        if before is missing:
            table.pop(name, None)
        else:
            table[name] = before


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
