"""What a graph's nodes read, cost and pass on, as a cut into stages needs it.

Nodes that read the call's arguments and constants alone (positions, masks, shifted labels) are no stage's: every rank
is given the batch, and makes of them what its stage reads. All others lie in the graph's order, and a cut is a place
between two of them. Not here: which place (cut.py), the stages' graphs (stage_graph.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx

from ortmodule.capture.convert.onnx_graph import ONNX_TYPES, ORTMODULE
from ortmodule.distributed.sharded_graph import names_read

__all__ = ["ITEM_BYTES", "Dataflow"]

ITEM_BYTES = {number: dtype.itemsize for dtype, number in ONNX_TYPES.items()}
# What costs by products, by the number of those for each element of the result: see `_products`.
_PRODUCTS = frozenset(("MatMul", "Gemm", "Linear", "FusedMatMul", "Conv", "ConvTranspose", "Attention", "Einsum",
                       "LSTM", "GRU", "RNN"))  # fmt: skip
_COLLECTIVES = frozenset(("CopyToRanks", "AllReduce", "AllGather", "ReduceScatter", "AllToAll"))
_RANDOM = ("Random", "Bernoulli", "Multinomial", "Dropout")
# Two operations a product; an element that is read or written costs as long as about so many, on CPUs and GPUs.
_ELEMENT = 32.0


class Dataflow:
    """Of one graph.

    Args:
        graph: a captured graph, every value of which is declared.
        given: the graph inputs that all ranks have: arguments of the call, constants.
        wanted: the results that are asked for; what none of them, nor a written buffer, depends on is left out.
        kept: further values that must be made: those that are written back into buffers.

    Attributes:
        own: the numbers of the nodes that are cut, in order.
        everywhere: of the nodes that each stage makes for itself.
        producer: the number of the node that makes a value.
        reads: by node, what it reads, absent inputs left out.
    """

    def __init__(
        self, graph: onnx.GraphProto, given: Collection[str], wanted: Sequence[str], kept: Sequence[str]
    ) -> None:
        self.graph, self.wanted, self._given = graph, list(wanted), frozenset(given)
        self.types = {v.name: v.type.tensor_type for v in (*graph.value_info, *graph.input, *graph.output)}
        self.producer = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
        self.reads = [list(dict.fromkeys(name for name in names_read(node) if name)) for node in graph.node]
        live = self._live([*wanted, *kept])
        known = {*given, *(t.name for t in graph.initializer)}
        self.everywhere: set[int] = set()
        for i in sorted(live):
            if _repeatable(graph.node[i]) and all(name in known for name in self.reads[i]):
                self.everywhere.add(i)
                known.update(graph.node[i].output)
        self.own = [i for i in sorted(live) if i not in self.everywhere]
        self._place = {i: at for at, i in enumerate(self.own)}

    def _live(self, names: Iterable[str]) -> set[int]:
        """What leads to these values, and what is there for no value at all."""
        todo = [self.producer[name] for name in names if name in self.producer]
        todo += [i for i, node in enumerate(self.graph.node) if not any(node.output)]
        live: set[int] = set()
        while todo:
            i = todo.pop()
            if i not in live:
                live.add(i)
                todo += [self.producer[name] for name in self.reads[i] if name in self.producer]
        return live

    def made_at(self, name: str) -> int | None:
        """Which of the own nodes makes a value, counted from 0; None: an input, or what each stage makes."""
        return self._place.get(self.producer.get(name, -1))

    def last_reader(self) -> dict[str, int]:
        """Of each value that an own node makes, the last one that reads it; a result is read after the last of all."""
        out: dict[str, int] = {}
        for at, i in enumerate(self.own):
            for name in self.reads[i]:
                if self.made_at(name) is not None:
                    out[name] = at
        out.update({name: len(self.own) for name in self.wanted if self.made_at(name) is not None})
        return out

    def crossing_bytes(self, sizes: Mapping[str, int]) -> list[int]:
        """What is handed on where the graph is cut before each of the own nodes, and after the last."""
        steps = [0] * (len(self.own) + 2)
        for name, last in self.last_reader().items():
            made, size = self.made_at(name), self.bytes_of(name, sizes)
            assert made is not None
            steps[made + 1] += size
            steps[last + 1] -= size
        total, out = 0, []
        for step in steps[:-1]:
            total += step
            out.append(total)
        return out

    def bytes_of(self, name: str, sizes: Mapping[str, int]) -> int:
        found = self.types.get(name)
        if found is None:
            return 0
        return math.prod(self.dims(name, sizes)) * ITEM_BYTES.get(found.elem_type, 8)

    def dims(self, name: str, sizes: Mapping[str, int]) -> list[int]:
        """A value's sizes, those of symbols by the example; 1 for an expression that is none."""
        found = self.types.get(name)
        dims = found.shape.dim if found is not None else ()
        return [sizes.get(d.dim_param, 1) if d.dim_param else d.dim_value for d in dims]

    def works(self, sizes: Mapping[str, int]) -> list[float]:
        """An estimate of what each of the own nodes costs forward, in operations: two a product, and what elements cost
        to read and write.
        """
        return [self._work(self.graph.node[i], sizes) for i in self.own]

    def _work(self, node: onnx.NodeProto, sizes: Mapping[str, int]) -> float:
        elements = [math.prod(self.dims(name, sizes)) for name in (*node.input, *node.output) if name in self.types]
        if node.op_type in _PRODUCTS:
            return 2.0 * self._products(node, sizes) + _ELEMENT * sum(elements)
        moved = 0.0 if node.op_type in ("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Identity") else _ELEMENT
        return moved * sum(elements)

    def _products(self, node: onnx.NodeProto, sizes: Mapping[str, int]) -> float:
        out = math.prod(self.dims(node.output[0], sizes))
        first, second = (self.dims(name, sizes) for name in node.input[:2])
        if node.op_type == "Attention":  # scores, and the sums of values
            return 2.0 * out * (second[-2] if len(second) > 2 else 1)
        if node.op_type in ("Conv", "ConvTranspose"):
            return float(out * math.prod(second[1:]))
        if node.op_type in ("LSTM", "GRU", "RNN"):
            return float(math.prod(first[:2]) * math.prod(second))
        rows = node.op_type == "Gemm" and any(a.name == "transA" and a.i for a in node.attribute)
        return float(out * (first[0] if rows else first[-1])) if first else float(out)

    def weights(self) -> list[bool]:
        """Which of the own nodes read a parameter or buffer of at least two axes."""
        inputs = {v.name for v in self.graph.input if len(v.type.tensor_type.shape.dim) > 1} - self._given
        return [any(name in inputs for name in self.reads[i]) for i in self.own]

    def starts(self, module: str) -> int | None:
        """The first of the own nodes that a module's forward has made; None: there is none."""
        for at, i in enumerate(self.own):
            path = self.graph.node[i].name.partition("/")[0]
            if path == module or path.startswith(f"{module}."):
                return at
        return None


def _repeatable(node: onnx.NodeProto) -> bool:
    """Whether several ranks may run a node each and have the same, at next to no cost."""
    if node.domain not in ("", ORTMODULE) or node.op_type in _PRODUCTS or node.op_type in _COLLECTIVES:
        return False
    if any(word in node.op_type for word in _RANDOM) or not any(node.output):
        return False
    return not any(a.HasField("g") or a.graphs for a in node.attribute)
