"""Every operator at the ends of its types: forward and gradient, alone and fused, at lengths around the vector widths.

PyTorch judges, by class: NaN where it has NaN, the same infinities, the sign of zero, finite numbers within the
sample's tolerance. A zero's sign is compared in the forward of elementwise operators alone: sums may cancel to either,
and gradients are sums. What numbers there are and where is in ends.py; whole modules are in tests/numbers/test_ends.py.
"""

from __future__ import annotations

from typing import Any

import torch

from ortmodule.testing.node_model import NodeModel, node_model

from .driver import COUNTS, differentiated, reference_of, samples, tolerance_of, where
from .ends import LENGTHS, everywhere, fed, longer, mismatch, planted, seeds_of, wanted
from .forms import record_of
from .samples import ROWS
from .table import Case, Row
from .test_operators import each

# Which of two zeros is the larger, and that of a sum of products, differs among PyTorch's own loops; so does GELU's of
# numbers below zero: oneDNN's has none of the sign, where eager takes it.
ZEROS = ("Max", "Min", "Gelu")
TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def floating(case: Case) -> list[int]:
    return [i for i, v in enumerate(case.inputs) if v is not None and v.is_floating_point()]


def is_elementwise(row: Row) -> bool:
    """Whether an element of the result depends on those at its place alone: one changes, and no other."""
    try:
        case = next(c for c in samples(row, torch.float32) if floating(c) and (c.inputs[floating(c)[0]].numel() > 2))  # type: ignore[union-attr]
        before = reference_of(row, case)(*case.inputs)[0]
        found = False
        for i in floating(case):
            value = case.inputs[i]
            if value is None or value.shape != before.shape:
                continue
            changed = value.clone()
            changed.view(-1)[changed.numel() // 2] *= 0.5
            inputs = tuple(changed if k == i else v for k, v in enumerate(case.inputs))
            moved = (reference_of(row, case)(*inputs)[0] != before).view(-1)
            moved[changed.numel() // 2] = False
            if moved.any():
                return False
            found = True
        return found
    except (StopIteration, RuntimeError):
        return False


# No operator of PyTorch says what the ends give: the reference is a formula of several, whose intermediate results
# overflow or lose a zero's sign where ours do not. Modules that use these units are compared in tests/module.
FORMULAS = ("Selu", "Softsign", "PRelu", "Swish", "SwiGLU", "WithValue", "Hardmax", "MeanVarianceNormalization",
            "InstanceNormalization", "LpPool", "BatchNormStatistics", "BatchNormSums")  # fmt: skip
# A quotient of denormals is rounded to one of a few numbers, and a whole part jumps with the quotient's last bit.
JUMPS = ("Hypot", "Mod")
# Their sums cancel or overflow by the order that they are taken in, in PyTorch's own kernels too: tests/module compares
# what is defined of the norms.
ORDERED = ("BatchNormalization", "LayerNormalization", "ReduceProd")
# Their operands belong together: places of a maximum, ends of groups, probabilities and the scores they are of.
TOGETHER = ("MaxUnpool", "GroupedMatMul", "SparseSoftmaxCrossEntropyGrad")


def in_folders(row: Row, *folders: str) -> bool:
    return row.nodes is None and not row.domain.startswith("com.") and any(
        f"/ops/{folder}/" in record_of(row)["file"] for folder in folders
    )  # fmt: skip


ELEMENTWISE = [
    r for r in ROWS if r.name not in (*FORMULAS, *JUMPS) and in_folders(r, "elementwise") and is_elementwise(r)
]
IN_SUMS = [
    r for r in ROWS
    if r.name not in (*FORMULAS, *TOGETHER) and in_folders(r, "linear", "conv", "pool", "recurrent", "loss")
]  # fmt: skip
# Of a sum with an end in it, of 88 and -20 say, next to nothing may be left of the ends.
CANCELLED = 20
OVER_ROWS = [r for r in ROWS if r.name not in (*FORMULAS, *ORDERED) and in_folders(r, "softmax", "norm", "reduce")]


def kinds(row: Row, dtype: torch.dtype) -> list[Case]:
    """The row's samples that differ in more than sizes."""
    found: dict[Any, Case] = {}
    for case in samples(row, dtype):
        if row.name == "Pow" and case.constants and case.inputs[1].item() in (0.5, -0.5):
            continue  # a square root, as PyTorch's is of a number and not of a tensor
        shapes = tuple(None if v is None else (v.dtype, v.dim()) for v in case.inputs)
        numbers = tuple(str(case.inputs[i]) for i in case.constants)
        if floating(case) and all(v is None or v.numel() for v in case.inputs):
            found.setdefault((str(case.attributes), shapes, numbers), case)
    return list(found.values())


class Call:
    """One form of an operator in the engine, for any sizes: alone, or between operators that it is fused with."""

    def __init__(self, row: Row, case: Case, fused: bool) -> None:
        self.row, self.case = row, case
        self.built: NodeModel = node_model(
            row.name, case.inputs, case.attributes, domain=row.domain, opset=row.opset, outputs=case.outputs,
            constants=case.constants, symbolic=row.symbolic, identity_inputs=fused, nodes_of=row.nodes,
        )  # fmt: skip
        wrt = differentiated(row, case)
        self.wrt = [i for i in self.built.slots if i in wrt]
        self.forward = self.built.session()
        names = dict(zip(self.built.slots, self.built.names))
        self.training = self.built.session([names[i] for i in self.wrt]) if self.wrt else None

    def reference(self, inputs: list[Any]) -> list[torch.Tensor]:
        """Outputs, then gradients."""
        leaves = self.leaves(inputs)
        outputs = list(reference_of(self.row, self.case)(*leaves))
        return [*(y.detach() for y in outputs), *self.gradients(outputs, leaves)]

    def gradients(self, outputs: list[torch.Tensor], inputs: list[Any]) -> list[torch.Tensor]:
        """Of a projection by fixed numbers of both signs."""
        flowing = [y for y in outputs if y.requires_grad]
        leaves = [inputs[i] for i in self.wrt]
        if not flowing:
            return [torch.zeros_like(v) for v in leaves]
        found = torch.autograd.grad(flowing, leaves, seeds_of(flowing), allow_unused=True)
        return [torch.zeros_like(v) if g is None else g for v, g in zip(leaves, found)]

    def leaves(self, inputs: list[Any]) -> list[Any]:
        return [v.detach().requires_grad_(i in self.wrt) if v is not None else v for i, v in enumerate(inputs)]

    def check(self, inputs: list[Any], wants: list[list[torch.Tensor]], tolerance: float, zeros: bool) -> None:
        given = [v if v is None else v.clone() for v in inputs]
        got = list(self.forward.run([given[i] for i in self.built.slots if given[i] is not None]))
        for k, y in enumerate(got):
            assert not (wrong := mismatch(y, [w[k] for w in wants], tolerance, zeros)), f"output {k}: {wrong}"
        COUNTS["ends: forward"] += 1
        if self.training is None:
            return
        leaves = self.leaves(given)
        outputs = list(self.training.run([leaves[i] for i in self.built.slots if leaves[i] is not None]))
        for k, (i, g) in enumerate(zip(self.wrt, self.gradients(outputs, leaves), strict=True), len(got)):
            assert not (wrong := mismatch(g, [w[k] for w in wants], tolerance)), f"the gradient of input {i}: {wrong}"
        COUNTS["ends: gradient"] += 1


def check(
    row: Row, dtype: torch.dtype, case: Case, lengths: tuple[int, ...], fill: Any, zeros: bool, slack: float = 1
) -> None:
    """One sample at these lengths, alone and, where there is fusion, fused; `slack`: of the row's tolerance."""
    calls: dict[bool, Call] = {}
    for length in lengths:
        made = longer(case, length)
        if made is None:
            continue
        try:
            reference_of(row, made)(*made.inputs)
        except Exception:
            continue  # sizes of the sample that belong together
        if not calls or not row.symbolic or min(v.numel() for v in made.inputs if v is not None) < 2:
            calls = {fused: Call(row, made, fused) for fused in (False, *[True] * (dtype != torch.float64))}
        for ended in fed(made, fill):
            inputs = list(ended.inputs)
            wants = wanted(calls[False].reference, inputs)
            for fused, call in calls.items():
                try:
                    call.check(inputs, wants, slack * tolerance_of(row, ended, dtype), zeros)
                except AssertionError as error:
                    what = f"{dtype}, {'fused' if fused else 'alone'}"
                    raise AssertionError(f"{where(row, ended, what)}: {error}") from None
        if length == 1:
            calls = {}


@each(ELEMENTWISE)
def test_elementwise(row: Row) -> None:
    found = kinds(row, torch.float32)[:3]
    zeros = row.name not in ZEROS
    for k, case in enumerate(found):
        check(row, torch.float32, case, LENGTHS if k == 0 else (17,), everywhere, zeros)
    for dtype in TYPES[1:]:
        if row.bfloat16 or dtype == torch.float64:
            check(row, dtype, kinds(row, dtype)[0], (33,), everywhere, zeros)


@each(OVER_ROWS)
def test_over_rows(row: Row) -> None:
    for case in kinds(row, torch.float32)[:2]:
        check(row, torch.float32, case, (8, 33), planted, False)


@each(IN_SUMS)
def test_in_sums(row: Row) -> None:
    for case in kinds(row, torch.float32)[:2]:
        check(row, torch.float32, case, (8, 33), planted, False, CANCELLED)
