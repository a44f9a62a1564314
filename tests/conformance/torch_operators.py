"""PyTorch's own samples of its operators, each as a module's forward, through ORTModule:
`python -m tests.conformance.torch_operators [--only add,nn.functional.conv2d] [--samples 3] [--json OUT]`.

torch.testing lists about 650 operators with arguments to try. Every sample trains in ORTModule and in eager: results
and the gradients of all inputs are compared, at the sample's sizes and then with each of its sizes set to 1, which runs
a graph with symbolic sizes. Ends in `N passed, N failed, N unsupported` (operators; unsupported: not captured, so that
a user's module runs in PyTorch there). Needs the package `expecttest`, as torch.testing does.
Not here: operators in graphs that come as files (python -m tests.conformance).
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ortmodule import Options, ORTModule

# What they return is whatever the memory held, or is drawn: there is nothing to compare.
_UNDEFINED = (
    "empty",
    "new_empty",
    "rand",
    "uniform",
    "cauchy",
    "exponential",
    "geometric",
    "log_normal",
    "normal",
    "resize_",
)
_STARTS = (*_UNDEFINED, "bernoulli", "multinomial", "nn.functional.rrelu", "nn.functional.fractional_max_pool")
# torch reads by the values of its arguments without a check: a smaller size may end the process, in eager as well.
_UNCHECKED = ("nn.functional.ctc_loss", "_segment_reduce")


class _Given:
    """Stands for a tensor argument."""


class Call(torch.nn.Module):
    """An operator with fixed arguments, but for its tensors."""

    def __init__(self, operator: Any, flat: Sequence[Any], spec: pytree.TreeSpec) -> None:
        super().__init__()
        self.operator = operator
        self.flat = [_Given() if isinstance(x, torch.Tensor) else x for x in flat]
        self.spec = spec

    def forward(self, *tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        args, kwargs = pytree.tree_unflatten(
            [next(given) if isinstance(x, _Given) else x for x in self.flat], self.spec
        )
        return self.operator(*args, **kwargs)


def train(module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> tuple[list[Any], list[torch.Tensor | None]]:
    """The results' leaves, and the inputs' gradients of a weighted sum of them."""
    torch.manual_seed(1)
    given = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    results = pytree.tree_leaves(module(*given))
    loss = torch.zeros(())
    for r in results:
        if isinstance(r, torch.Tensor) and r.requires_grad:
            flat = (r.abs() if r.is_complex() else r).flatten()
            loss = loss + (flat * torch.linspace(0.5, 1.5, flat.numel(), dtype=flat.dtype)).sum().to(torch.float32)
    if loss.requires_grad:
        loss.backward()
    return results, [t.grad for t in given]


def with_ones(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """The tensors with every axis of one size, and then of the next, cut down to 1."""
    for size in sorted({n for t in tensors for n in t.shape if n > 1}):
        cut = [t.detach() for t in tensors]
        for i, t in enumerate(cut):
            for axis, n in enumerate(t.shape):
                cut[i] = cut[i].narrow(axis, 0, 1) if n == size else cut[i]
        yield [c.clone().requires_grad_(t.requires_grad) for c, t in zip(cut, tensors, strict=True)]


def assert_same(got: Any, expected: Any) -> None:
    for g, e in zip(got[0], expected[0], strict=True):
        if isinstance(e, torch.Tensor):
            torch.testing.assert_close(g, e, rtol=1e-4, atol=1e-4, equal_nan=True)
        else:
            assert g == e, f"{g!r} instead of {e!r}"
    for i, (g, e) in enumerate(zip(got[1], expected[1], strict=True)):
        g, e = (torch.zeros(()) if x is None else x for x in (g, e))
        torch.testing.assert_close(
            g.expand_as(e) if g.dim() == 0 else g, e.expand_as(g) if e.dim() == 0 else e, rtol=1e-3, atol=1e-3,
            equal_nan=True, msg=lambda m, i=i: f"gradient of input {i}: {m}",
        )  # fmt: skip


def check(operator: Any, sample: Any, cut: bool) -> tuple[str, str]:
    """("passed" | "failed" | "unsupported" | "not run", why) for one sample, with sizes of 1 as well if `cut`."""
    flat, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    tensors = [x for x in flat if isinstance(x, torch.Tensor)]
    if any(type(t) is not torch.Tensor or t.layout != torch.strided for t in tensors):
        return "not run", "tensors that are not dense"
    module = Call(operator, flat, spec)
    model = ORTModule(module, options=Options(dropout="torch"))
    for case in (tensors, *(with_ones(tensors) if cut else ())):
        sizes = [tuple(t.shape) for t in case]
        try:
            expected = train(module, case)
        except Exception as error:
            if case is tensors:
                return "not run", f"eager: {type(error).__name__}"
            continue
        try:
            assert_same(train(model, case), expected)
        except Exception as error:
            return "failed", f"{sizes}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    report = model.report()
    return (
        ("passed", "") if report.fallback == "none" else ("unsupported", " ".join(str(report.fallback_reason).split()))
    )


def operators(only: Sequence[str] = ()) -> Iterator[Any]:
    """torch.testing's entries for float32, or those of these names."""
    from torch.testing._internal.common_methods_invocations import op_db

    for entry in op_db:
        if torch.float32 in entry.dtypes and not entry.name.startswith(_STARTS) and (not only or entry.name in only):
            yield entry


def run(entry: Any, most: int) -> tuple[str, str, int]:
    """The worst state among up to `most` samples of an entry, why, and how many ran."""
    samples = list(entry.sample_inputs("cpu", torch.float32, requires_grad=entry.supports_autograd))
    counted = collections.Counter[str]()
    reasons: dict[str, str] = {}
    for sample in samples[:: max(1, -(-len(samples) // most))]:
        state, why = check(entry.op, sample, entry.name not in _UNCHECKED)
        counted[state] += 1
        reasons.setdefault(state, why)
    state = next((s for s in ("failed", "unsupported", "passed") if counted[s]), "not run")
    return state, reasons.get(state, ""), counted.total() - counted["not run"]


def judge(checks: Iterator[tuple[str, tuple[str, str, int]]], kind: str, path: str | None) -> int:
    """Prints what `checks` yields by name (state, why, samples run) and the sums; 1 where one failed."""
    counted = collections.Counter[str]()
    results = {}
    for name, (state, why, ran) in checks:
        counted[state] += 1
        counted["samples"] += ran
        results[name] = {"state": state, "why": why, "samples": ran}
        if state in ("failed", "unsupported"):
            print(f"{state}: {name}: {why[:300]}", flush=True)
    if path:
        with open(path, "w") as file:
            json.dump(results, file, indent=1)
    print(f"{counted['samples']} samples, {counted['not run']} {kind} not run")
    print(f"{counted['passed']} passed, {counted['failed']} failed, {counted['unsupported']} unsupported")
    return 1 if counted["failed"] else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda s: s.split(","), default=[], help="names of operators")
    parser.add_argument("--samples", type=int, default=3, help="of each operator, spread over its list")
    parser.add_argument("--json", metavar="OUT")
    args = parser.parse_args()
    warnings.simplefilter("ignore")

    def name_of(entry: Any) -> str:
        return entry.name + (f".{entry.variant_test_name}" if entry.variant_test_name else "")

    checks = ((name_of(entry), run(entry, args.samples)) for entry in operators(args.only))
    return judge(checks, "operators", args.json)


if __name__ == "__main__":
    sys.exit(main())
