"""The wrapper: `model = ORTModule(model)`.

An ORTModule is an nn.Module that behaves as the module it wraps: same parameters under the same names, same modes, same
attributes. Only its forward differs: it runs a compiled graph, found by the GraphTransitionManager, and autograd sees
one node behind the outputs. What cannot be captured runs in PyTorch, and is said once.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from . import _C
from .calls.engine_call import EngineCall
from .calls.fallback import Fallback
from .calls.method_calls import MethodCalls, is_composed
from .calls.parts import fallback_of
from .errors import InvalidArgumentError
from .extending import load_libraries
from .memory_report import MemoryReport, SessionMemory
from .naming import module_of
from .options import DebugOptions, Options
from .report import Report

__all__ = ["ORTModule", "release_memory"]

_LOGGER = logging.getLogger("ortmodule")
# Everything else of the public surface is looked up on the wrapped module.
_OWN = frozenset({"_original", "_engine_call", "_manager", "_options", "_debug_options", "_methods"})
# Set on the wrapper itself: `forward` may be replaced by a function that calls the one before (Accelerate does, and
# keeps that one as `_original_forward`); on the wrapped module it would call itself. And what kind of hooks there is
# around the backward of a call of the wrapper.
_OWN_FORWARD = frozenset({"forward", "_original_forward", "_is_full_backward_hook"})
# Tables of nn.Module that the two share, so that what walks them (an outer module's load_state_dict) finds the same.
_TABLES = (
    "_parameters", "_buffers", "_non_persistent_buffers_set", "_modules", "_state_dict_hooks", "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip
# What every nn.Module had before anybody could give the class more.
_OF_EVERY_MODULE = frozenset(dir(nn.Module))


class _OfOriginal:
    """A value that somebody has set on nn.Module, which a wrapper has by inheritance: the wrapped module's."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, wrapper: Any, owner: Any = None) -> Any:
        return getattr(nn.Module if wrapper is None else wrapper._original, self._name)


def _look_up_on_the_wrapped() -> None:
    """Values that came to nn.Module later; its methods and descriptors work on the wrapper itself."""
    for name in vars(nn.Module).keys() - _OF_EVERY_MODULE - vars(ORTModule).keys():
        value = vars(nn.Module)[name]
        if not callable(value) and not hasattr(type(value), "__get__"):
            type.__setattr__(ORTModule, name, _OfOriginal(name))


def release_memory() -> None:
    """Gives the memory kept between steps back to the system, for all ORTModules of the process.

    On a CPU the engine keeps the pages of a step's intermediate tensors, because torch's allocator would fault them in
    again at each step. They come back with the next step. Blocks that still hold a tensor (gradients) stay. A GPU's
    memory is torch's caching allocator's: `torch.cuda.empty_cache()`.
    """
    _C.release_memory()


class _BoundForward(functools.partial[Any]):
    """`model.forward`: a bound method with the signature of the wrapped module's forward, which tools read.

    A partial, because that is called without a step in Python.
    """

    @property
    def __self__(self) -> ORTModule:
        return self.args[0]

    @property
    def __func__(self) -> Any:
        return _forward

    @property
    def __code__(self) -> Any:
        return self.__self__._original.forward.__code__

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.__self__._original.forward)

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self.__self__._original.forward.__doc__

    @property
    def __name__(self) -> str:
        return "forward"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BoundForward) and other.__self__ is self.__self__

    def __hash__(self) -> int:
        return hash((_BoundForward, id(self.__self__)))


class _Forward:
    """The class's attribute `forward`; a value set on an instance goes before it, as with a method."""

    def __get__(self, instance: ORTModule | None, owner: type[ORTModule]) -> Any:
        return _forward if instance is None else _BoundForward(_forward, instance)


def _forward(self: ORTModule, *args: Any, **kwargs: Any) -> Any:
    """The wrapped module's forward, through the engine."""
    return self._engine_call.run(args, kwargs)


def _after_error(self: ORTModule, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the call gives that ended in `error` in the engine."""
    return self._engine_call.after_error(error, args, kwargs)


def _blank(cls: type[ORTModule]) -> ORTModule:
    return cls.__new__(cls)


class ORTModule(nn.Module):
    """Runs an nn.Module's forward and backward through the C++ engine.

    Args:
        module: the module to accelerate; it is used, not copied.
        debug_options: what to log and save.
        options: how to compute.

    Raises:
        InvalidArgumentError: `module` is no nn.Module, or an option does not fit.
    """

    def __init__(
        self, module: nn.Module, debug_options: DebugOptions | None = None, *, options: Options | None = None
    ) -> None:
        if not isinstance(module, nn.Module):
            raise InvalidArgumentError(f"ORTModule wraps an nn.Module, got {type(module).__name__}")
        if isinstance(module, ORTModule):
            module = module.module
        for name, value, kind in (("debug_options", debug_options, DebugOptions), ("options", options, Options)):
            if value is not None and not isinstance(value, kind):
                raise InvalidArgumentError(f"{name} should be {kind.__name__}, got {type(value).__name__}")
        super().__init__()
        self.__dict__.pop("training", None)
        _check_order(module)
        _note_hidden_names(module)
        self._original = module
        self._share_tables()
        self._options = options or Options()
        self._debug_options = debug_options or DebugOptions()
        load_libraries(self._options.custom_op_libraries)
        _LOGGER.setLevel(self._debug_options.log_level.logging_level)
        self._set_up(fallback_of(module, self._options, self._debug_options, ORTModule))

    def _set_up(self, fallback: Fallback) -> None:
        self.__dict__["_methods"] = MethodCalls(self._original, self)
        aside = self._methods.set_aside
        self.__dict__["_engine_call"] = EngineCall(self._original, self._options, self._debug_options, fallback, aside)
        self.__dict__["_manager"] = self._engine_call.manager  # the steady call looks for its fast calls there

    # -- running ----------------------------------------------------------------------------------------------------

    forward = _Forward()

    def report(self) -> Report:
        """What was exported and compiled so far, and what runs in PyTorch. Printable."""
        call, fallback = self._engine_call, self._engine_call.fallback
        reason = next(iter(fallback.reasons.values()), call.manager.higher_order)
        in_parts = any(True for part in fallback.parts() for _ in part.session_reports())
        return Report(
            module=type(self._original).__name__,
            sessions=tuple(call.session_reports()),
            exports=tuple(call.exports()),
            fallback="none" if reason is None else "partial" if in_parts else "whole",
            fallback_reason=reason,
            matmul_choices=tuple(_C.matmul_choices().splitlines()),
        )

    def memory_report(self) -> MemoryReport:
        """Which tensors the steps hold when they hold most, as measured on the first run of each graph. Printable."""
        tensors = {id(t): t for t in (*self._original.parameters(), *self._original.buffers())}
        gradients = [p.grad for p in self._original.parameters() if p.grad is not None]
        return MemoryReport(
            parameter_bytes=sum(t.nbytes for t in tensors.values()),
            gradient_bytes=sum(g.nbytes for g in gradients),
            sessions=tuple(SessionMemory.of(session) for session in self._engine_call.sessions()),
        )

    def _sessions(self) -> Iterator[_C.Session]:
        return self._engine_call.sessions()

    # -- the wrapped module's surface -------------------------------------------------------------------------------

    @property
    def module(self) -> nn.Module:
        """The wrapped module."""
        return self._original

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The wrapped module's class: `isinstance` and what tools look up there (labels, a saving method) hold."""
        return self._original.__class__ if "_original" in self.__dict__ else type(self)

    def _share_tables(self) -> None:
        for name in _TABLES:
            if name in self._original.__dict__:
                self.__dict__[name] = self._original.__dict__[name]

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # not set yet: __init__ did not finish, or unpickling
            raise AttributeError(name)
        return self._methods.through(getattr(self._original, name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN or name in _OWN_FORWARD or name.startswith("_forward") or name.startswith("_backward"):
            self.__dict__[name] = value
        elif name == "module":
            raise AttributeError(
                "the module that an ORTModule runs is not replaced; wrap the other one: ORTModule(other). "
                "An attribute of that name of the wrapped module's own is set by `model.module.module = ...`"
            )
        elif "_original" in self.__dict__:
            setattr(self._original, name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in _OWN_FORWARD:
            super().__delattr__(name)
        else:
            delattr(self._original, name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(type(self)), *self.__dict__, *dir(self._original)})

    def __repr__(self) -> str:
        return f"ORTModule({self._original!r})"

    # Python looks these up on the type; a wrapped nn.Sequential is indexed and walked as before.

    def __getitem__(self, index: Any) -> Any:
        return self._original[index]  # type: ignore[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._original[index] = value  # type: ignore[operator]

    def __delitem__(self, index: Any) -> None:
        del self._original[index]  # type: ignore[operator]

    def __len__(self) -> int:
        return len(self._original)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._original)  # type: ignore[call-overload]

    def __contains__(self, item: Any) -> bool:
        return item in self._original  # type: ignore[operator]

    def __bool__(self) -> bool:
        return bool(self._original)

    def __reduce__(self) -> Any:
        # Pickle's own way refuses an object whose __class__ is not its type.
        return _blank, (type(self),), self.__getstate__()

    def __prepare_scriptable__(self) -> nn.Module:
        # torch.jit.script compiles Python source; the wrapped module's is what it can read.
        return self._original

    def __getstate__(self) -> dict[str, Any]:
        # Graphs are rebuilt on first use; compiled sessions do not travel.
        left = {"_engine_call", "_manager", "_methods", *_TABLES}
        state = {name: value for name, value in self.__dict__.items() if name not in left}
        return {**state, "_fallback": copy.copy(self._engine_call.fallback)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        fallback = state.pop("_fallback")
        self.__dict__.update(state)
        self._share_tables()
        self._set_up(fallback)

    def train(self, mode: bool = True) -> ORTModule:
        self._original.train(mode)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> ORTModule:
        self._original._apply(fn, recurse)
        return self

    def apply(self, fn: Any) -> ORTModule:
        self._original.apply(fn)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self._original.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self._original.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._original._load_from_state_dict(*args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self._original.named_parameters(*args, **kwargs)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return self._original.parameters(recurse)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        return self._original.named_buffers(*args, **kwargs)

    def buffers(self, recurse: bool = True) -> Iterator[torch.Tensor]:
        return self._original.buffers(recurse)

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        return self._original.named_children()

    def children(self) -> Iterator[nn.Module]:
        return self._original.children()

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        """The wrapped module's; with itself in that one's place where fully_shard looks for what it was given."""
        own = is_composed(self)
        for name, module in self._original.named_modules(*args, **kwargs):
            yield name, self if own and module is self._original else module

    def modules(self, *args: Any, **kwargs: Any) -> Iterator[nn.Module]:
        for _, module in self.named_modules(*args, **kwargs):
            yield module

    def add_module(self, name: str, module: nn.Module | None) -> None:
        self._original.add_module(name, module)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        self._original.register_parameter(name, param)

    def register_buffer(self, name: str, tensor: torch.Tensor | None, persistent: bool = True) -> None:
        self._original.register_buffer(name, tensor, persistent)

    def get_parameter(self, target: str) -> nn.Parameter:
        return self._original.get_parameter(target)

    def get_buffer(self, target: str) -> torch.Tensor:
        return self._original.get_buffer(target)

    def get_submodule(self, target: str) -> nn.Module:
        return self._original.get_submodule(target)

    def requires_grad_(self, requires_grad: bool = True) -> ORTModule:
        self._original.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._original.zero_grad(set_to_none)


def _check_order(module: nn.Module) -> None:
    """A wrapper that acts at each call (collectives) goes around an ORTModule, never into its graph."""
    for outer in (nn.parallel.DistributedDataParallel, nn.DataParallel):
        if isinstance(module, outer):
            name = outer.__name__
            full = f"torch.nn.{'parallel.' * (name != 'DataParallel')}{name}"
            raise InvalidArgumentError(
                f"ORTModule is not compatible with {full}, which goes around it: write {name}(ORTModule(model)), "
                f"not ORTModule({name}(model))"
            )
    if any(module_of(base).startswith(("lightning.", "pytorch_lightning.")) for base in type(module).__mro__):
        warnings.warn(
            "Lightning calls the training_step of a LightningModule, not its forward: wrap the network that it holds, "
            "self.net = ORTModule(net), to train that in ORTModule's engine",
            stacklevel=3,
        )


def _note_hidden_names(module: nn.Module) -> None:
    """Says which attributes of the module are not reached through the wrapper, because it has its own of that name."""
    for name in sorted({"module", "report", "memory_report", *_OWN} & {*dir(module)}):
        warnings.warn(
            f"{name} collides with ORTModule's attribute name: on the wrapped model it is ORTModule's, and that of "
            f"{type(module).__name__} is model.module.{name}",
            stacklevel=3,
        )


_STEPS = ("__call__", "_wrapped_call_impl", "_call_impl")
# The steady call, without nn.Module's steps in Python and our own; not where somebody had replaced those before.
if all(getattr(nn.Module.__dict__[name], "__globals__", None) is vars(nn.modules.module) for name in _STEPS):
    ORTModule.__call__ = _C.native_call(  # type: ignore[method-assign]
        ORTModule,
        ["forward"],
        nn.Module,
        list(_STEPS),
        [
            nn.modules.module._global_backward_pre_hooks,
            nn.modules.module._global_backward_hooks,
            nn.modules.module._global_forward_pre_hooks,
            nn.modules.module._global_forward_hooks,
        ],
        _after_error,
    )
ORTModule.__getattribute__ = _C.native_lookup(  # type: ignore[method-assign]
    ORTModule, nn.Module, _look_up_on_the_wrapped
)
