"""What an operator returns for stand-ins is made once: the next one like it gets the like of that.

A trace runs each operator on stand-ins, tensors that have sizes but no values. torch keeps what operators returned, for
the next one with inputs of the same sizes; with symbolic sizes to look there, and to make the result once more from
what is kept, costs as much as to run it: some milliseconds. A model of equal layers has nearly all operators again.
Here a result is remembered whole, and the next one has its fields (../../stand_ins.py).

Not here: blocks of operators (../../repeats), sums of sizes (../sizes/arithmetic.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from ..... import _C
from ....torch_private import storage_of
from ...patching import Patch
from ...stand_ins import StandIns
from ...tracing import TraceState

__all__ = ["PATCHES"]

_UNSAFE_VIEW = torch.ops.aten._unsafe_view.default


class _Same(NamedTuple):
    """A result that is an argument, or nothing."""

    argument: int | None


class _Like(NamedTuple):
    """A result.

    Attributes:
        tensor: what it is like, on a memory of its own.
        memory: the argument whose memory it shares.
        device: that of the stand-in.
    """

    tensor: torch.Tensor
    memory: int | None
    device: torch.device


class _Results:
    """What the operators of one trace have returned; None for a key: what cannot be remembered."""

    def __init__(self, stand_ins: StandIns) -> None:
        self._known: dict[Any, tuple[Any, list[_Same | _Like]] | None] = {}
        self._stand_ins = stand_ins

    def of(self, mode: FakeTensorMode, run: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """The operator's result; `run` is asked for the first of each kind."""
        key = self._key(mode, func, args, kwargs)
        if key is None:
            return run()
        if key in self._known:
            known = self._known[key]
            return run() if known is None else self._made(mode, known, args)
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        before = [storage_of(tensor) for tensor in tensors]
        result = run()
        same = before == list(map(storage_of, tensors))
        self._known[key] = self._kept(mode, func, args, kwargs, result) if same else None
        return result

    def _key(self, mode: FakeTensorMode, func: Any, args: Any, kwargs: Any) -> Any:
        if not isinstance(func, OpOverload) or not isinstance(args, tuple) or not isinstance(kwargs, dict):
            return None
        key = _C.operator_key(func, FakeTensor, mode, args, kwargs)
        if key is None:
            return None
        # What torch's own key has beside the arguments.
        settings = torch.get_default_dtype(), torch._C._get_default_device(), torch.is_inference_mode_enabled()
        return key, mode, mode.epoch, get_proxy_mode() is not None, settings

    def _kept(self, mode: FakeTensorMode, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """How to make a result once more; None: it cannot be."""
        try:
            if func is not _UNSAFE_VIEW:  # which torch does not keep since it does not know of its memory
                mode._validate_cache_key(func, args, kwargs)
        except fake_tensor._BypassDispatchCache:
            return None
        several = type(result) in (tuple, list)
        values = result if several else (result,)
        entries = [self._entry(mode, args, kwargs, one) for one in values]
        if None in entries:
            return None
        pairs = zip(values, entries, strict=True)
        new = [storage_of(value) for value, entry in pairs if isinstance(entry, _Like) and entry.memory is None]
        return (type(result) if several else None, entries) if len(set(new)) == len(new) else None

    def _entry(self, mode: FakeTensorMode, args: Sequence[Any], kwargs: Any, value: Any) -> _Same | _Like | None:
        if value is None:
            return _Same(None)
        if type(value) is not FakeTensor:
            return None
        places = [i for i, arg in enumerate(args) if arg is value]
        if places:
            return _Same(places[0])
        held = storage_of(value)
        every = [one for one in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        sharing = [i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor) and storage_of(arg) == held]
        if value.requires_grad or len(sharing) != sum(storage_of(one) == held for one in every):
            return None
        like = _Like(_C.like_stand_in(value, None), sharing[0] if sharing else None, value.fake_device)
        made = self._one(mode, like, args)
        forms = [_C.operator_key(None, FakeTensor, mode, (one,), {}) for one in (made, value)]
        same = forms[0] == forms[1] and torch._C._dispatch_key_set(made) == torch._C._dispatch_key_set(value)
        return like if same else None

    def _made(self, mode: FakeTensorMode, known: tuple[Any, list[_Same | _Like]], args: Sequence[Any]) -> Any:
        kind, entries = known
        results = [self._one(mode, entry, args) for entry in entries]
        return results[0] if kind is None else kind(results)

    def _one(self, mode: FakeTensorMode, entry: _Same | _Like, args: Sequence[Any]) -> Any:
        if isinstance(entry, _Same):
            return None if entry.argument is None else args[entry.argument]
        memory = None if entry.memory is None else args[entry.memory]
        return self._stand_ins.like(entry.tensor, memory, mode, entry.device)


def _remembered(original: Any, state: TraceState) -> Any:
    results = _Results(StandIns())

    def dispatch(mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        # torch's own are of every trace, those of symbolic sizes of this one alone.
        run = mode._dispatch_impl if state.symbolic else lambda *call: original(mode, *call)
        return results.of(mode, lambda: run(func, types, args, kwargs), func, args, kwargs)

    return dispatch


PATCHES = (Patch(FakeTensorMode, "_cached_dispatch_impl", _remembered),)
