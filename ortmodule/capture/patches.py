"""What a capture replaces in torch and in Python, for its time.

`traced_module_calls` replaces, for the duration of one capture and for the capturing thread only, the few functions of
torch whose effect an export would lose without a word:

- `autograd.Function.apply`: traced through, the user's backward would be lost; becomes `ortmodule::python_op`.
- `Tensor.data`: export takes what is made from it for a constant; becomes `detach`.
- `len`: its result must be an int, so `len(x)` would fix the size; becomes `x.shape[0]`.
- `_VF.lstm`, `_VF.gru`, `_VF.rnn_*`: unrolled over time; become operators whose sequence length stays symbolic.
- the truth of a tensor (`if mask.any():`) or of a number made from one (`if lengths.max().item() > 4:`): export cannot
  know it; where asked for, what `branches.py` answers.
- Packed sequences and the CTC loss: their sizes come from data; sequences.py.
- `utils.checkpoint`: the region is forgotten (or, reentrant, cut off from autograd); checkpoints.py.
- Functions that a trace does not take well, which become the same in other operators: equivalents.py.
- `BatchNorm(momentum=None)`: reads its count of calls as a Python number; the factor becomes a tensor.
- `x[i]` under vmap, which an attention mask may be made with: becomes the operator it stands for.
- `linecache.getline`: torch notes the whole stack with each node and reads the source of each of its own files for it,
  a tenth of the time and 3 MB that stay; lines of torch's files are left empty.
- `torch.cond`: a trace of its own, which needs Dynamo; becomes a Python branch.
- Operators of torch's own without a shape rule (`fake_quantize`): tried on made-up tensors; trials.py.
- Setting a tensor's `.data`: becomes a write of its values.
- The numbers that torch gives a collective's handle: drawn from Python's generator, as if the forward had drawn them.
- `functools.lru_cache`: emptied afterwards where it holds tensors of the trace.
- hooks on tensors, `retain_grad`, `autograd.grad` inside forward: dropped in silence; become a `CaptureError`.

The patches are process-global, hence `LOCK`. No graph is read or written here.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import gc
import itertools
import linecache
import logging
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import sympy
import torch

# torch.export loads these on its first call, seconds and 60 MB that would count as the first step's.
import torch._dynamo._trace_wrapped_higher_order_op as torch_vmap_items
import torch._export.passes
import torch.export._trace as export_trace
import torch.fx.traceback as fx_traceback
import torch.nn.modules.batchnorm as torch_batchnorm
import torch.nn.modules.transformer as torch_transformer
import torch.utils.checkpoint as torch_checkpoint
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, UnsupportedOperatorException
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

from ..errors import CaptureError
from . import composites, equivalents, gradient_modes, library, sequences  # noqa: F401  library defines the operators that the patches emit
from .autocast import recurrent
from .checkpoints import marked_call, marked_generator
from .data_writes import replaced_data
from .function_call import FunctionCall, call_function_class, tracing
from .raises import truth_that_goes_on
from .reads import AttributeReads, recorded_reads
from .settings import replaced
from .source_lines import TORCH_ROOT, current_source_line
from .trials import operator_results

if TYPE_CHECKING:
    from .branches import Branches

__all__ = ["LOCK", "captured_elsewhere", "deferred_interrupt", "traced_module_calls"]

LOCK = threading.RLock()
_capturing: list[int] = []  # the thread that captures
_handle_numbers = itertools.count(10**9 + 1)  # torch's end before
# Functions of torch's own whose backward is no derivative that a trace of their forward would have.
_OPAQUE_FUNCTIONS = ("torch.distributions.", "torch.nn.modules._functions")


def captured_elsewhere() -> bool:
    """Whether another thread captures at this moment."""
    return any(thread != threading.get_ident() for thread in _capturing)


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Holds a Ctrl-C back until its end: in the midst of torch's dispatch an exception may end the whole process.

    A second one is not held back.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    held: list[tuple[int, types.FrameType | None]] = []

    def hold(number: int, frame: types.FrameType | None) -> None:
        if held:
            handler(number, frame)
        held.append((number, frame))

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            handler(*held[0])


@contextlib.contextmanager
def traced_module_calls(reads: AttributeReads, branches: Branches | None = None) -> Iterator[list[FunctionCall]]:
    """Installs the patches; yields the list that collects the traced calls of custom autograd Functions.

    Args:
        reads: receives every plain attribute that the forward reads.
        branches: answers what the forward asks about its inputs; None: such a question ends the trace.
    """
    calls: list[FunctionCall] = []
    thread = threading.get_ident()
    with _quiet_torch(), contextlib.ExitStack() as stack:
        _capturing.append(thread)
        stack.callback(_capturing.pop)
        stack.enter_context(_replaced_apply(thread))
        stack.enter_context(replaced_data(thread))
        stack.enter_context(_replaced_len(thread))
        for owner, name, make in (*_patches(), *_questions(branches)):
            stack.enter_context(_replaced(owner, name, make, thread))
        for name, elsewhere in (("call_module", _called_plainly), ("getattr", _read_plainly)):
            stack.enter_context(_replaced(proxy_tensor._ModuleStackTracer, name, _unchanged, thread, elsewhere))
        stack.enter_context(recorded_reads(reads, thread))
        stack.enter_context(fx_traceback.preserve_node_meta())
        stack.callback(_forget_traced_results)
        tracing.calls = calls
        try:
            yield calls
        finally:
            tracing.calls = None


def _forget_traced_results() -> None:
    """Empties every `functools.lru_cache` of the user's that holds a tensor of the trace, which is no real one."""
    for found in gc.get_referrers(functools._lru_cache_wrapper):  # an object refers to its type; half get_objects' time
        if type(found) is functools._lru_cache_wrapper and not str(found.__module__).startswith("torch."):
            if any(map(_holds_traced, gc.get_referents(found))):
                found.cache_clear()


def _holds_traced(value: Any) -> bool:
    if type(value) in (list, tuple, dict):
        return any(map(_holds_traced, value.values() if type(value) is dict else value))
    return isinstance(value, FakeTensor)


@contextlib.contextmanager
def _quiet_torch() -> Iterator[None]:
    """torch logs pages about a size or a shape that export trips over; CaptureError says the same in a sentence."""
    names = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    # It also prints the graph as far as it came; the module's own name hides the builtin there.
    export_trace.print = lambda *args, **kwargs: None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del export_trace.print  # type: ignore[attr-defined]
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


@contextlib.contextmanager
def _replaced(
    owner: Any, name: str, make: Callable[[Any], Any], thread: int, elsewhere: Callable[..., Any] | None = None
) -> Iterator[None]:
    """Sets `owner.name` to `make(original)`, which other threads never see: they are sent to `elsewhere`, which is the
    original where it is None.
    """
    raw = vars(owner).get(name)
    original = getattr(owner, name)
    replacement = make(raw.__func__ if isinstance(raw, classmethod) else original)

    @functools.wraps(replacement)
    def dispatch(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread:
            return replacement(*args, **kwargs)
        if elsewhere is not None:
            return elsewhere(*args, **kwargs)
        return raw.__func__(*args, **kwargs) if isinstance(raw, classmethod) else original(*args, **kwargs)

    with replaced(owner, name, classmethod(dispatch) if isinstance(raw, classmethod) else dispatch):
        yield


# While torch traces, every call of a module and every look-up on one goes through the tracer, in every thread.


def _unchanged(original: Any) -> Any:
    return original


def _called_plainly(tracer: Any, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
    return forward(*args, **kwargs)


def _read_plainly(tracer: Any, name: str, value: Any, cache: Any) -> Any:
    return value


def _patches() -> list[tuple[Any, str, Callable[[Any], Any]]]:
    regions = itertools.count()
    table: list[tuple[Any, str, Callable[[Any], Any]]] = [
        (torch_checkpoint, "_checkpoint_without_reentrant_generator", lambda original: marked_generator(regions)),
        (torch_checkpoint.CheckpointFunction, "apply", lambda original: marked_call(regions)),
    ]
    table.append((linecache, "getline", _but_torch_lines))
    table.append((torch_transformer, "_detect_is_causal_mask", lambda original: _causal_hint))
    table.append((torch_batchnorm._BatchNorm, "forward", _batch_norm))
    # What `x[i]` is under vmap: torch's own has a node of its own in an export, this one is the operator it stands for.
    table.append((torch_vmap_items, "mod_index", lambda original: torch.ops.aten.index))
    table.append((torch, "cond", lambda original: _cond))
    table += equivalents.patches()
    table.append((proxy_tensor, "maybe_handle_decomp", _taken_apart))
    table += [
        (torch._VF, name, functools.partial(_recurrent, name)) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    ]
    table.append((FakeTensorMode, "_dispatch_impl", _with_trials))
    table += sequences.patches()
    table += gradient_modes.patches()
    handles = sys.modules.get("torch.distributed._meta_registrations")
    if hasattr(handles, "generate_unique_id"):
        table.append((handles, "generate_unique_id", lambda original: functools.partial(next, _handle_numbers)))
    refused = [
        (torch.Tensor, "register_hook"), (torch.Tensor, "register_post_accumulate_grad_hook"),
        (torch.Tensor, "retain_grad"), (torch.Tensor, "backward"), (torch.autograd, "grad"),
        (torch.autograd, "backward"),
    ]  # fmt: skip
    return table + [(owner, name, functools.partial(_refused, name)) for owner, name in refused]


def _taken_apart(original: Any) -> Any:
    def handle(mode: Any, operator: Any, args: Any, kwargs: Any) -> Any:
        if not composites.is_taken_apart(operator):
            return original(mode, operator, args, kwargs)
        with mode:
            return operator.decompose(*args, **kwargs)

    return handle


def _but_torch_lines(original: Any) -> Any:
    def line(filename: str, *args: Any, **kwargs: Any) -> str:
        return "" if filename.startswith(TORCH_ROOT) else original(filename, *args, **kwargs)

    return line


def _causal_hint(mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    """What the caller says of the mask: nn.Transformer would look at its values, only to compute the same faster."""
    return is_causal is True


def _cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    return true_fn(*operands) if pred else false_fn(*operands)


def _batch_norm(original: Any) -> Any:
    """Keeps the factor of a cumulative average (`momentum=None`) a tensor; torch would make a Python number of it."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        cumulative = self.training and self.track_running_stats and self.momentum is None
        if not cumulative or self.num_batches_tracked is None:
            return original(self, x)
        self._check_input_dim(x)
        mean, var = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
        y = torch.nn.functional.batch_norm(x, mean, var, self.weight, self.bias, True, 1.0, self.eps)
        with torch.no_grad():
            factor = 1.0 / self.num_batches_tracked.add_(1)
            self.running_mean.add_((mean - self.running_mean) * factor)
            self.running_var.add_((var - self.running_var) * factor)
        return y

    return forward


def _with_trials(original: Any) -> Any:
    def dispatch(self: Any, operator: Any, types: Any, args: Any, kwargs: Any) -> Any:
        try:
            return original(self, operator, types, args, kwargs)
        except UnsupportedOperatorException:
            with self:
                results = operator_results(operator, args, kwargs)
            if results is NotImplemented:
                raise
            return results

    return dispatch


def _questions(branches: Branches | None) -> list[tuple[Any, str, Callable[[Any], Any]]]:
    if branches is None:
        return []

    def answered(original: Any) -> Any:
        def ask(self: torch.Tensor) -> Any:
            known = None
            if isinstance(self, FakeTensor) and (self.dtype == torch.bool or original.__name__ == "__bool__"):
                asker = _asking_frame(sys._getframe())
                known = branches.answer(self, current_source_line, lambda: truth_that_goes_on(asker))
            return original(self) if known is None else known

        return ask

    def evaluated(original: Any) -> Any:
        def evaluate(self: ShapeEnv, expression: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(self, expression, *args, **kwargs)
            except GuardOnDataDependentSymNode:
                known = branches.number(expression, current_source_line)
                if known is None:
                    raise
                answer = sympy.sympify(known)
                # What else is decided about these numbers must agree with it. Torch 2.11 keeps no fact about floating
                # numbers alone: each further question about them is answered from the same data.
                if any(symbol.is_integer for symbol in expression.free_symbols):
                    truth = expression if known else sympy.Not(expression)
                    fact = truth if isinstance(known, bool) else sympy.Eq(expression, answer)
                    self.guard_or_defer_runtime_assert(fact, "a branch on data")
                return answer

        return evaluate

    tensors = [(torch.Tensor, name, answered) for name in ("__bool__", "item")]
    return [*tensors, (ShapeEnv, "evaluate_expr", evaluated)]


def _asking_frame(frame: types.FrameType) -> types.FrameType:
    """The innermost frame that is not of this file."""
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame


@contextlib.contextmanager
def _replaced_apply(thread: int) -> Iterator[None]:
    """Replaces the code of `autograd.Function.apply`, not the attribute: `self.gelu = Gelu.apply` was bound before."""
    function = vars(torch.autograd.Function)["apply"].__func__
    code, namespace = function.__code__, function.__globals__
    original = types.FunctionType(code, namespace, "apply", function.__defaults__, function.__closure__)

    def dispatch(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
        of_torch = cls.__module__.startswith("torch.") and not cls.__module__.startswith(_OPAQUE_FUNCTIONS)
        if threading.get_ident() != thread or tracing.calls is None or of_torch:
            return original(cls, *args, **kwargs)
        return call_function_class(cls, args, kwargs)

    # The new code runs with the old function's globals, and needs as many free variables as the old has (`__class__`).
    free: Any = None

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        assert free is not NotImplemented
        return globals()["_ortmodule_apply"](cls, *args, **kwargs)

    namespace["_ortmodule_apply"] = dispatch
    function.__code__ = apply.__code__
    try:
        yield
    finally:
        function.__code__ = code
        del namespace["_ortmodule_apply"]


@contextlib.contextmanager
def _replaced_len(thread: int) -> Iterator[None]:
    """Makes `len` of a traced tensor its first size, which may be symbolic."""
    original = builtins.len

    def length(value: Any, /) -> Any:
        if isinstance(value, FakeTensor) and value.dim() > 0 and threading.get_ident() == thread:
            return value.shape[0]
        return original(value)

    setattr(builtins, "len", length)  # noqa: B010
    try:
        yield
    finally:
        setattr(builtins, "len", original)  # noqa: B010


def _recurrent(name: str, original: Any) -> Any:
    operator = getattr(torch.ops.ortmodule, name)

    def call(x: torch.Tensor, hx: Any, params: Any, *rest: Any) -> Any:
        if rest and isinstance(rest[0], (list, tuple)):  # the packed-sequence form has batch_sizes in second place
            return sequences.packed_recurrent(name, x, hx, params, *rest)
        bias, layers, dropout, train, bidirectional, batch_first = rest
        states = list(hx) if name == "lstm" else hx
        settings = (bias, layers, float(dropout), train, bidirectional, batch_first)
        return recurrent(name, lambda *operands: operator(*operands, *settings), x, states, list(params))

    return call


def _refused(name: str, original: Any) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        text = f"`{name}` is called inside forward; a captured graph cannot honour it"
        raise CaptureError(text, current_source_line(), differentiates=name in ("grad", "backward"))

    return refuse
