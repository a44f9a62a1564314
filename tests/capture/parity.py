"""Compares a captured graph, executed by the tests' interpreter, with the module it came from."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import onnx
import torch

from ortmodule.capture import Captured
from ortmodule.capture.containers.nodes import flatten, leaves_of, unflatten

from .interpreter import run


def call(
    captured: Captured, module: torch.nn.Module, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> Any:
    """The module's result as the captured graph gives it; what the forward writes is written back."""
    leaves, spec = flatten((args, kwargs or {}))
    assert spec == captured.in_spec
    assert captured.check([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]) is None
    env = run(captured, leaves, module)
    state = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    results: list[Any] = []
    for ref in captured.outputs:
        if ref.kind == "constant":
            results.append(ref.value)
        elif ref.kind == "input":
            results.append(leaves[ref.flat_index] if ref.flat_index is not None else state[ref.name])
        else:
            results.append(int(env[ref.name]) if ref.kind == "size" else env[ref.name])
    for name, kind, target in captured.mutations:
        (leaves[target] if kind == "input" else state[target]).data.copy_(env[name])
    return unflatten(results, captured.out_spec)


def assert_same_training(
    captured: Captured,
    module: torch.nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    loss: Any = lambda r: r,
    exact: bool = False,
) -> None:
    """Loss, every gradient (parameters and inputs) and every buffer equal eager's, with the same random draws."""
    twin = copy.deepcopy(module)
    mine, theirs = ([copy.deepcopy(x) for x in ((args, kwargs or {}))] for _ in range(2))
    torch.manual_seed(5)
    expected = loss(twin(*theirs[0], **theirs[1]))
    torch.manual_seed(5)
    got = loss(call(captured, module, mine[0], mine[1]))
    tolerance = dict(rtol=0, atol=0) if exact else dict(rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(got, expected, **tolerance)
    if expected.requires_grad:
        expected.backward()
        got.backward()
    for (name, p), q in zip(module.named_parameters(), twin.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), f"gradient of {name} exists in one only"
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, **tolerance, msg=lambda m, n=name: f"gradient of {n}: {m}")
            p.grad = None
    for (name, p), q in zip(module.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(p, q, **tolerance, msg=lambda m, n=name: f"buffer {n}: {m}")
    for a, b in zip(leaves_of(mine), leaves_of(theirs), strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b, **tolerance)
            torch.testing.assert_close(a.grad, b.grad, **tolerance) if b.is_leaf and b.grad is not None else None


def aten_nodes(captured: Captured) -> Counter[str]:
    """The operators that the graph leaves to ATen, with their counts."""
    nodes = [n for n in captured.model.graph.node if n.op_type == "ATen"]
    return Counter(a.s.decode() for n in nodes for a in n.attribute if a.name == "operator")


def operators(captured: Captured) -> list[str]:
    """The operator types of the graph, in order."""
    return [n.op_type for n in captured.model.graph.node]


def assert_valid(captured: Captured) -> None:
    """The model passes the ONNX checker, and its inputs are what `Captured` says, in order."""
    onnx.checker.check_model(captured.model)
    names = [i.name for i in captured.model.graph.input]
    assert names == [n for _, n in captured.user_inputs] + captured.parameters + captured.buffers + list(
        captured.constants
    )
    outputs = [o.name for o in captured.model.graph.output]
    mine = list(dict.fromkeys(r.name for r in captured.outputs if r.kind in ("tensor", "size")))
    assert outputs == mine + [name for name, _, _ in captured.mutations]
