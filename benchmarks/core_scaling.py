"""How the engine's compile time grows with the graph: chains of 1,000 / 10,000 / 100,000 nodes, stage by stage.

    python benchmarks/core_scaling.py --nodes 1000,10000,100000 --json out.json

Each chain goes, as bytes of an ONNX model, through import, resolve, transforms, gradient and plan, in training mode.
The table gives seconds per stage and microseconds per node, which stay level when the cost is linear. --symbolic makes
the batch size a symbol, --run also runs one step and compares the loss with PyTorch's.
Not here: capture in Python (`ORTModule.report()` gives its seconds for a real model).
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import torch
from onnx import TensorProto, helper

from common import facts, table, write_json

LIMIT_SECONDS = {100_000: 20.0}  # what the project promises for two cores
PARAMETERS = 16
WIDTH, BATCH = 8, 4
# One period of the chain: the operator and whether a parameter is its second operand. Values stay bounded.
PERIOD = (("Mul", True), ("Tanh", False), ("Add", True), ("Sigmoid", False), ("Sub", True), ("Neg", False))


def chain(nodes: int, symbolic: bool = False) -> tuple[bytes, list[str]]:
    """A model of `nodes` nodes over x[4, 8] with 16 parameters of [8]; its bytes and its parameters' names."""
    names = [f"w{i}" for i in range(PARAMETERS)]
    shape: list[int | str] = ["batch" if symbolic else BATCH, WIDTH]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    inputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, [WIDTH]) for name in names]
    body, value, used = [], "x", 0
    for i in range(nodes - 1):
        op, parametric = PERIOD[i % len(PERIOD)]
        operands = [value]
        if parametric:
            operands.append(names[used % PARAMETERS])
            used += 1
        value = f"v{i}"
        body.append(helper.make_node(op, operands, [value], name=f"n{i}"))
    body.append(helper.make_node("ReduceMean", [value], ["loss"], name="loss", keepdims=0))
    output = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    graph = helper.make_graph(body, "chain", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    return model.SerializeToString(), names[: min(used, PARAMETERS)]


def reference(nodes: int, x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    run = {
        "Mul": torch.mul,
        "Add": torch.add,
        "Sub": torch.sub,
        "Tanh": torch.tanh,
        "Sigmoid": torch.sigmoid,
        "Neg": torch.neg,
    }
    used = 0
    for i in range(nodes - 1):
        op, parametric = PERIOD[i % len(PERIOD)]
        x = run[op](x, weights[used % PARAMETERS]) if parametric else run[op](x)
        used += parametric
    return x.mean()


def step(session: Any, nodes: int, trainable: list[str]) -> float:
    """Seconds of one step; its loss must be PyTorch's.

    Raises:
        AssertionError: the losses differ.
    """
    torch.manual_seed(0)
    x, weights = torch.randn(BATCH, WIDTH), [torch.rand(WIDTH) for _ in range(PARAMETERS)]
    given = {"x": x, **{f"w{i}": w.requires_grad_(f"w{i}" in trainable) for i, w in enumerate(weights)}}
    start = time.perf_counter()
    loss = session.run([given[name] for name in session.input_names])[0]
    loss.backward()
    seconds = time.perf_counter() - start
    with torch.no_grad():
        torch.testing.assert_close(loss.detach(), reference(nodes, x, weights), rtol=1e-4, atol=1e-5)
    return seconds


def measure(nodes: int, symbolic: bool, run: bool) -> dict[str, Any]:
    from ortmodule import _C

    model, trainable = chain(nodes, symbolic)
    start = time.perf_counter()
    session = _C.Session(model, "training", trainable, {})
    wall = time.perf_counter() - start
    statistics = session.statistics()
    row: dict[str, Any] = {
        "nodes": nodes,
        "model_mib": len(model) / 2**20,
        "wall_s": wall,
        "stages_s": dict(statistics["seconds"]),
        "forward_nodes": statistics["forward_nodes"],
        "backward_nodes": statistics["backward_nodes"],
        "limit_s": LIMIT_SECONDS.get(nodes),
    }
    if run:
        row["step_s"] = step(session, nodes, trainable)
    return row


def text(rows: list[dict[str, Any]]) -> str:
    """The table; a stage that ran more than once is one column."""
    stages = list(dict.fromkeys(name for row in rows for name in row["stages_s"]))
    header = ["nodes", "forward", "backward", *(f"{name} s" for name in stages), "all s", "us per node", "step s"]
    lines = []
    for row in rows:
        seconds = [f"{row['stages_s'].get(name, 0.0):.3f}" for name in stages]
        each = 1e6 * row["wall_s"] / row["nodes"]
        own = f"{row['step_s']:.3f}" if "step_s" in row else "-"
        counts = [f"{row[key]:,}" for key in ("nodes", "forward_nodes", "backward_nodes")]
        lines.append([*counts, *seconds, f"{row['wall_s']:.3f}", f"{each:.1f}", own])
    return table(header, lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=lambda v: [int(n) for n in v.split(",")], default=[1_000, 10_000, 100_000])
    parser.add_argument("--symbolic", action="store_true", help="a symbol for the batch size")
    parser.add_argument("--run", action="store_true", help="run one step too and compare its loss with PyTorch's")
    parser.add_argument("--json", metavar="OUT")
    args = parser.parse_args(argv)
    rows = [measure(nodes, args.symbolic, args.run) for nodes in args.nodes]
    print(text(rows))
    if args.json:
        write_json(args.json, {"environment": facts(), "symbolic": args.symbolic, "rows": rows})
    late = [row for row in rows if row["limit_s"] and row["wall_s"] > row["limit_s"]]
    for row in late:
        print(f"{row['nodes']:,} nodes took {row['wall_s']:.1f} s, more than the {row['limit_s']:.0f} s promised")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
