"""The kernels of the engine's step, from the plan that it compiled: as a CUDA session runs it, and with own kernels.

A plan's nodes are read with a set of operators that have kernels of ours:
    none      each node calls ATen. Where one node is several ATen calls, the table below has them, from the `aten`
              kernels in csrc/ops
    today     those that a "cuda" kernel is registered for (own_operators); FusedKernel is a generated kernel, dropout
              stores no mask, attention is flash attention that saves log-sum-exp
    all       each node that is no product, convolution or attention is one kernel of ours
`merged` joins neighbours of the third reading that run over the same elements: a bound on what fusion can give.
The batches are dense, so that rows are compacted by their labels alone. Not here: what a kernel costs (machines.py).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ortmodule import Options, ORTModule
from ortmodule.debug import plan
from ortmodule.graph_transition.built_sessions import BuiltSession, listen

from .machines import Kernel

Step = dict[str, Any]
Value = dict[str, Any]

VIEWS = {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Split", "Expand", "Identity", "Slice", "Flatten"}
# What the host does; its operands, where they lie on the device, are waited for.
HOST = {"Shape", "Size", "RandomState", "Constant", "RelativeRows"}
WAITING = {"LabelRows", "AttendedRows"}
PRODUCTS = {"Linear", "LinearGrad", "MatMul", "MatMulGrad", "Gemm", "GemmGrad"}
CONVOLUTIONS = {"Conv", "ConvGrad"}
ATTENTIONS = {"Attention", "PhiloxAttention", "AttentionGrad"}
LOSSES = {"LinearCrossEntropy", "LinearCrossEntropyGrad"}
LOOKUPS = {"Gather", "GatherRows", "SpreadRows", "GatherRowsGrad"}
WIDTHS = {"float": 4, "bfloat16": 2, "float16": 2, "double": 8, "int64": 8, "int32": 4, "bool": 1, "uint8": 1}
CHUNK, OWN_CHUNK = 1 << 26, 1 << 28  # scores at once: csrc/ops/loss/linear_cross_entropy_kernel.cpp, .._cuda_kernel.cpp
LISTED = 128  # tensors of one launch of CastAll and AddAll: csrc/ops/types/cast_all.cu
DW_BLOCK = 8192  # rows of the weight's gradient at once, there


CSRC = Path(__file__).parents[2] / "csrc"
# A plan with the prices and clusters of a CUDA session, of a CPU's graph.
PAPER = [("cpu", {"prices": "cuda"})]


@functools.cache
def own_operators() -> frozenset[str]:
    """Operators with a "cuda" kernel, from the sources."""
    registered = re.compile(r'ORTMODULE_KERNEL\(\s*"[^"]*",\s*(\w+),\s*"cuda"')
    return frozenset(op for file in CSRC.rglob("*_cuda_kernel.cpp") for op in registered.findall(file.read_text()))


def bare(op: str) -> str:
    return op.rpartition("::")[2]


def shape_of(value: Value) -> list[int]:
    inner = re.search(r"\[(.*)\]", value["type"])
    dims = [d.strip() for d in inner.group(1).split(",") if d.strip()] if inner else []
    return [int(d) for d in dims] if all(d.isdigit() for d in dims) else []


def width_of(value: Value) -> int:
    return WIDTHS.get(value["type"].partition("[")[0], 4)


def size_of(value: Value) -> float:
    return float(value["bytes"] or 0)


def elements(value: Value) -> float:
    return size_of(value) / width_of(value)


def total(values: Sequence[Value]) -> float:
    return sum(size_of(v) for v in {v["name"]: v for v in values if v["name"]}.values())


def kind_of(step: Step) -> str:
    """One of view, host, product, convolution, attention, loss, lookup and pass, which is a pass over memory."""
    op = bare(step["op"])
    if op in VIEWS:
        return "view"
    if op in HOST or op in WAITING:
        return "host"
    for kind, ops in (
        ("product", PRODUCTS),
        ("convolution", CONVOLUTIONS),
        ("attention", ATTENTIONS),
        ("loss", LOSSES),
    ):
        if op in ops:
            return kind
    if op in LOOKUPS or op == "GatherGrad":
        # A list of all rows is no list: the result is the operand.
        same = "Rows" in op and step["inputs"] and size_of(step["inputs"][0]) == total(step["outputs"])
        return "view" if same else "lookup"
    return "pass"


# -- plans -------------------------------------------------------------------------------------------------------------


def kept_rows(rows: int, counted: int) -> int:
    """How many rows LabelRows lists: csrc/ops/index/rows_kernel.cpp."""
    quarter = (1 << (counted.bit_length() - 1)) // 4 if counted else 0
    step = max(1, min((rows + 15) // 16, quarter))
    kept = min(rows, max(1, -(-counted // step)) * step)
    return rows if 8 * kept >= 7 * rows else kept


def row_sizes(halves: list[dict[str, Any]], rows: int, counted: int) -> dict[str, int]:
    """The symbols of lists of rows, in a batch of which `counted` of `rows` labels count; attention needs all rows."""
    sizes: dict[str, int] = {}
    for half in halves:
        for step in half["steps"]:
            op = bare(step["op"])
            if op not in WAITING and op != "RelativeRows":
                continue
            for value in step["outputs"]:
                for symbol in re.findall(r"[A-Za-z_]\w*", value["type"].partition("[")[2]):
                    sizes[symbol] = rows if op == "AttendedRows" else kept_rows(rows, counted)
    return sizes


def plan_of(
    module: torch.nn.Module, batch: tuple[torch.Tensor, ...], options: Options, labels: torch.Tensor
) -> list[dict[str, Any]]:
    """Both halves of the module's plan under autocast to bfloat16. Nothing runs: weights may be unwritten."""
    built: list[BuiltSession] = []
    end = listen(built.append)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            halves = plan(ORTModule(module, options=options), batch).halves
    finally:
        end()
    sizes = row_sizes(halves, labels.numel(), int((labels >= 0).sum()))
    if not sizes:
        return halves
    halves = built[-1].session.plans(sizes)
    for value in (v for half in halves for step in half["steps"] for v in step["inputs"] + step["outputs"]):
        value["type"] = re.sub(r"[A-Za-z_]\w*", lambda m: str(sizes.get(m[0], m[0])), value["type"])
    return halves


# -- kernels -----------------------------------------------------------------------------------------------------------


def bound(kernel: Kernel, step: Step, kind: str) -> Kernel:
    kernel.flops, kernel.unit = float(step["flops"] or 0), kind
    wide = [v for v in step["inputs"] if v["name"] and len(shape_of(v)) > 1]
    kernel.dtype = "tf32" if wide and width_of(wide[0]) == 4 else "bf16"
    return kernel


def product(step: Step, kernel: Kernel) -> list[Kernel]:
    """A product; of a gradient one for dx and dw each, and a pass over dy for the bias."""
    if not bare(step["op"]).endswith("Grad"):
        return [bound(kernel, step, "product")]
    dy, wanted = step["inputs"][0], [o for o in step["outputs"] if o["name"]]
    bias = next((o for o in wanted if len(shape_of(o)) == 1), None)
    kernel.launches = kernel.calls = max(1, len(wanted) - (bias is not None))
    kernel.bytes += (kernel.launches - 1) * size_of(dy) - (size_of(bias) if bias else 0)
    out = [bound(kernel, step, "product")]
    if bias:
        out.append(dataclasses.replace(kernel, launches=1, calls=1, bytes=size_of(dy) + size_of(bias), flops=0.0))
    return out


def convolution(step: Step, kernel: Kernel) -> Kernel:
    if bare(step["op"]).endswith("Grad"):
        kernel.launches = 2
        kernel.bytes += size_of(step["inputs"][0])
    return bound(kernel, step, "convolution")


def attention(step: Step, kernel: Kernel, causal: bool, own: bool) -> list[Kernel]:
    """`own`: flash attention forward and backward. Else as the aten kernels: backward runs forward again, and dropout
    leaves flash attention for products of whole score matrices, with a mask of bools."""
    backward = bare(step["op"]) == "AttentionGrad"
    operands = step["inputs"][1:] if backward else step["inputs"]
    q, k = shape_of(operands[0]), shape_of(operands[1])
    visible = (q[2] + 1) / (2 * q[2]) if causal else 1.0
    bound(kernel, step, "attention").flops *= visible
    if backward:
        kernel.launches = 3
        kernel.bytes += 2 * 2 * size_of(operands[0])  # dq's sums, in float32
    dropout = any(v["type"] == "int64[2]" for v in step["inputs"])
    if own or not (backward or dropout):
        return [kernel]
    if not dropout:
        kernel.launches, kernel.calls = 4, 2
        kernel.flops *= 1.4  # 10 and 4 more
        kernel.bytes += 4 * size_of(operands[0])
        return [kernel]
    scores = 2.0 * q[0] * q[1] * q[2] * k[2]  # bytes of a matrix of them; a mask has half
    # Forward: mask written, softmax in and out, mask applied (its complement made before), scaled.
    passes = dataclasses.replace(kernel, launches=5, calls=5, bytes=7 * scores, flops=0.0)
    kernel.launches = kernel.calls = 2
    kernel.unit, kernel.bytes = "product", kernel.bytes + 2 * scores
    if backward:  # forward again; then dV, dP, dQ, dK, and mask, factor and softmax the other way
        kernel.launches = kernel.calls = 6
        kernel.flops *= 1.2  # 8 and 4 more, of the 10 that flash attention has
        kernel.bytes += 4 * scores
        passes.launches, passes.calls, passes.bytes = 8, 8, 7 * scores + 7.5 * scores
    return [kernel, passes]


def loss(step: Step, kernel: Kernel, own: bool) -> list[Kernel]:
    """The vocabulary's projection with its loss: scores in chunks, each read and overwritten.

    Outputs behind the first of LinearCrossEntropy are what it saves: the gradient of the last chunk's scores, and what
    the others gave to dx and dw already.
    """
    grad = bare(step["op"]).endswith("Grad")
    operands = dict(zip(("dy", "scores", "x", "w") if grad else ("x", "w"), step["inputs"]))
    rows, width = shape_of(operands["x"])
    classes = shape_of(operands["w"])[0]
    scores, chunks = 2.0 * rows * classes, max(1, math.ceil(rows * classes / (OWN_CHUNK if own else CHUNK)))
    one, weight, rest = 2.0 * rows * width * classes, 2.0 * classes * width, 2.0 * rows * width
    blocks = 1 if own else math.ceil(classes / DW_BLOCK)  # ours are added by the product
    kernel.unit = "product"
    passes = dataclasses.replace(kernel, unit="memory", own=own)
    if grad:  # of the last chunk: dx and dw, which is added to what is there in blocks
        kernel.flops, kernel.bytes = 2 * one / chunks, 2 * scores / chunks + 2 * weight + 2 * rest / chunks
        kernel.launches = 2 if chunks == 1 else 1 + blocks
        # The saved parts times the gradient of the loss, which the host does not know; sums; the parts of dx joined.
        passes.bytes = 2 * scores / chunks + (5 * weight + 4 * rest if chunks > 1 else 0)
        passes.launches = 1 if chunks == 1 else 3 + blocks
        if own:  # dx and dw times the gradient of the loss
            passes.bytes, passes.launches = 2 * weight + 2 * rest, 2 if chunks == 1 else 3
    else:
        saved = any(o["name"] for o in step["outputs"][1:])
        early = chunks - 1 if saved else 0
        kernel.flops = one + early * 2 * one / chunks
        kernel.launches = chunks + early * (1 + (blocks if early > 1 else 1))
        kernel.bytes = chunks * weight + scores + rest + early * (2 * scores / chunks + 2 * weight + rest / chunks)
        # Of 2 bytes a score: widened 3, log-softmax 4; for the gradient exp 4, times a factor 4, narrowed 3.
        each = (2 if saved else 1) if own else 7 + (11 if saved else 0)
        passes.launches = chunks * (1 if own else 10 + (4 if saved else 0)) + early * (1 + blocks)
        passes.bytes = each * scores + early * (3 * weight + 2 * rest / chunks)
        if own:  # counts of labels, sums of losses
            passes.bytes, passes.launches = each * scores, chunks + 4
    kernel.calls, passes.calls = kernel.launches, passes.launches
    return [kernel, passes]


def lookup(step: Step, kernel: Kernel) -> Kernel:
    """Rows of a table: what is read is as large as what is written; a gradient is zeros and the rows that are added."""
    op, out = bare(step["op"]), total(step["outputs"])
    if op == "GatherGrad":
        kernel.launches, kernel.calls = 2, 2
        kernel.bytes = out + 3 * max((size_of(v) for v in step["inputs"] if "float" in v["type"]), default=0.0)
    elif op in ("SpreadRows", "GatherRowsGrad"):
        kernel.launches, kernel.calls = 2, 2
        kernel.bytes = out + 2 * size_of(step["inputs"][0])
    else:
        kernel.bytes = 2 * out
    return kernel


def memory_pass(step: Step, kernel: Kernel, own: bool) -> Kernel:
    """Inputs once, outputs once; what reads its operands twice does so in ATen and with us."""
    op, inputs = bare(step["op"]), step["inputs"]
    if op in ("LayerNormalizationGrad", "RMSNormalizationGrad"):
        kernel.launches = 2
        kernel.bytes += size_of(inputs[0]) + size_of(inputs[1])
    elif op == "BatchNormTraining":
        kernel.bytes += size_of(inputs[0])
    elif op == "BatchNormTrainingGrad":
        kernel.launches = 2
        kernel.bytes += size_of(inputs[0]) + size_of(inputs[1])
    elif op in ("BatchNormStatistics", "BatchNormSums"):
        kernel.launches = 2
    elif op == "MaxPoolGrad":
        kernel.launches = 2
    elif op == "FusedKernel":  # sums over columns are added by one more launch
        kernel.launches += any(len(shape_of(v)) == 1 and len(shape_of(inputs[0])) > 1 for v in step["outputs"])
    elif op == "ConcatSum" or (op == "ReduceSum" and own and len(shape_of(step["outputs"][0])) == 1):
        kernel.launches = 2
    elif op in ("CastAll", "AddAll"):
        kernel.launches = math.ceil(len(inputs) / LISTED) if own else len(inputs)
    elif op == "Sum":
        kernel.launches = kernel.calls = 1 if own else max(1, len(inputs) - 1)
    elif op == "PhiloxDropout" and not own:
        kernel.launches = kernel.calls = 3  # a mask of bools; times it; times the factor in place
        kernel.bytes = elements(inputs[0]) * (1 + (2 * width_of(inputs[0]) + 1) + 2 * width_of(inputs[0]))
    elif op in ("SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossGrad") and not own:
        kernel.launches = kernel.calls = 2
    return kernel


def kernels_of(step: Step, half: str, ours: frozenset[str] | None, causal: bool) -> list[Kernel]:
    """`ours`: operators with a kernel of ours; None: all."""
    op, kind = bare(step["op"]), kind_of(step)
    own = ours is None or op in ours
    node = step["node"]
    if kind == "view":
        return [Kernel(op, half, 0, 0.0, node=node, own=own)]
    if kind == "host":
        # The list of rows is the host's: it waits for a copy of the labels or masks. With kernels of ours counts are
        # known early, from the inputs, and nothing waits (docs/cuda.md).
        return [Kernel(op, half, 0, 0.0, node=node, own=own, waits=int(op in WAITING and not own))]
    made = Kernel(op, half, 1, total(step["inputs"]) + total(step["outputs"]), node=node)
    made.own = own and kind in ("pass", "lookup")
    if kind == "product":
        return product(step, made)
    if kind == "convolution":
        return [convolution(step, made)]
    if kind == "attention":
        return attention(step, made, causal, own)
    if kind == "loss":
        return loss(step, made, own)
    return [lookup(step, made) if kind == "lookup" else memory_pass(step, made, own)]


def planned_kernels(halves: list[dict[str, Any]], ours: frozenset[str] | None, *, causal: bool) -> list[Kernel]:
    """The kernels of all steps, in order. `causal`: attention is."""
    return [k for half in halves for step in half["steps"] for k in kernels_of(step, half["name"], ours, causal)]


# -- what a generator could join ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Group:
    """Steps of one half that run over as many elements, as one kernel; `closed`: another step has read of it.

    What was read by others cannot grow: a later member may depend on what they made (as Note [Clusters] has it).
    """

    half: str
    steps: list[tuple[Step, list[Kernel]]]
    closed: bool = False

    def kernels(self, readers: dict[str, set[int]], mine: int) -> list[Kernel]:
        """Of one step its own; of several one that reads what others make, each once, and writes what others read."""
        if len(self.steps) == 1:
            return self.steps[0][1]
        made = {v["name"] for step, _ in self.steps for v in step["outputs"]}
        reads = [v for step, _ in self.steps for v in step["inputs"] if v["name"] not in made]
        writes = [v for step, _ in self.steps for v in step["outputs"] if readers.get(v["name"], {-1}) != {mine}]
        parts = [k for _, kernels in self.steps for k in kernels]
        again = sum(k.bytes for k in parts) - sum(total(s["inputs"]) + total(s["outputs"]) for s, _ in self.steps)
        names = "+".join(dict.fromkeys(k.name for k in parts))
        size = total(reads) + total(writes) + max(0.0, again)
        return [Kernel(names, self.half, max(k.launches for k in parts), size, node=parts[-1].node, own=True)]


def merged_kernels(halves: list[dict[str, Any]], *, causal: bool) -> list[Kernel]:
    """Own kernels, joined with the one that made their largest operand where both run over as many elements.

    Nobody asks for registers or shared memory: a bound on what joining can give, not a plan.
    """
    groups: list[Group] = []
    maker: dict[str, int] = {}
    readers: dict[str, set[int]] = {}
    for half in halves:
        for step in half["steps"]:
            kernels = kernels_of(step, half["name"], None, causal)
            largest = max(step["inputs"], key=size_of, default=None)
            place = maker.get(largest["name"], -1) if largest else -1
            if place < 0 or not joins(groups[place], step, half["name"]):
                place = len(groups)
                groups.append(Group(half["name"], []))
            groups[place].steps.append((step, kernels))
            for value in step["inputs"]:
                readers.setdefault(value["name"], set()).add(place)
                if maker.get(value["name"], place) != place:
                    groups[maker[value["name"]]].closed = True
            maker.update((value["name"], place) for value in step["outputs"] if value["name"])
    return [k for i, group in enumerate(groups) for k in group.kernels(readers, i)]


def joins(group: Group, step: Step, half: str) -> bool:
    first = group.steps[0][0]
    if group.closed or group.half != half or len(group.steps) >= 24:  # as many as a cluster has
        return False
    return kind_of(first) == "pass" and kind_of(step) == "pass" and most_elements(first) == most_elements(step)


def most_elements(step: Step) -> float:
    return max((elements(v) for v in step["inputs"] + step["outputs"]), default=0.0)
