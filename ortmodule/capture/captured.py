"""The product of a capture: an ONNX graph, and all that is needed to run it in the module's place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import onnx
import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from .output_refs import GivenChange, OutputRef, SideOutput
from .result_order import ResultOrder
from .trace.branches import Branch
from .trace.function_call import FunctionCall
from .trace.messages import SaidLine, SaidWarning

__all__ = ["Captured", "Trace"]


@dataclasses.dataclass(frozen=True)
class Trace:
    """What a graph was made from, kept for debugging.

    Attributes:
        program: the exported program; its placeholders are the graph's inputs.
        sources: for each placeholder, ("input", flat leaf index) or ("parameter" | "buffer" | "constant", name).
        results: for each node of the program that became operators: it, and the graph value (or values) it became.
    """

    program: torch.export.ExportedProgram
    sources: dict[Node, tuple[str, str | int]]
    results: list[tuple[Node, Any]]


@dataclasses.dataclass
class Captured:
    """The product of `capture`.

    Attributes:
        model: the graph; it holds no weights.
        user_inputs: (index among the call's flat leaves, graph input name), in graph input order.
        parameters, buffers: FQNs that are graph inputs, in order; a tied tensor has its first name.
        constants: tensors that are neither parameter nor buffer, by graph input name.
        outputs: one per flat leaf of the module's result.
        mutations: (graph output name, "buffer" | "parameter" | "input", FQN or flat leaf index) to be written back.
        in_spec, out_spec: pytree specs of (args, kwargs) and of the result.
        baked: (flat leaf index, value) for the call's leaves that are not tensors; the graph holds for these only.
        changed_attributes: parameters and buffers that the forward changes in a way no graph can.
        settings: the call's settings that the forward asked about; the graph holds for their present answers only.
        guards: the conditions on input sizes, as text.
        check: called with the call's flat tensors in order; the text of the first failed condition, or None.
        specialized: a sentence for each size that was asked to be dynamic and that the module fixes.
        fixed: those of the optional sizes that the module fixes.
        needs_python: objects that the graph refers to by number and that must live as long as it.
        seconds: wall seconds per step.
        trace: what the graph was made from; only where `capture` was asked to keep it.
        flags: by flat leaf index, the values of the tensors that were baked in.
        messages: what the forward says at each call: warnings, lines of a log.
        left: the attributes that the forward sets on its modules without a look at what they were.
        given_changes: what it changes of lists, dicts and objects that it is given.
        branches: the questions about values of the inputs, whose answers were baked in; `check` asks them too.
        hook_order: graph inputs in the order in which eager's hooks hear of their gradients; empty: autograd recorded
            nothing.
        histories: graph inputs that have a history after the forward, as far as autograd recorded anything.
        recorded: graph inputs that wanted a gradient in the trace, where autograd would have refused a write that is
            none of a graph's matter; None: the forward writes nothing.
        saved_writes: graph inputs that the forward writes and that autograd has saved since.
        saved_left: graph outputs that it leaves behind and that autograd has saved.
        repeats: (text, condition, object) of what eager's backward reads again (torch.utils.checkpoint); the audit's.
        result_order: which tensors of the result are computed from which others, as autograd recorded it, by name.
    """

    model: onnx.ModelProto
    user_inputs: list[tuple[int, str]]
    parameters: list[str]
    buffers: list[str]
    constants: dict[str, torch.Tensor]
    outputs: list[OutputRef]
    mutations: list[tuple[str, str, str | int]]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    baked: list[tuple[int, Any]]
    changed_attributes: list[str]
    settings: list[str]
    guards: list[str]
    check: Callable[[Sequence[torch.Tensor]], str | None]
    specialized: list[str]
    fixed: frozenset[tuple[int, int]]
    needs_python: list[FunctionCall]
    seconds: dict[str, float]
    trace: Trace | None = None
    flags: dict[int, Any] = dataclasses.field(default_factory=dict)
    branches: list[Branch] = dataclasses.field(default_factory=list)
    left: list[SideOutput] = dataclasses.field(default_factory=list)
    given_changes: list[GivenChange] = dataclasses.field(default_factory=list)
    messages: list[SaidWarning | SaidLine] = dataclasses.field(default_factory=list)
    hook_order: list[str] = dataclasses.field(default_factory=list)
    histories: list[str] = dataclasses.field(default_factory=list)
    recorded: list[str] | None = None
    saved_writes: list[str] = dataclasses.field(default_factory=list)
    saved_left: list[str] = dataclasses.field(default_factory=list)
    repeats: Sequence[tuple[str, Any, Any]] = ()
    result_order: ResultOrder = dataclasses.field(default_factory=ResultOrder)

    @property
    def result_refs(self) -> list[OutputRef]:
        """Of the result, of what is left on modules, and of what is changed of what the call is given."""
        return [*self.outputs, *self.beside]

    @property
    def beside(self) -> list[OutputRef]:
        """The same without the result."""
        return [*(r for one in self.left for r in one.leaves), *(r for one in self.given_changes for r in one.leaves)]

    @property
    def needs_given(self) -> bool:
        """Whether a call's own containers are changed, or are parts of its result."""
        return bool(self.given_changes) or any(ref.kind == "container" for ref in self.result_refs)

    @property
    def shares_containers(self) -> bool:
        """Whether a container of the result, or of what is left on modules, stands in several places."""
        return any(ref.kind == "again" for ref in self.result_refs)
