"""PyTorch's own samples of its modules through ORTModule:
`python -m tests.conformance.torch_modules [--only Conv2d,LSTM] [--json OUT]`.

torch.testing lists the modules of torch.nn with arguments to build them and to call them. Every sample makes two
training steps in ORTModule and in eager, in train and in eval mode: results, buffers and the gradients of inputs and
parameters are compared. Ends in `N passed, N failed, N unsupported` (modules; unsupported: not captured, it runs
in PyTorch). Needs the package `expecttest`, as torch.testing does.
Not here: operators (torch_operators.py).
"""

from __future__ import annotations

import argparse
import collections
import copy
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ortmodule import Options, ORTModule

from .torch_operators import judge


def step(module: nn.Module, owner: nn.Module, sample: Any) -> list[torch.Tensor | None]:
    """Results, gradients of inputs and of the owner's parameters, and its buffers, after one step."""
    flat, spec = pytree.tree_flatten((sample.args, sample.kwargs))
    flat = [x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in flat]
    args, kwargs = pytree.tree_unflatten(flat, spec)
    owner.zero_grad()
    torch.manual_seed(1)
    results = [r for r in pytree.tree_leaves(module(*args, **kwargs)) if isinstance(r, torch.Tensor)]
    loss = torch.zeros(())
    for r in results:
        if r.requires_grad:
            value = torch.view_as_real(r) if r.is_complex() else r
            loss = loss + (value * torch.linspace(0.5, 1.5, value.numel()).reshape(value.shape)).sum()
    if loss.requires_grad:
        loss.backward()
    given = [x.grad for x in flat if isinstance(x, torch.Tensor)]
    return [*results, *given, *(p.grad for p in owner.parameters()), *(b.clone() for b in owner.buffers())]


def compare(got: Sequence[torch.Tensor | None], expected: Sequence[torch.Tensor | None]) -> str:
    """How they differ; empty: they do not."""
    if len(got) != len(expected):
        return f"{len(got)} values instead of {len(expected)}"
    for g, e in zip(got, expected, strict=True):
        if g is None or e is None:
            if g is not e:
                return f"{'no' if g is None else 'a'} gradient"
            continue
        try:
            torch.testing.assert_close(g, e, rtol=1e-3, atol=1e-4, equal_nan=True)
        except AssertionError as error:
            return " ".join(str(error).split())[:300]
    return ""


def check(entry: Any, sample: Any, training: bool) -> tuple[str, str]:
    """("passed" | "failed" | "unsupported" | "not run", why) for one sample."""
    torch.manual_seed(0)
    try:
        made = sample.constructor_input
        eager = entry.module_cls(*made.args, **made.kwargs).train(training)
        ours = copy.deepcopy(eager)
        expected = [step(eager, eager, sample.forward_input) for _ in range(2)]
    except Exception as error:
        return "not run", f"eager: {type(error).__name__}"
    model = ORTModule(ours, options=Options(dropout="torch"))
    for want in expected:
        try:
            why = compare(step(model, ours, sample.forward_input), want)
        except Exception as error:
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if why:
            return "failed", why
    report = model.report()
    return ("passed", "") if report.fallback == "none" else ("unsupported", str(report.fallback_reason))


def modules(only: Sequence[str] = ()) -> Iterator[Any]:
    """torch.testing's entries, or those of these names."""
    from torch.testing._internal.common_modules import module_db

    for entry in module_db:
        if not only or entry.name.removeprefix("nn.") in only:
            yield entry


def run(entry: Any, most: int) -> tuple[str, str, int]:
    """The worst state among up to `most` samples per mode of an entry, why, and how many ran."""
    counted = collections.Counter[str]()
    reasons: dict[str, str] = {}
    for training in (True, False):
        make = entry.module_inputs_func
        samples = make(entry, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
        samples = [s for s in samples if s.forward_input is not None]
        for sample in samples[:: max(1, -(-len(samples) // most))]:
            state, why = check(entry, sample, training)
            counted[state] += 1
            reasons.setdefault(state, why)
    state = next((s for s in ("failed", "unsupported", "passed") if counted[s]), "not run")
    return state, reasons.get(state, ""), counted.total() - counted["not run"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda s: s.split(","), default=[], help="names of modules")
    parser.add_argument("--samples", type=int, default=1000, help="of each module and mode, spread over its list")
    parser.add_argument("--json", metavar="OUT")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    checks = ((entry.name, run(entry, args.samples)) for entry in modules(args.only))
    return judge(checks, "modules", args.json)


if __name__ == "__main__":
    sys.exit(main())
