"""Collectives over two and four ranks against one process that knows what each rank has: values and gradients; their
order, their overlap with other work, and what is said where something does not fit."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from onnx import TensorProto, helper

from ortmodule import _C, InvalidGraphError, UnsupportedError
from ortmodule.errors import ORTModuleError
from tests.distributed.spawn import on_ranks

OWN = "ai.ortmodule"
SHAPES = [
    (4,),
    (8, 3),
    (4, 1),
    (12, 5),
    (16, 2, 3),
    (4, 0),
    (64, 64),
    (8, 7, 1),
    (20,),
    (4, 4, 4, 4),
    (128, 3),
    (32, 33),
]


def session(op: str, shape: tuple[int, ...], world: int, group: str, **attributes: Any) -> _C.Session:
    """y = tanh(op(exp(x)))."""
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node(op, ["e"], ["r"], domain=OWN, group=group, world=world, **attributes),
        helper.make_node("Tanh", ["r"], ["y"]),
    ]
    return compiled(nodes, {"x": shape}, ["y"])


def compiled(
    nodes: list[Any],
    inputs: dict[str, tuple[Any, ...]],
    outputs: list[str],
    train: bool = True,
    inner: dict[str, tuple[Any, ...]] | None = None,
) -> _C.Session:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    types = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in (inner or {}).items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(OWN, 1), helper.make_opsetid("org.pytorch.aten", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", infos, results, value_info=types), opset_imports=opsets)
    mode, trainable = ("training", list(inputs)) if train else ("inference", [])
    return _C.Session(model.SerializeToString(), mode, trainable)


# What each rank gets of what all have.
REFERENCE: dict[str, Callable[[list[torch.Tensor]], list[torch.Tensor]]] = {
    "AllGather": lambda xs: [torch.cat(xs)] * len(xs),
    "ReduceScatter": lambda xs: list(torch.stack(xs).sum(0).chunk(len(xs))),
    "AllReduce": lambda xs: [torch.stack(xs).sum(0)] * len(xs),
    "AllToAll": lambda xs: [torch.cat([x.chunk(len(xs))[r] for x in xs]) for r in range(len(xs))],
}


def check_gradients(rank: int, world: int) -> None:
    group = dist.group.WORLD.group_name
    for op, reference in REFERENCE.items():
        for shape in SHAPES:
            torch.manual_seed(sum(shape))
            xs = [torch.randn(shape).requires_grad_() for _ in range(world)]
            expected = [torch.tanh(r) for r in reference([x.exp() for x in xs])]
            weights = [torch.randn(r.shape) for r in expected]
            sum((e * w).sum() for e, w in zip(expected, weights, strict=True)).backward()  # type: ignore[union-attr]
            x = xs[rank].detach().clone().requires_grad_()
            (y,) = session(op, shape, world, group).run([x])
            torch.testing.assert_close(y, expected[rank], msg=f"{op} {shape}")
            (y * weights[rank]).sum().backward()
            torch.testing.assert_close(x.grad, xs[rank].grad, msg=f"gradient of {op} {shape}")


def check_gradients_where_all_go_on_alike(rank: int, world: int) -> None:
    """What is made of a result on all ranks counts once; tensor parallelism's two halves."""
    group = dist.group.WORLD.group_name
    torch.manual_seed(0)
    xs = [torch.randn(8, 3) for _ in range(world)]
    given = torch.randn(8 * world, 3)  # the same gradient on all ranks
    for op, attributes, grad, expected in (
        ("AllReduce", {"alike": 1}, given[:8], given[:8]),
        ("AllGather", {"alike": 1}, given, given.chunk(world)[rank]),
        ("CopyToRanks", {}, given[:8] * (rank + 1), given[:8] * (world * (world + 1) // 2)),
    ):
        x = xs[rank].clone().requires_grad_()
        node = helper.make_node(op, ["x"], ["y"], domain=OWN, group=group, world=world, **attributes)
        (y,) = compiled([node], {"x": (8, 3)}, ["y"]).run([x])
        y.backward(grad)
        torch.testing.assert_close(x.grad, expected, msg=op)


def check_maximum(rank: int, world: int) -> None:
    xs = [torch.arange(8.0) * (r - 1) for r in range(world)]
    for reduction, reference in (("max", torch.amax), ("min", torch.amin)):
        attributes = {"group": dist.group.WORLD.group_name, "world": world, "reduction": reduction}
        node = helper.make_node("AllReduce", ["x"], ["y"], domain=OWN, **attributes)
        (y,) = compiled([node], {"x": (8,)}, ["y"], train=False).run([xs[rank]])
        assert torch.equal(y, reference(torch.stack(xs), 0))


def check_many_in_a_row(rank: int, world: int) -> None:
    """A chain of gathers and scatters whose starts run ahead of other work, forward and backward."""
    group = dist.group.WORLD.group_name
    nodes, h = [], "x"
    for i in range(6):
        nodes += [
            helper.make_node("AllGather", [f"w{i}"], [f"g{i}"], domain=OWN, group=group, world=world),
            helper.make_node("MatMul", [h, f"g{i}"], [f"m{i}"]),
            helper.make_node("Tanh", [f"m{i}"], [f"h{i}"]),
        ]
        h = f"h{i}"
    torch.manual_seed(1)
    whole = [torch.randn(8 * world, 8 * world).div(4).requires_grad_() for _ in range(6)]
    x = torch.randn(5, 8 * world)
    parts = [w.detach().chunk(world)[rank].clone().requires_grad_() for w in whole]
    shapes = {"x": (5, 8 * world), **{f"w{i}": (8, 8 * world) for i in range(6)}}
    core = compiled(nodes, shapes, [h])
    for _ in range(3):
        expected = x
        for w in whole:
            expected = torch.tanh(expected @ w)
        (y,) = core.run([x, *parts])
        torch.testing.assert_close(y, expected)
        y.sum().backward()
        (expected.sum() * world).backward()  # every rank has the same loss, and they add up
        for part, w in zip(parts, whole, strict=True):
            torch.testing.assert_close(part.grad, w.grad.chunk(world)[rank])


def check_gathers_side_by_side(rank: int, world: int) -> None:
    """The two threads of a gloo group, each at a gather of its own, thousands of times."""
    group = dist.group.WORLD.group_name
    started = {"domain": OWN, "group": group, "world": world, "async": 1}
    nodes = [helper.make_node("AllGather", [f"x{i}"], [f"s{i}"], **started) for i in range(4)]
    nodes += [helper.make_node("CollectiveWait", [f"s{i}"], [f"g{i}"], domain=OWN) for i in range(4)]
    nodes.append(helper.make_node("Sum", [f"g{i}" for i in range(4)], ["y"]))
    core = compiled(nodes, {f"x{i}": (16,) for i in range(4)}, ["y"], train=False)
    expected = torch.arange(world).repeat_interleave(16) * 10.0 + 6
    for _ in range(4000):
        (y,) = core.run([torch.full((16,), rank * 2.5 + i) for i in range(4)])
        assert torch.equal(y, expected)


def worker(rank: int, world: int) -> None:
    for check in (check_gradients, check_gradients_where_all_go_on_alike, check_maximum, check_many_in_a_row):
        check(rank, world)
    if world == 2:
        check_gathers_side_by_side(rank, world)


@pytest.mark.parametrize("world", [2, 4])
def test_values_and_gradients_are_those_of_one_process(world: int) -> None:
    on_ranks(world, worker, world)


# -- overlap -----------------------------------------------------------------------------------------------------------

SECONDS = 0.3


class SlowGroup(dist.ProcessGroup):
    """One rank, whose collectives take their time."""

    def getBackendName(self) -> str:
        return "slow"

    def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> Any:
        return finished_after(SECONDS, tensors)


def finished_after(seconds: float, tensors: list[torch.Tensor]) -> Any:
    from threading import Timer

    from torch._C._distributed_c10d import _create_work_from_future

    future: Any = torch.futures.Future()
    Timer(seconds, future.set_result, [tensors]).start()
    return _create_work_from_future(future)


@torch.library.custom_op("ortmodule_tests::slow", mutates_args=())
def slow(x: torch.Tensor) -> torch.Tensor:
    time.sleep(SECONDS)
    return x.clone()


SLOW = {"operator": "ortmodule_tests::slow", "arguments": ["t"]}


@pytest.fixture(scope="module")
def slow_group() -> str:
    from torch._C import _distributed_c10d as c10d

    group = SlowGroup(0, 1)
    slow_group.held = group  # type: ignore[attr-defined]
    c10d._register_process_group("ortmodule.tests.slow", group)
    return "ortmodule.tests.slow"


def steps_of(core: _C.Session) -> list[dict[str, Any]]:
    return core.plans()[0]["steps"]


def test_a_start_runs_ahead_and_its_wait_stands_before_the_reader() -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("Sin", ["b"], ["c"]),
        helper.make_node("AllReduce", ["a"], ["r"], domain=OWN, group="any", world=1),
        helper.make_node("Add", ["c", "r"], ["y"]),
    ]
    core = compiled(nodes, {"x": (4,)}, ["y"], train=False)
    steps = steps_of(core)
    names = [step["op"].removeprefix(f"{OWN}::") for step in steps]
    assert names.index("AllReduce") < names.index("Sin") < names.index("CollectiveWait"), names
    kinds = {step["op"]: (step["kind"], step["stream"]) for step in steps}
    assert kinds[f"{OWN}::AllReduce"] == ("LaunchKernel", 1)
    assert kinds[f"{OWN}::CollectiveWait"] == ("WaitOnEP", 0)
    assert core.plans()[0]["streams"] == ["cpu", "communication"]
    text = core.plan_text()
    assert re.search(r"AllReduce.*\n *ActivateNotification 0", text), text
    assert re.search(r"Barrier 0\n.*CollectiveWait", text), "gloo has no queue: the host waits"


def test_other_work_runs_while_a_slow_group_works(slow_group: str) -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("ATen", ["x"], ["w"], domain="org.pytorch.aten", **SLOW),
        helper.make_node("AllReduce", ["e"], ["r"], domain=OWN, group=slow_group, world=1),
        helper.make_node("Add", ["w", "r"], ["y"]),
    ]
    core = compiled(nodes, {"x": (4,)}, ["y"], train=False, inner={"w": (4,)})
    x = torch.randn(4)
    took = float("inf")
    for _ in range(4):  # of which one is not held up by whatever else runs here
        start = time.perf_counter()
        (y,) = core.run([x])
        took = min(took, time.perf_counter() - start)
        torch.testing.assert_close(y, x + x.exp())
    assert SECONDS <= took < 1.6 * SECONDS, f"{took:.2f} s for two things of {SECONDS} s each"


def test_backward_gathers_the_next_weight_before_it_sums_a_gradient() -> None:
    nodes, h, inputs = [], "x", {"x": (4, 8)}
    for i in range(3):
        gather = {"group": "any", "world": 2, "again": 1, "window": 8 * 8 * 4}  # one at a time
        nodes += [
            helper.make_node("AllGather", [f"w{i}"], [f"g{i}"], domain=OWN, **gather),
            helper.make_node("MatMul", [h, f"g{i}"], [f"m{i}"]),
            helper.make_node("Tanh", [f"m{i}"], [f"h{i}"]),
        ]
        h, inputs[f"w{i}"] = f"h{i}", (4, 8)
    forward, backward = compiled(nodes, inputs, [h]).plans()
    assert forward["streams"] == ["cpu", "communication"]
    starts = [(s["op"], s["inputs"][0]["name"]) for s in backward["steps"] if s["notifies"] is not None]
    assert [op.removeprefix(f"{OWN}::") for op, _ in starts] == [
        "AllGather", "AllGather", "ReduceScatter", "AllGather", "ReduceScatter", "ReduceScatter",
    ]  # fmt: skip
    assert [name for op, name in starts if op.endswith("AllGather")] == ["w2", "w1", "w0"]


def test_what_is_on_its_way_is_bounded() -> None:
    """Gathers of 40 MiB each: the second starts when the first has arrived."""
    rows = 40 * 2**20 // 4
    nodes = []
    for i in range(3):
        nodes += [
            helper.make_node("AllGather", [f"w{i}"], [f"g{i}"], domain=OWN, group="any", world=2),
            helper.make_node("ReduceMax", [f"g{i}"], [f"m{i}"], keepdims=0),
        ]
    nodes.append(helper.make_node("Sum", ["m0", "m1", "m2"], ["y"]))
    core = compiled(nodes, {f"w{i}": (rows // 2,) for i in range(3)}, ["y"], train=False)
    flying = most = 0
    for step in steps_of(core):
        flying += (step["notifies"] is not None) - len(step["waits_for"])
        most = max(most, flying)
    assert most == 1
    starts = [step["inputs"][0]["name"] for step in steps_of(core) if step["notifies"] is not None]
    assert starts == ["w0", "w1", "w2"], "the same order on all ranks"


@pytest.mark.parametrize("again", [0, 1])
def test_a_gathered_weight_is_freed_and_gathered_again_where_it_is_said(again: int) -> None:
    nodes = [
        helper.make_node("AllGather", ["w"], ["g"], domain=OWN, group="any", world=2, again=again),
        helper.make_node("Split", ["g"], ["a", "b"], axis=0, num_outputs=2),
        helper.make_node("MatMul", ["x", "a"], ["m"]),
        helper.make_node("Tanh", ["m"], ["t"]),
        helper.make_node("MatMul", ["t", "b"], ["y"]),
    ]
    core = compiled(nodes, {"x": (4, 8), "w": (8, 8)}, ["y"])
    forward, backward = ([step["op"].removeprefix(f"{OWN}::") for step in plan["steps"]] for plan in core.plans())
    assert forward.count("AllGather") == 1
    assert backward.count("AllGather") == again
    assert backward.count("ReduceScatter") == 1


# -- errors ------------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_said() -> None:
    for error, words, op, shape, world, attributes in (
        (InvalidGraphError, "cannot be divided among 3 ranks", "ReduceScatter", (4,), 3, {}),
        (InvalidGraphError, "at least one rank, got 0", "AllGather", (4,), 0, {}),
        (InvalidGraphError, "a scalar has no axis", "AllGather", (), 2, {}),
        (InvalidGraphError, "sum, max or min, got 'mean'", "AllReduce", (4,), 2, {"reduction": "mean"}),
        (UnsupportedError, "only a sum has a gradient", "AllReduce", (4,), 2, {"reduction": "max"}),
    ):
        with pytest.raises(error, match=re.escape(words)):
            session(op, shape, world, "any", **attributes)
    with pytest.raises(ORTModuleError, match="AllReduce"):
        session("AllReduce", (4,), 2, "no such group").run([torch.zeros(4)])
