"""Operators of torch's own without a shape rule (`fake_quantize`, a Dirichlet distribution): tried on made-up tensors.

Not here: the trials (trace/shape_probes.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, UnsupportedOperatorException
from torch.utils import _pytree as pytree

from ..patching import Patch
from ..shape_probes import UnknownSizeError, results_by_trial
from ..tracing import TraceState

__all__ = ["PATCHES"]


def _operator_results(operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Fake results of an operator that has no shape rule; NotImplemented where trials cannot tell them."""
    by_data = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
    if operator._schema.is_mutable or any(a.alias_info is not None for a in operator._schema.returns):
        return NotImplemented
    if operator.namespace != "aten" or not by_data.isdisjoint(operator.tags):
        return NotImplemented
    leaves, spec = pytree.tree_flatten((tuple(args), kwargs))
    if any(isinstance(leaf, (torch.SymFloat, torch.SymBool)) for leaf in leaves):
        return NotImplemented
    found: list[Any] = []

    def run(xs: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        x, s = iter(xs), iter(sizes)
        given = [
            next(x) if isinstance(leaf, FakeTensor) else next(s) if isinstance(leaf, torch.SymInt) else leaf
            for leaf in leaves
        ]
        real_args, real_kwargs = pytree.tree_unflatten(given, spec)
        flat, structure = pytree.tree_flatten(operator(*real_args, **real_kwargs))
        found[:] = [structure]
        return flat

    fakes = [leaf for leaf in leaves if isinstance(leaf, FakeTensor)]
    try:
        results = results_by_trial(run, fakes, [leaf for leaf in leaves if isinstance(leaf, torch.SymInt)])
    except (RuntimeError, ValueError, IndexError, AttributeError, UnknownSizeError):
        return NotImplemented
    return pytree.tree_unflatten(results, found[0])


def _with_trials(original: Any, state: TraceState) -> Any:
    def dispatch(self: Any, operator: Any, types: Any, args: Any, kwargs: Any) -> Any:
        try:
            return original(self, operator, types, args, kwargs)
        except UnsupportedOperatorException:
            with self:
                results = _operator_results(operator, args, kwargs)
            if results is NotImplemented:
                raise
            return results

    return dispatch


PATCHES = (Patch(FakeTensorMode, "_dispatch_impl", _with_trials),)
