"""Passes written in Python: as docs/extending.md shows them, in a session and in ORTModule, forward and gradient; what
they may ask and do; errors, threads, branches, and the engine's own passes left out."""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx.parser
import pytest
import torch
from torch import nn

import ortmodule
from ortmodule import InferenceSession, InvalidArgumentError, Options, ORTModule, SessionOptions, graph_pass

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()


def documented() -> ortmodule.GraphPass:
    """The pass that the page shows, run as it is written there."""
    code = re.search(r"```python\n(import ortmodule\n\n\n@ortmodule.graph_pass.*?)```", PAGE, re.DOTALL)
    assert code
    names: dict[str, Any] = {}
    exec(code[1], names)
    assert len([line for line in code[1].splitlines() if line.strip()]) <= 12
    return names["fuse_quick_gelu"]


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        return (h * torch.sigmoid(1.702 * h)).square().sum()


def operators(model: ORTModule) -> list[str]:
    plans = [half for ready in model._manager.transitions() for half in ready.session.plans()]
    return [step["op"] for half in plans for step in half["steps"]]


def compared(model: ORTModule, module: nn.Module, x: torch.Tensor) -> None:
    given, same = x.clone().requires_grad_(), x.clone().requires_grad_()
    for one, its in ((model, given), (module, same)):
        one.zero_grad()
        one(its).backward()
    torch.testing.assert_close(given.grad, same.grad)
    ours = {name.removeprefix("module."): p.grad for name, p in model.named_parameters()}
    for name, p in module.named_parameters():
        torch.testing.assert_close(ours[name], p.grad)


def test_the_documented_pass_fuses_forward_and_gradient_in_ortmodule() -> None:
    module = Gated()
    model = ORTModule(copy.deepcopy(module), options=Options(passes=(documented(),), fusion=False, fallback="error"))
    for batch in (3, 5, 1):
        compared(model, module, torch.randn(batch, 4))
    found = operators(model)
    assert "com.microsoft::QuickGelu" in found and "Sigmoid" not in found
    plain = ORTModule(module, options=Options(fusion=False))
    plain(torch.randn(3, 4))
    assert "Sigmoid" in operators(plain)


MODEL = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 18]>
    agraph (float[N, 4] x) => (float[N, 4] y) <float alpha = {1.702}>
    { s = Mul(x, alpha)  g = Sigmoid(s)  y = Mul(x, g) }
""")


def run(*passes: ortmodule.GraphPass, model: Any = MODEL, disabled: tuple[str, ...] = ()) -> tuple[Any, Any]:
    """(the session's core, its result for x = [0 .. 7])."""
    options = SessionOptions()
    for one in passes:
        options.register_pass(one)
    options.disabled_passes = disabled
    session = InferenceSession(model, options)
    return session._session, session.run(None, {"x": torch.arange(8.0).view(2, 4)})[0]


def test_the_documented_pass_fuses_in_a_session() -> None:
    core, y = run(documented())
    x = torch.arange(8.0).view(2, 4)
    torch.testing.assert_close(torch.from_numpy(y), x * torch.sigmoid(1.702 * x))
    assert "QuickGelu" in core.plan_text() and "Sigmoid" not in core.plan_text()
    done = {(stage, name): changes for stage, name, _, changes, _ in core.statistics()["passes"]}
    assert done["forward", "fuse_quick_gelu"] > 0
    assert list(ortmodule.pass_names())[0] == "identity_elimination"
    assert ("forward", "dead_node_elimination") in done


def test_a_pass_sees_the_graph_and_may_build_in_it() -> None:
    seen: dict[str, Any] = {}

    @graph_pass(name="doubles")
    def doubles(graph: ortmodule.Graph) -> None:
        (gate,) = graph.nodes("Sigmoid")
        if seen:
            return
        first, second = graph.nodes("Mul")
        seen["repr"] = [repr(graph), repr(gate), repr(gate.inputs[0])]
        seen["node"] = (gate.op, gate.domain, gate.phase, gate.attributes, graph.stage)
        x = graph.inputs[0]
        seen["value"] = (x.name, x.dtype, x.shape, x.constant, x.producer, x.is_graph_input)
        assert x.readers == [first, second] and first.inputs[0] == x and first != second and len({first, second}) == 2
        assert graph.outputs[0].is_graph_output and graph.outputs[0].producer == second
        low, high = gate.emit("Split", [gate.inputs[0]], outputs=2, axis=1, num_outputs=2)
        half = gate.emit("Concat", [low, high], axis=1)
        more = gate.emit("Mul", [half, 2])  # a number takes the type of the value beside it
        same = gate.emit("Mul", [more, graph.constant(torch.tensor([0.5]))])
        gate.replace("Sigmoid", [same])

    _, y = run(doubles)
    x = torch.arange(8.0).view(2, 4)
    torch.testing.assert_close(torch.from_numpy(y), x * torch.sigmoid(1.702 * x))
    assert seen["node"] == ("Sigmoid", "", "forward", {}, "forward")
    assert seen["value"] == ("x", 1, ("N", 4), None, None, True)
    assert seen["repr"][0] == "<Graph of 3 nodes>"


def failing(act: Callable[[ortmodule.Graph], Any], error: type[Exception], *words: str) -> None:
    with pytest.raises(error) as caught:
        run(graph_pass(name="broken")(act))
    for word in ("broken", *words):
        assert word in str(caught.value), caught.value


def test_what_a_pass_does_wrong_is_said_with_its_name() -> None:
    failing(lambda g: 1 / 0, InvalidArgumentError, "ZeroDivisionError")
    failing(lambda g: g.nodes("Sigmoid")[0].remove(), InvalidArgumentError, "results are read")
    failing(lambda g: g.inputs[0].replace(g.outputs[0]), InvalidArgumentError, "is an input or a constant")
    failing(lambda g: g.outputs[0].replace(g.constant([1])), InvalidArgumentError, "cannot replace", "int64")
    failing(
        lambda g: g.nodes("Mul")[0].replace("Sigmoidd", [g.inputs[0]]),
        InvalidArgumentError,
        "UnsupportedError",
        "Sigmoid",
    )
    failing(lambda g: g.nodes("Mul")[0].replace("Add", [g.inputs[0], object()]), InvalidArgumentError, "object")

    def circle(g: ortmodule.Graph) -> None:
        first = g.nodes("Mul")[0]
        first.outputs[0].replace(first.emit("Neg", [g.outputs[0]]))

    failing(circle, ortmodule.InvalidGraphError, "cycle")


def test_what_a_pass_holds_dies_with_it() -> None:
    held: list[Any] = []

    @graph_pass
    def keeps(graph: ortmodule.Graph) -> None:
        gate = graph.nodes("Sigmoid")
        held.extend([graph, *gate, graph.inputs[0]])
        if gate and gate[0].inputs[0].producer and gate[0].inputs[0].producer.op == "Mul":
            old, value = gate[0].inputs[0].producer, gate[0].inputs[0]
            old.replace("Mul", old.inputs)
            for use in (lambda: old.op, lambda: value.name):
                with pytest.raises(InvalidArgumentError, match="removed was used"):
                    use()
            raise KeyError("enough")

    with pytest.raises(InvalidArgumentError, match="enough"):
        run(keeps)
    for use in (lambda: held[0].nodes(), lambda: held[1].op, lambda: held[2].name, lambda: repr(held[1])):
        with pytest.raises(InvalidArgumentError, match="after the pass returned"):
            use()


def test_a_joint_pass_sees_both_halves() -> None:
    phases: list[tuple[str, set[str]]] = []

    @graph_pass(stage="both")
    def look(graph: ortmodule.Graph) -> None:
        phases.append((graph.stage, {node.phase for node in graph.nodes()}))

    module = Gated()
    compared(ORTModule(copy.deepcopy(module), options=Options(passes=(look,))), module, torch.randn(3, 4))
    assert ("forward", {"forward"}) in phases and ("joint", {"forward", "backward"}) in phases


def test_bodies_of_control_flow_are_graphs_of_their_own() -> None:
    body = (
        "then_branch = g1 () => (float[N, 4] t) { t = Neg(x) }, else_branch = g2 () => (float[N, 4] e) { e = Abs(x) }"
    )
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 18]>
        agraph (float[N, 4] x, bool c) => (float[N, 4] y) {{ y = If(c) <{body}> }}
    """)
    seen: list[list[str]] = []

    @graph_pass
    def negated(graph: ortmodule.Graph) -> None:
        seen.append([node.op for node in graph.nodes()])
        for node in graph.nodes("Neg"):
            node.replace("Abs", node.inputs)

    options = SessionOptions()
    options.register_pass(negated)
    y = InferenceSession(model, options).run(None, {"x": -torch.ones(1, 4), "c": torch.tensor(True)})[0]
    assert (y == 1).all() and ["If"] in seen and ["Neg"] in seen


def test_passes_are_left_out_by_name() -> None:
    names = ("identity_elimination", "common_subexpression_elimination")
    core, _ = run(disabled=names)
    assert not {name for _, name, *_ in core.statistics()["passes"]} & set(names)
    with pytest.raises(InvalidArgumentError, match="did you mean 'fuse_stack'"):
        Options(disabled_passes=("fuse_stak",))
    with pytest.raises(InvalidArgumentError, match="cannot be disabled"):
        run(disabled=("decompose_attention",))
    model = ORTModule(Gated(), options=Options(disabled_passes=["fuse_stack"], fallback="error"))
    model(torch.randn(2, 4)).backward()


def test_an_unknown_option_of_a_session_is_an_error() -> None:
    options = SessionOptions()
    with pytest.raises(InvalidArgumentError, match="no option 'disabled_pases'; did you mean 'disabled_passes'"):
        options.disabled_pases = ("fuse_stack",)  # type: ignore[attr-defined]
    options.disabled_passes = ("fuse_stack",)
    assert options.disabled_passes == ("fuse_stack",)


def test_bad_passes_are_refused_at_once() -> None:
    for bad in (
        lambda: Options(passes=(print,)),
        lambda: Options(passes=(documented(), documented())),
        lambda: graph_pass(name="fuse_stack")(print),
        lambda: graph_pass(stage="late")(print),
        lambda: graph_pass(3),  # type: ignore[call-overload]
    ):
        with pytest.raises((InvalidArgumentError, TypeError)):
            bad()


def test_interrupts_pass_through() -> None:
    @graph_pass
    def interrupted(graph: ortmodule.Graph) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(interrupted)


def test_threads_compile_with_one_pass_at_once() -> None:
    one = documented()
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(run(one)[1])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and all((r == results[0]).all() for r in results)


def test_a_copy_of_a_model_keeps_its_passes() -> None:
    module = Gated()
    model = copy.deepcopy(ORTModule(module, options=Options(passes=(documented(),), fusion=False)))
    compared(model, module, torch.randn(2, 4))
    assert "com.microsoft::QuickGelu" in operators(model)
