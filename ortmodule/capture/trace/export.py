"""Runs `torch.export` on a module in its present mode, hardened against what an export loses without a word.

What export sees is a wrapper of the module (wrapper.py). What is replaced in torch meanwhile is in patches/; how
regions and mutations in the graph are resolved is in rewrite/.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch._export.passes
import torch.fx.traceback as fx_traceback
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from ...errors import (
    CaptureError,
    ORTModuleError,
    SlowCaptureError,
    UndecidedError,
    UnfitCallError,
    UnloadedModuleError,
)
from .. import source_lines, torch_private
from ..attempts import Attempt
from ..containers.flattening import CallShape
from ..containers.given import FoundChange
from ..result_order import ResultOrder
from ..rewrite import itself, regions, writes
from .aliases import stand_ins
from .branches import Branch, Branches
from .function_call import FunctionCall
from .messages import SaidLine, SaidWarning, same_registries
from .patches import tensor_data
from .patches.sizes import unit_sizes
from .patching import deferred_interrupt, entries, installed
from .refusals import refuse_python_at_each_call, refuse_replaced_methods, refuse_tensor_classes
from .repeats.repeats import Repeats
from .side_outputs import SideOutputs
from .state.left_settings import same_settings
from .state.random_states import same_random_states
from .state.scope_settings import STRIDES, refuse_inference_tensors
from .tracing import LOCK, TraceState, TracingAnswer, running
from .wrapper import TraceAudit, Wrapper

__all__ = ["Exported", "TraceAudit", "export_module"]

# torch.export loads what these patch on its first call: seconds and 60 MB that would count as the first step's.
entries()


@dataclasses.dataclass
class Exported:
    """An exported program and what the export itself does not say.

    Attributes:
        program: the ExportedProgram of the wrapper; its parameters are named `module.<FQN>`.
        tensor_index: for each input tensor of the program, its index among the call's flat leaves.
        outputs: one per flat output leaf: ("value", position among the program's outputs), ("constant", value),
            ("given", index among the call's leaves), ("container", number of one that the call is given), ("again",
            number of one of the result) or ("object", what gives it).
        out_spec: pytree spec of the module's result.
        left_on_modules: (module, attribute, pytree spec) of what the forward sets on modules; their leaves follow the
            result's among `outputs`.
        given_changes: what it changes of containers that it is given, and the pytree spec of that; their leaves follow.
        calls: the custom autograd Functions that the graph refers to.
        changed_attributes: names of the parameters and buffers that the forward changed in a way no graph can.
        settings: what of the call's settings the forward asked about (scope_settings.py).
        branches: the questions about the inputs' values that the forward asked.
        seconds: wall seconds per step of the export.
        from_one: whether symbolic sizes may be 1.
        messages: what the forward says at each call.
        hook_order: names of the module's tensors and indices of the call's leaves that get a gradient, in the order in
            which hooks hear of it.
        histories: those that the forward has written and that have a history then.
        result_order: of the program's outputs, by their positions.
        recorded: what wanted a gradient in the trace, as in `hook_order`; None: the forward writes nothing.
        saved: what autograd has saved of it in the end, as in `hook_order`.
        saved_left: places in the traced result of what the forward has made, leaves behind and autograd has saved.
    """

    program: torch.export.ExportedProgram
    tensor_index: list[int]
    outputs: list[tuple[str, Any]]
    out_spec: pytree.TreeSpec
    left_on_modules: list[tuple[torch.nn.Module, str, pytree.TreeSpec]]
    given_changes: list[tuple[FoundChange, pytree.TreeSpec]]
    calls: list[FunctionCall]
    changed_attributes: list[str]
    settings: list[str]
    branches: list[Branch]
    seconds: dict[str, float]
    from_one: bool
    messages: list[SaidWarning | SaidLine]
    hook_order: list[str | int]
    histories: list[str | int]
    result_order: ResultOrder
    recorded: list[str | int] | None
    saved: list[str | int]
    saved_left: list[int]


def export_module(
    module: torch.nn.Module,
    leaves: list[Any],
    shape: CallShape,
    attempt: Attempt,
    audit: TraceAudit | None = None,
    tracing: TracingAnswer | None = None,
    tried_imports: frozenset[str] = frozenset(),
) -> Exported:
    """Exports `module` for a call with these leaves, in its present mode and under the caller's autocast.

    Args:
        module: the user's module; its parameters, buffers and random state are left as they are.
        leaves, shape: the call, as `flatten_call` gives it.
        attempt: which sizes are symbolic, and where branches go.
        audit: hears of the forward.
        tracing: what the forward is told where it asks whether it is traced, and hears whether it has.
        tried_imports: modules that the forward may import within the trace.

    Raises:
        CaptureError: the module cannot be exported; it names the reason and the user's line of code.
        SlowCaptureError: not in reasonable time with these sizes symbolic.
    """
    refuse_replaced_methods()
    refuse_python_at_each_call(module, audit is not None)
    refuse_tensor_classes(module, leaves)

    def run(repeats: Repeats | None) -> Exported:
        return _exported(module, leaves, shape, attempt, audit, tracing, tried_imports, repeats)

    repeats = Repeats(module) if audit is not None else None
    try:
        exported = run(repeats)
        left = exported.left_on_modules or exported.given_changes or (audit is not None and audit.has_changed())
        if repeats is None or not repeats.count or (repeats.holds and not left):
            return exported
    except (SlowCaptureError, UndecidedError, UnfitCallError, UnloadedModuleError):
        raise
    except ORTModuleError:
        if repeats is None or not repeats.count:
            raise
    return run(None)


def _exported(
    module: torch.nn.Module,
    leaves: list[Any],
    shape: CallShape,
    attempt: Attempt,
    audit: TraceAudit | None,
    tracing: TracingAnswer | None,
    tried_imports: frozenset[str],
    repeats: Repeats | None,
) -> Exported:
    dynamic, from_one = attempt.dynamic | attempt.optional, attempt.from_one
    tensor_index = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and i not in attempt.flags]
    tensors = [leaves[i] for i in tensor_index]
    shapes = tuple({a: torch.export.Dim.AUTO for j, a in dynamic if j == i} or None for i in tensor_index)
    branches = Branches(tensors, module) if attempt.branching else None
    state = TraceState(module, SideOutputs(module), branches, bool(dynamic), from_one)
    state.tracing, state.tried_imports, state.repeats = tracing or TracingAnswer(), tried_imports, repeats
    wrapper = Wrapper(module, leaves, shape, state, attempt.flags, audit)
    seconds: dict[str, float] = {}
    left = torch_private.without_left_hooks()
    with _speaking(state), _undisturbed(wrapper, state), torch_private.without_marks(tensors), left:
        try:
            example = stand_ins(tensors, [i in wrapper.aliases for i in tensor_index])
            wanted = (shapes,) if shapes else None
            program = _timed(
                seconds, "export", lambda: torch.export.export(wrapper, example, dynamic_shapes=wanted, strict=False)
            )
            refuse_inference_tensors(state.asked, leaves, module)
            program = _rewritten(program, state, seconds)
            tensor_data.restore_parameters(program.constants)
        except Exception as error:
            if (refusal := _refusal(error, state)) is error:
                raise
            raise refusal from error
        finally:
            if repeats is not None:
                repeats.clear()
    torch_private.release_example_inputs(program)
    result = wrapper.result
    assert result.spec is not None
    calls, state.calls = state.calls, []  # torch may keep the wrapper, and with it the state, for a while
    return Exported(
        program, tensor_index, result.outputs, result.spec, result.left_on_modules, result.given_changes, calls,
        result.changed, sorted(state.asked), branches.asked if branches else [], seconds, from_one, state.messages.said,
        result.hook_order, result.histories, result.result_order, result.recorded,
        result.saved, result.saved_left,
    )  # fmt: skip


def _refusal(error: Exception, state: TraceState) -> Exception:
    """What to raise where a trace ends in `error`."""
    if isinstance(state.refusal, UnloadedModuleError):  # the forward may have caught that
        return state.refusal
    if isinstance(error, ORTModuleError):
        return error
    kind = UndecidedError if torch_private.is_undecided(error) else CaptureError
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
    return kind(text, source_lines.user_source_line(error))


@contextlib.contextmanager
def _speaking(state: TraceState) -> Iterator[None]:
    """Says in the end what only a first call says: a later one finds that it was said, wherever it runs."""
    try:
        with same_registries():
            yield
    finally:
        state.messages.say_once()


@contextlib.contextmanager
def _undisturbed(wrapper: Wrapper, state: TraceState) -> Iterator[None]:
    """Within it a trace can run; in the end everything of the user's is as it was."""
    with (
        LOCK,
        deferred_interrupt(),
        same_random_states(state.module),
        same_settings(),
        warnings.catch_warnings(),
        contextlib.ExitStack() as stack,
    ):
        warnings.simplefilter("ignore")
        for device, _ in wrapper.autocast:
            stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(running(state))
        stack.enter_context(installed(state))
        stack.enter_context(fx_traceback.preserve_node_meta())
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:  # hooks are not to see the trace
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is))
        yield


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _rewritten(
    program: torch.export.ExportedProgram, state: TraceState, seconds: dict[str, float]
) -> torch.export.ExportedProgram:
    """The program without regions, and with writes that the converter can resolve."""
    itself.see_through(program.graph_module)
    regions.inline_regions(program)
    regions.join_ties(program)
    writes.refuse_overlapping(program.graph_module)
    if writes.reads_layouts(program.graph_module, state.uncopied):
        state.asked.add(STRIDES)
    if state.from_one:
        unit_sizes.refuse_written_copies(program)
    writes.keep_histories(program)
    regions.refuse_control_flow(program.graph_module)
    if not regions.is_convertible(program.graph_module):
        writes.refuse_kept_histories(program.graph_module)
        _forget_values(program)
        program = _timed(seconds, "functionalize", lambda: program.run_decompositions({}))
    return program


def _forget_values(program: torch.export.ExportedProgram) -> None:
    """Torch traces a program again to functionalise it. What it knows of a constant's value then, nobody hears of."""
    for node in program.graph.nodes:
        if isinstance(node.meta.get("val"), FakeTensor):
            node.meta["val"].constant = None


def _timed(seconds: dict[str, float], name: str, run: Any) -> Any:
    start = time.perf_counter()
    result = run()
    seconds[name] = time.perf_counter() - start
    return result
