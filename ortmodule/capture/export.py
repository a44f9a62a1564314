"""Runs `torch.export` on a module in its present mode, hardened against what an export loses without a word.

The module is traced through a wrapper that takes the tensors among the call's leaves and returns the tensors among the
result's leaves; everything else (Python values, structure) is kept beside the program. So no restriction of export on
argument or output types applies, and values that are baked are known. The wrapper also re-enters the caller's autocast
inside the trace, where its casts become nodes.

What is patched in torch is in `patches.py`; how regions and mutations in the graph are resolved is in `regions.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import time
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.modules.module as torch_module
from torch.utils import _pytree as pytree

from ..errors import CaptureError, ORTModuleError
from . import compat, data_writes, patches, regions, sizes_of_one, source_lines, tracing_time, writes
from .assigned import AssignedTensors
from .branches import Branch, Branches
from .function_call import FunctionCall
from .random_states import same_random_states
from .randomness import refused_randomness
from .reads import AttributeReads
from .settings import recorded_settings
from .thread_tables import own_tables

__all__ = ["Exported", "export_module", "flatten_call"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.SymInt)


@dataclasses.dataclass
class Exported:
    """An exported program and what the export itself does not say.

    Attributes:
        program: the ExportedProgram of the wrapper; its parameters are named `module.<FQN>`.
        tensor_index: for each input tensor of the program, its index among the call's flat leaves.
        outputs: one per flat output leaf: ("value", position among the program's outputs) or ("constant", value).
        out_spec: pytree spec of the module's result.
        left_on_modules: (module, attribute, pytree spec) of what the forward sets on modules; their leaves follow the
            result's among `outputs`.
        calls: the custom autograd Functions that the graph refers to.
        attributes: (module FQN, attribute, value) for the plain attributes that the forward read.
        changed_attributes: `module.attribute` of those that the forward itself changed.
        settings: what of the call's settings the forward asked about (settings.py).
        branches: the questions about the inputs' values that the forward asked.
        seconds: wall seconds per step of the export.
        from_one: whether symbolic sizes may be 1.
    """

    program: torch.export.ExportedProgram
    tensor_index: list[int]
    outputs: list[tuple[str, Any]]
    out_spec: pytree.TreeSpec
    left_on_modules: list[tuple[torch.nn.Module, str, pytree.TreeSpec]]
    calls: list[FunctionCall]
    attributes: list[tuple[str, str, Any]]
    changed_attributes: list[str]
    settings: list[str]
    branches: list[Branch]
    seconds: dict[str, float]
    from_one: bool


class _Result:
    """What the traced forward returned; kept outside the wrapper, whose attributes export restores."""

    def __init__(self) -> None:
        self.outputs: list[tuple[str, Any]] = []
        self.spec: pytree.TreeSpec | None = None
        self.left_on_modules: list[tuple[torch.nn.Module, str, pytree.TreeSpec]] = []


class _Wrapper(torch.nn.Module):
    """The traced module: tensors in, tensors out."""

    def __init__(
        self,
        module: torch.nn.Module,
        leaves: list[Any],
        spec: pytree.TreeSpec,
        reads: AttributeReads,
        flags: Mapping[int, Any],
        branches: Branches | None,
    ) -> None:
        super().__init__()
        self.module = module
        self._branches = branches
        self._reads = reads
        self._assigned = AssignedTensors(module)
        self._leaves = leaves
        self._flags = {i: (value, leaves[i].dtype, leaves[i].device) for i, value in flags.items()}
        self._spec = spec
        self._autocast = [
            (device, torch.get_autocast_dtype(device))
            for device in ("cpu", "cuda")
            if torch.is_autocast_enabled(device)
        ]
        self.result = _Result()
        self.training = module.training

    def forward(self, *tensors: torch.Tensor) -> list[Any]:
        if self._branches is not None:
            self._branches.begin(tensors)
        given = iter(tensors)
        leaves = [
            self._flag(*self._flags[i]) if i in self._flags else next(given) if isinstance(leaf, torch.Tensor) else leaf
            for i, leaf in enumerate(self._leaves)
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        self._reads.begin()
        self._assigned.begin()
        with contextlib.ExitStack() as stack:
            for device, dtype in self._autocast:
                stack.enter_context(
                    torch.autocast(device, dtype=dtype, cache_enabled=torch.is_autocast_cache_enabled())
                )
            stack.enter_context(refused_randomness(self.module))
            result = self.module(*args, **kwargs)
        _refuse_changed_containers(leaves, self._spec, args, kwargs)
        self._reads.changed += self._assigned.finish()
        values = self._collect(result, self._reads.finish())
        data_writes.check_data_writes(values)
        return values

    @staticmethod
    def _flag(value: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.tensor(value, dtype=dtype, device=device)

    def _collect(self, result: Any, left: list[tuple[torch.nn.Module, str, Any]]) -> list[Any]:
        flat, self.result.spec = _flatten_result(result)
        self.result.left_on_modules = []
        for holder, name, value in left:
            leaves, spec = _flatten_result(value)
            flat = flat + leaves
            self.result.left_on_modules.append((holder, name, spec))
        values: list[Any] = []
        self.result.outputs = []
        for leaf in flat:
            if isinstance(leaf, (torch.Tensor, torch.SymInt)):
                self.result.outputs.append(("value", len(values)))
                values.append(leaf)
            elif isinstance(leaf, _PLAIN) or not _holds_tensor(leaf):
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


def flatten_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], pytree.TreeSpec]:
    """The leaves and the structure of a call; dataclasses that no one registered yet are registered."""
    return _flatten_registering((args, kwargs))


def _flatten_registering(value: Any) -> tuple[list[Any], pytree.TreeSpec]:
    leaves, spec = pytree.tree_flatten(value)
    fresh = {type(leaf) for leaf in leaves if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)}
    if not fresh:
        return leaves, spec
    for cls in fresh:
        torch.export.register_dataclass(cls)
    return _flatten_registering(value)


def _flatten_result(value: Any) -> tuple[list[Any], pytree.TreeSpec]:
    """As `_flatten_registering`, where plain objects that hold tensors (a key-value cache) are taken apart as well."""
    leaves, spec = _flatten_registering(value)
    fresh = {type(leaf) for leaf in leaves if not isinstance(leaf, _PLAIN) and _is_plain_object(leaf)}
    if not fresh:
        return leaves, spec
    for cls in fresh:
        pytree.register_pytree_node(cls, _object_parts, functools.partial(_object_from, cls))
    return _flatten_result(value)


def _is_plain_object(leaf: Any) -> bool:
    """Whether all that `leaf` holds is in its `__dict__`, so that a copy can be made of changed parts."""
    cls = type(leaf)
    if isinstance(leaf, (torch.Tensor, torch.nn.Module, type)) or cls.__new__ is not object.__new__:
        return False
    slots = any(getattr(base, "__slots__", ()) for base in cls.__mro__)
    return not slots and hasattr(leaf, "__dict__") and _holds_tensor(leaf)


def _object_parts(value: Any) -> tuple[list[Any], tuple[str, ...]]:
    return list(vars(value).values()), tuple(vars(value))


def _object_from(cls: type, parts: Any, names: Any) -> Any:
    made: Any = object.__new__(cls)
    made.__dict__.update(zip(names, parts, strict=True))
    return made


def _holds_tensor(value: Any, depth: int = 3) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if depth == 0 or isinstance(value, type):
        return False
    inner = value if isinstance(value, (list, tuple, set)) else [*getattr(value, "__dict__", {}).values()]
    inner = [*inner, *value.values()] if isinstance(value, dict) else inner
    return any(_holds_tensor(item, depth - 1) for item in inner)


def _refuse_python_at_each_call(module: torch.nn.Module) -> None:
    """Hooks (but torch's own, weight_norm's, which only compute) must run in Python at each call, and so must DDP."""
    for hook in (*torch_module._global_forward_hooks.values(), *torch_module._global_forward_pre_hooks.values()):
        text = getattr(hook, "__qualname__", type(hook).__name__)
        raise CaptureError(f"the forward hook {text} is registered for every module and runs in Python at each call")
    if torch_module._global_backward_hooks or torch_module._global_backward_pre_hooks:
        raise CaptureError("a backward hook is registered for every module; a captured graph cannot honor it")
    for name, child in module.named_modules():
        where = f"module '{name}'" if name else "the module"
        if isinstance(child, torch.nn.parallel.DistributedDataParallel | torch.nn.DataParallel):
            kind = type(child).__name__
            raise CaptureError(f"{where} is a {kind}, which acts at each call; write {kind}(ORTModule(module)) there")
        if child._backward_hooks or child._backward_pre_hooks:
            raise CaptureError(f"{where} has a backward hook; a captured graph cannot honour it")
        for hook in (*child._forward_hooks.values(), *child._forward_pre_hooks.values()):
            owner = hook if hasattr(hook, "__module__") else type(hook)
            if not str(owner.__module__).startswith("torch."):
                text = getattr(hook, "__qualname__", type(hook).__name__)
                raise CaptureError(f"{where} has the forward hook {text}, which runs in Python at each call")


def _refuse_tensor_classes(module: torch.nn.Module) -> None:
    """Parameters and buffers of a class of their own may be anything: quantized, sharded, with units."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        kind: Any = type(tensor)
        plain = kind.__torch_function__ is torch._C._disabled_torch_function_impl or kind is torch.Tensor
        if not plain or kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            text = f"{kind.__module__}.{kind.__qualname__}"
            raise CaptureError(f"'{name}' is of the tensor class {text}, whose operations may be its own")


def export_module(
    module: torch.nn.Module,
    leaves: list[Any],
    spec: pytree.TreeSpec,
    dynamic: set[tuple[int, int]],
    flags: Mapping[int, Any],
    branching: bool = False,
    from_one: bool = False,
) -> Exported:
    """Exports `module` for a call with these leaves, in its present mode and under the caller's autocast.

    Args:
        module: the user's module; its parameters, buffers and random state are left as they are.
        leaves, spec: the call, as `flatten_call` gives it.
        dynamic: (leaf index, axis) pairs whose size shall stay symbolic where the module allows it.
        flags: by leaf index, the values of tensors that shall be constants.
        branching: whether branches on what inputs and buffers hold go the way of this call.
        from_one: whether symbolic sizes may be 1; torch's export takes them to be at least 2.

    Raises:
        CaptureError: the module cannot be exported; it names the reason and the user's line of code.
        SlowCaptureError: not in reasonable time with these sizes symbolic.
    """
    _refuse_python_at_each_call(module)
    _refuse_tensor_classes(module)
    tensor_index = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and i not in flags]
    shapes = tuple({a: torch.export.Dim.AUTO for j, a in dynamic if j == i} or None for i in tensor_index)
    reads = AttributeReads(module)
    seconds: dict[str, float] = {}
    asked: set[str] = set()
    branches = Branches([leaves[i] for i in tensor_index], module) if branching else None
    wrapper = _Wrapper(module, leaves, spec, reads, flags, branches)
    autocast_off = [torch.autocast(device, enabled=False) for device, _ in wrapper._autocast]
    with (
        patches.LOCK,
        patches.deferred_interrupt(),
        same_random_states(module),
        warnings.catch_warnings(),
        contextlib.ExitStack() as stack,
    ):
        warnings.simplefilter("ignore")
        for context in autocast_off:
            stack.enter_context(context)
        stack.enter_context(own_tables(module, threading.get_ident()))
        calls = stack.enter_context(patches.traced_module_calls(reads, branches))
        stack.enter_context(recorded_settings(asked, threading.get_ident()))
        if dynamic:
            stack.enter_context(tracing_time.bounded_tracing())
        if from_one:
            stack.enter_context(sizes_of_one.free_sizes())
        try:
            example = _distinct([leaves[i] for i in tensor_index])
            wanted = (shapes,) if shapes else None
            program = _timed(
                seconds, "export", lambda: torch.export.export(wrapper, example, dynamic_shapes=wanted, strict=False)
            )
            regions.inline_regions(program)
            regions.join_ties(program)
            if from_one:
                sizes_of_one.refuse_written_copies(program)
            writes.keep_histories(program)
            regions.refuse_control_flow(program.graph_module)
            if not regions.is_convertible(program.graph_module):
                writes.refuse_kept_histories(program.graph_module)
                program = _timed(seconds, "functionalize", lambda: program.run_decompositions({}))
            data_writes.restore_parameters(program.constants)
        except ORTModuleError:
            raise
        except Exception as error:
            text = " ".join(str(error).split())
            raise CaptureError(f"{type(error).__name__}: {text[:500]}", source_lines.user_source_line(error)) from error
    compat.release_example_inputs(program)
    result = wrapper.result
    assert result.spec is not None
    attributes = [(owner, name, value) for (owner, name), value in reads.values.items()]
    return Exported(
        program, tensor_index, result.outputs, result.spec, result.left_on_modules, calls, attributes,
        reads.changed, sorted(asked), branches.asked if branches else [], seconds, from_one,
    )  # fmt: skip


def _distinct(tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The example tensors, with a stand-in for each that is given twice: export would take the two for one for ever."""
    distinct: list[torch.Tensor] = []
    for i, tensor in enumerate(tensors):
        repeated = any(tensor is other for other in tensors[:i])
        distinct.append(torch.empty_like(tensor).requires_grad_(tensor.requires_grad) if repeated else tensor)
    return tuple(distinct)


def _timed(seconds: dict[str, float], name: str, run: Any) -> Any:
    start = time.perf_counter()
    result = run()
    seconds[name] = time.perf_counter() - start
    return result
