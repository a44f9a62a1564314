"""What a step of sharded training would take on 8 to 4,096 GPUs, by a model of the network: nothing runs.

    python benchmarks/scale_sim.py [--tflops 400 --node-gbps 400 --net-gbps 40 --micro-batch 1 ...]
    python benchmarks/scale_sim.py --check        # the same model against gloo ranks of this machine

A step is what the planner makes of it (csrc/transforms/split_collectives.h, distributed/reducer.py): a layer's
computation after another; a gather starts when those ahead of it fit into the window, a sum when its bucket is full,
and both lie on one link in the order of their starts. A ring over n ranks moves (n - 1) / n of the operand, at the
speed of the slowest link that it crosses, with a latency a hop (Thakur, Rabenseifner, Gropp, 2005). Bandwidths,
the speed of computing and latencies are inputs; what a GPU reaches is not known here.
Not here: activations exchanged by tensor, expert or pipeline parallelism, the optimizer's step, and stragglers.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

import torch

from ortmodule.distributed import ZeroPolicy, memory_estimate

MIB, GIB = 1 << 20, 1 << 30


@dataclasses.dataclass(frozen=True)
class Layer:
    """Trained elements, and operations of a forward over one sequence (a backward has twice as many)."""

    elements: int
    flops: float


@dataclasses.dataclass(frozen=True)
class Model:
    """`kept`: bytes of activations that a layer keeps for backward, a sequence."""

    name: str
    layers: tuple[Layer, ...]
    kept: float

    @property
    def elements(self) -> int:
        return sum(layer.elements for layer in self.layers)


@dataclasses.dataclass(frozen=True)
class Network:
    """Bytes per second of a GPU's link within a node and between nodes, seconds of a hop in each."""

    per_node: int
    inside: float
    between: float
    hop_inside: float
    hop_between: float

    def ring(self, size: float, ranks: int, stride: int = 1) -> float:
        """Seconds of a gather to, or a sum of, `size` bytes over `ranks` GPUs that lie `stride` apart."""
        if ranks == 1:
            return 0.0
        nodes = max(-(-ranks * stride // self.per_node), 1)
        hops = min(nodes, ranks) - 1
        speed = self.between if nodes > 1 else self.inside
        return (ranks - 1) / ranks * size / speed + hops * self.hop_between + (ranks - 1 - hops) * self.hop_inside


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a model is trained. `shards` of `world` ranks divide a copy among them; `flops`: a GPU's, per second."""

    stage: int
    world: int
    shards: int
    bucket: int
    window: int
    sequences: int
    flops: float
    narrow: int = 2  # bytes of an element that is gathered
    wide: int = 4  # and of one that is summed


@dataclasses.dataclass(frozen=True)
class Step:
    """Seconds: of the step, of its computation, for which the link was busy; and bytes on a GPU."""

    total: float
    compute: float
    link: float
    memory: float

    @property
    def exposed(self) -> float:
        return (self.total - self.compute) / self.link if self.link else 0.0


def buckets_of(model: Model, limit: int, width: int) -> list[list[Layer]]:
    """Consecutive layers of at most `limit` bytes together; a larger one by itself."""
    out: list[list[Layer]] = []
    for layer in model.layers:
        if not out or sum(one.elements for one in out[-1]) * width + layer.elements * width > limit:
            out.append([])
        out[-1].append(layer)
    return out


def simulate(model: Model, network: Network, given: Setting) -> Step:
    """One step, in the steady state."""
    buckets = buckets_of(model, given.bucket, given.narrow)
    elements = [sum(layer.elements for layer in bucket) for bucket in buckets]
    forward = [sum(layer.flops for layer in bucket) * given.sequences / given.flops for bucket in buckets]
    copies = given.world // given.shards

    def gather(i: int) -> float:
        return network.ring(elements[i] * given.narrow, given.shards)

    def reduce(i: int) -> float:
        return network.ring(elements[i] * given.wide, given.shards)

    order = range(len(buckets))
    time = free = busy = 0.0

    def send(asked: float, seconds: float) -> float:
        nonlocal free, busy
        free, busy = max(asked, free) + seconds, busy + seconds
        return free

    ahead = [max(int(given.window // max(n * given.narrow, 1)), 1) for n in elements]
    for sums, walk in ((False, order), (True, order[::-1])):
        places = list(walk)
        there: dict[int, float] = {}
        if given.stage < 3 and not sums:  # all are on their way since the step before
            there = {i: send(0.0, gather(i)) for i in places}
        for at, i in enumerate(places):
            if given.stage == 3:
                for j in places[at : at + 1 + ahead[i]]:
                    if j not in there:
                        there[j] = send(time, gather(j))
            time = max(time, there.get(i, 0.0)) + forward[i] * (2 if sums else 1)
            if sums:
                send(time, reduce(i))
    for i in order:  # over the copies (hybrid sharding), when backward is done (distributed/reducer.py)
        send(time, 2 * network.ring(elements[i] * given.wide / given.shards, copies, given.shards))
    policy = ZeroPolicy(master_dtype=torch.float32)
    held = memory_estimate(
        model.elements, stage=given.stage, world=given.shards, policy=policy, dtype=torch.bfloat16
    ).total
    moving = 0 if given.stage < 3 else given.window + max(elements) * (given.narrow + given.wide)
    memory = held + moving + model.kept * len(model.layers) * given.sequences
    return Step(max(time, free), 3 * sum(forward), busy, memory)


def transformer(
    name: str,
    layers: int,
    width: int,
    inner: int,
    words: int,
    length: int,
    *,
    kv: int = 0,
    experts: int = 0,
    gated: bool,
) -> Model:
    """A decoder. With experts two of them compute for each token. 2 operations a multiply-add (Kaplan et al., 2020)."""
    matrices = 3 if gated else 2
    attention = 2 * width * width + 2 * width * (kv or width)
    block = attention + matrices * width * inner * max(experts, 1) + width * experts
    active = attention + matrices * width * inner * (2 if experts else 1)
    own = Layer(block, 2 * length * active + 2 * 2 * length * length * width / 2)
    ends = Layer(words * width, 0.0), Layer(words * width, 2.0 * length * words * width)
    kept = 2.0 * length * (8 * width + 2 * inner * (2 if experts else 1))  # 16-bit, attention recomputed by rows
    return Model(name, (ends[0], *[own] * layers, ends[1]), kept)


MODELS = (
    transformer("GPT-3 13B", 40, 5120, 20480, 50257, 2048, gated=False),
    transformer("Mixtral-like 8x7B", 32, 4096, 14336, 32000, 4096, kv=1024, experts=8, gated=True),
)


def best(model: Model, network: Network, args: argparse.Namespace, world: int, stage: int) -> tuple[Step, Setting]:
    """The quickest of the buckets and meshes that fit into a GPU; where none does, the smallest."""
    choices = []
    for shards in sorted({world, min(args.per_node, world), min(64, world)}):
        for bucket in (25 * MIB, 100 * MIB, 400 * MIB, 1600 * MIB):
            given = Setting(stage, world, shards, bucket, 2 * bucket, args.micro_batch, args.tflops * 1e12)
            choices.append((simulate(model, network, given), given))
    fitting = [one for one in choices if one[0].memory <= args.memory * GIB]
    return min(fitting, key=lambda one: one[0].total) if fitting else min(choices, key=lambda one: one[0].memory)


def table(args: argparse.Namespace) -> None:
    network = Network(
        args.per_node, args.node_gbps * 1e9, args.net_gbps * 1e9, args.hop_us * 1e-6, args.net_hop_us * 1e-6
    )
    print("| model | stage | GPUs | divided among | bucket (MiB) | step (ms) | compute (ms) | exposed | memory (GiB) |")
    print("|---|---|---|---|---|---|---|---|---|")
    for model in MODELS:
        for stage in args.stage:
            for world in args.world:
                step, given = best(model, network, args, world, stage)
                fits = "" if step.memory <= args.memory * GIB else ", does not fit"
                size = given.bucket // MIB
                print(
                    f"| {model.name} | {stage} | {world:,} | {given.shards:,} | {size} | {1e3 * step.total:.0f} "
                    f"| {1e3 * step.compute:.0f} | {step.exposed:.0%} | {step.memory / GIB:.0f}{fits} |"
                )


def check(args: argparse.Namespace) -> None:
    """Layers that sleep, on gloo ranks of this machine over a link of a known speed, beside what the model says."""
    del args
    sys.path.append(str(Path(__file__).resolve().parents[1]))  # for tests/distributed
    from tests.distributed import overlap
    from tests.distributed.spawn import on_ranks

    cases = [(stage, share, True) for stage in (1, 2, 3) for share in (0.5, 0.9)]
    size = overlap.BUCKET // 4
    compute = overlap.LAYERS * (overlap.FORWARD + overlap.BACKWARD)
    model = Model("layers", tuple(Layer(size, overlap.FORWARD) for _ in range(overlap.LAYERS)), 0.0)
    print("stage ranks communication/compute   measured (ms)   predicted (ms)")
    for world in (2, 4):
        found = on_ranks(world, overlap.all_cases, cases, 4)
        for i, (stage, share, _) in enumerate(cases):
            worst = max((one[i] for one in found), key=lambda one: one.slow)
            volume = (2 if stage < 3 else 3) * overlap.LAYERS * overlap.BUCKET
            speed = volume / (share * compute) * (world - 1) / world  # the link counts whole operands
            given = Setting(stage, world, world, overlap.BUCKET, 2 * overlap.BUCKET, 1, 1.0, narrow=4)
            said = simulate(model, Network(world, speed, speed, 0.0, 0.0), given)
            # What no link is in: kernels, Python, and how late this machine wakes a sleeper.
            predicted = said.total - said.compute + worst.free
            print(
                f"{stage:>5} {world:>5} {share:>21.2f}   {1e3 * worst.slow:>13.0f}   {1e3 * predicted:>14.0f}",
                flush=True,
            )


def main() -> None:
    top = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    top.add_argument("--tflops", type=float, default=400, help="what a GPU reaches")
    top.add_argument("--node-gbps", type=float, default=400, help="gigabytes a second of a GPU within a node")
    top.add_argument("--net-gbps", type=float, default=40, help="and between nodes")
    top.add_argument("--hop-us", type=float, default=3, help="microseconds of a hop within a node")
    top.add_argument("--net-hop-us", type=float, default=10, help="and between nodes")
    top.add_argument("--per-node", type=int, default=8)
    top.add_argument("--memory", type=float, default=72, help="GiB of a GPU")
    top.add_argument("--micro-batch", type=int, default=2, help="sequences a GPU")
    top.add_argument("--stage", type=int, nargs="*", default=[2, 3])
    top.add_argument("--world", type=int, nargs="*", default=[8, 64, 512, 4096])
    top.add_argument("--check", action="store_true", help="against gloo ranks of this machine")
    args = top.parse_args()
    (check if args.check else table)(args)


if __name__ == "__main__":
    main()
