"""What a graph with branches gains when its nodes run side by side.

    python benchmarks/side_by_side.py --branches 2 --threads 2 --json out.json

A model of B towers of D products of [N, N] matrices and a tanh each, and the sum of their ends, run by
`InferenceSession` in turns: one node at a time with one thread (`one by one`), one at a time with all threads
(`threads per operator`), and as many nodes at a time as there are threads, each with one (`side by side`). Beside it
`torch alone`: what as many Python threads, each with products of this size of its own, gain over one that does all of
them, on this machine at that moment; more than that cannot be had. Milliseconds, medians of rounds; `best`: of the
fastest round each. `idle` is the processor time that the pool's threads take in a second without work.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from common import facts, settings, table, write_json


def towers(branches: int, depth: int, size: int) -> onnx.ModelProto:
    random, nodes, weights, ends = np.random.default_rng(0), [], [], []
    for branch in range(branches):
        at = "x"
        for step in range(depth):
            name = f"{branch}_{step}"
            weight = (random.standard_normal((size, size)) / np.sqrt(size)).astype(np.float32)
            weights.append(numpy_helper.from_array(weight, f"w{name}"))
            nodes.append(helper.make_node("MatMul", [at, f"w{name}"], [f"p{name}"]))
            nodes.append(helper.make_node("Tanh", [f"p{name}"], [f"t{name}"]))
            at = f"t{name}"
        ends.append(at)
    nodes.append(helper.make_node("Sum", ends, ["y"]))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size, size]) for name in "xy"]
    graph = helper.make_graph(nodes, "towers", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def session_of(model: onnx.ModelProto, mode: str, inter: int, intra: int) -> Any:
    from ortmodule import InferenceSession, SessionOptions

    options = SessionOptions()
    options.execution_mode = mode
    options.inter_op_num_threads = inter
    options.intra_op_num_threads = intra
    return InferenceSession(model, options)


def products(size: int, count: int, threads: int) -> None:
    """`count` products for each of `threads` threads."""

    def work() -> None:
        torch.set_num_threads(1)
        a = torch.ones(size, size)
        for _ in range(count):
            torch.mm(a, a)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def measure(args: argparse.Namespace) -> dict[str, Any]:
    model = towers(args.branches, args.depth, args.size)
    sessions = {
        "one by one": session_of(model, "sequential", 1, 1),
        "threads per operator": session_of(model, "sequential", 1, args.threads),
        "side by side": session_of(model, "parallel", args.threads, 1),
    }
    feeds = {"x": np.random.default_rng(1).standard_normal((args.size, args.size)).astype(np.float32)}
    results = {name: session.run(None, feeds)[0] for name, session in sessions.items()}
    if not np.array_equal(results["one by one"], results["side by side"]):
        raise SystemExit("the results differ")
    count = args.branches * args.depth
    runs: dict[str, Callable[[], Any]] = {
        name: lambda session=session: session.run(None, feeds) for name, session in sessions.items()
    }  # type: ignore[misc]
    runs["torch, one thread"] = lambda: products(args.size, count, 1)
    runs["torch, threads"] = lambda: products(args.size, count // args.threads, args.threads)
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(args.rounds):
        for name, run in runs.items():
            time.sleep(0.02)  # OpenMP's threads look for work for some milliseconds after a loop
            begin = time.perf_counter()
            run()
            samples[name].append(1e3 * (time.perf_counter() - begin))
    begin = time.process_time()
    time.sleep(1)
    idle = time.process_time() - begin
    medians = {name: statistics.median(times) for name, times in samples.items()}
    fastest = {name: min(times) for name, times in samples.items()}
    gains = {
        kind: {
            "side by side": times["one by one"] / times["side by side"],
            "threads per operator": times["one by one"] / times["threads per operator"],
            "torch alone": times["torch, one thread"] / times["torch, threads"],
        }
        for kind, times in (("median", medians), ("best", fastest))
    }
    return {"ms": medians, "fastest_ms": fastest, "gains": gains, "idle_seconds": idle}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--branches", type=int, default=2)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", metavar="OUT")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result = measure(args)
    print(table(("", "ms", "fastest"), [
        (name, f"{ms:.2f}", f"{result['fastest_ms'][name]:.2f}") for name, ms in result["ms"].items()
    ]))  # fmt: skip
    print()
    print(table(("gain over one by one", "median", "best"), [
        (name, f"{gain:.2f}", f"{result['gains']['best'][name]:.2f}")
        for name, gain in result["gains"]["median"].items()
    ]))  # fmt: skip
    print(f"idle: {1e3 * result['idle_seconds']:.1f} ms of processor time in a second")
    if args.json:
        write_json(args.json, {"environment": facts(threads=args.threads), "settings": settings(args), **result})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
