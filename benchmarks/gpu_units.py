"""The checks that gpu_check.py runs in processes of their own: operators, model families, features, kernels' cases.

    python benchmarks/gpu_units.py operators --device cuda --out results.jsonl --start 0

A line of JSON per unit goes to --out before the next unit begins, so that what a crash or a time limit leaves is whole.
After an error that poisons the CUDA context the process ends with code 3; the caller starts another behind that unit.
The samples are the tests' own: tests/ops/samples, tests/zoo.py, tests/device/features.py, tests/cuda. Eager
PyTorch on the same device is the reference.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

import ortmodule
from common import ROOT

sys.path.append(str(ROOT))

from tests import zoo
from tests.cuda import cases, simulated
from tests.device import features
from tests.ops import engine
from tests.ops.driver import differentiated
from tests.ops.samples import ROWS
from tests.ops.table import Case, Row

POISONED = 3  # exit code
# Reductions on a GPU may add in another order in each run, so fp32 is wider than in the tests.
OPERATOR_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
# What PyTorch says where it has no kernel of a type that would be the reference.
NO_KERNEL = ("not implemented for 'Half'", "Low precision dtypes not supported")
LOSS_TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}
GRADIENT_TOLERANCE = 1e-3  # of the largest element of the gradient
SIZES = ((3, 16), (5, 23))

PARTS = ("operators", "models", "features", "kernels")

Unit = tuple[str, Callable[[], dict[str, Any]]]


# -- operators ---------------------------------------------------------------------------------------------------------


def close(what: str, got: torch.Tensor | None, want: torch.Tensor | None, least: float = 0.0) -> None:
    """Within the tolerance of the type, or `least` where that is more."""
    if got is None or want is None:
        other = want if got is None else got
        assert other is None or not other.any(), f"{what}: only one of the two has a gradient"
        return
    # Operators whose results the host reads leave them there; only values and types are compared.
    got, want = got.detach().cpu(), want.detach().cpu()
    assert got.dtype == want.dtype, f"{what}: {got.dtype} for {want.dtype}"
    assert got.shape == want.shape, f"{what}: {tuple(got.shape)} for {tuple(want.shape)}"
    tolerance = max(OPERATOR_TOLERANCE.get(want.dtype, 0.0), least)
    torch.testing.assert_close(
        got, want, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda m: f"{what}: {' '.join(m.split())}"
    )


def forward(row: Row, case: Case, device: str) -> None:
    inputs = [None if v is None else v.to(device) for v in case.inputs]
    # What is computed from bfloat16 is as exact as that, also where it is float32.
    least = max(row.tolerance or 0.0, *(OPERATOR_TOLERANCE.get(v.dtype, 0.0) for v in inputs if v is not None), 0.0)
    with torch.no_grad():
        torch.manual_seed(1)
        want = engine.run_reference(row, case, inputs, device)
        torch.manual_seed(1)
        got = engine.run_engine(row, case, inputs, device)
    for k, (g, w) in enumerate(zip(got, want, strict=True)):
        close(f"output {k}", g, w, least)


def gradient(row: Row, case: Case, device: str) -> None:
    wanted = differentiated(row, case)
    if not wanted:
        return
    theirs = engine.leaves(row, case, device)
    torch.manual_seed(1)
    want = engine.run_reference(row, case, theirs, device)
    if not any(y.requires_grad for y in want):
        return
    ours = engine.leaves(row, case, device)
    torch.manual_seed(1)
    got = engine.run_engine(row, case, ours, device)
    pairs = zip(engine.gradients(got, ours), engine.gradients(want, theirs), strict=True)
    for i, (g, w) in zip(wanted, pairs):
        close(f"gradient of input {i}", g, w, row.tolerance or 0.0)


def operator(row: Row, device: str, bf16: bool = True) -> dict[str, Any]:
    """All cases of one row, forward and gradient, in fp32, bf16 and fp16. The first failure of each is told."""
    kinds = [("forward", forward, torch.float32)]
    kinds += [("gradient", gradient, torch.float32)] * row.differentiable
    if bf16 and row.bfloat16:
        for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
            kinds += [(f"forward {name}", forward, dtype)]
            kinds += [(f"gradient {name}", gradient, dtype)] * row.differentiable
    cases, failures = 0, {}
    for name, check, dtype in kinds:
        torch.manual_seed(0)
        for case in row.cases(dtype):
            cases += 1
            try:
                check(row, case, device)
            except Exception as error:
                if any(words in str(error) for words in NO_KERNEL):
                    continue
                shapes = [None if v is None else list(v.shape) for v in case.inputs]
                attributes = {k: v for k, v in case.attributes.items() if not isinstance(v, torch.Tensor)}
                failures.setdefault(name, f"{describe(error)} (attributes {attributes}, inputs {shapes})")
                healthy(device)
    return {"cases": cases, "failures": failures}


# -- models ------------------------------------------------------------------------------------------------------------


def moved(inputs: dict[str, torch.Tensor], device: str) -> dict[str, torch.Tensor]:
    return {name: value.to(device) for name, value in inputs.items()}


def train(module: torch.nn.Module, inputs: dict[str, torch.Tensor], device: str, bf16: bool) -> torch.Tensor:
    module.zero_grad(set_to_none=True)
    torch.manual_seed(5)
    with torch.autocast(device, torch.bfloat16, enabled=bf16):
        loss = zoo.loss_of(module(**inputs))
    loss.backward()
    return loss.detach()


def compare(ours: torch.nn.Module, theirs: torch.nn.Module, got: torch.Tensor, want: torch.Tensor, dtype: str) -> float:
    """The largest difference of a gradient over that gradient's largest element; raises when it or the loss is off."""
    rtol = LOSS_TOLERANCE[dtype]
    torch.testing.assert_close(got.float(), want.float(), rtol=rtol, atol=1e-6, msg=lambda m: f"loss: {m}")
    worst = 0.0
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), f"the gradient of {name} exists in one only"
        if p.grad is None:
            continue
        error = float((p.grad - q.grad).abs().max()) / max(float(q.grad.abs().max()), 1e-4)
        worst = max(worst, error)
        assert dtype == "bf16" or error <= GRADIENT_TOLERANCE, (
            f"gradient of {name} is off by {error:.1e} of its maximum"
        )
    if dtype == "fp32":
        for (name, p), q in zip(ours.named_buffers(), theirs.buffers(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"buffer {n}: {m}")
    return worst


def waits(module: torch.nn.Module, inputs: dict[str, torch.Tensor], device: str, bf16: bool) -> list[str]:
    """What of a steady step makes the host wait for a GPU, as far as PyTorch knows of it."""
    if device != "cuda":
        return []
    train(module, inputs, device, bf16)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            train(module, inputs, device, bf16)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    # Setting the mode is warned of, too, once in a process: "... does not yet detect all synchronizing operations".
    return [str(one.message)[:200] for one in told if "called a synchronizing" in str(one.message)]


def family(name: str, device: str, bf16: bool = True) -> dict[str, Any]:
    """One family at two sizes in fp32, and at one under autocast to bf16; what its steady step waits for."""
    out: dict[str, Any] = {"failures": {}}
    for dtype, sizes in (("fp32", SIZES), ("bf16", SIZES[:1]))[: 1 + bf16]:
        try:
            sample = zoo.build(name, *sizes[0])
            theirs = sample.module.to(device)
            ours = ortmodule.ORTModule(copy.deepcopy(theirs), options=ortmodule.Options(dropout="torch"))
            for batch, sequence in sizes:
                sequence = sizes[0][1] if name in zoo.STATIC_SEQUENCE else sequence
                inputs = moved(zoo.build(name, batch, sequence).inputs, device)
                want = train(theirs, inputs, device, dtype == "bf16")
                got = train(ours, inputs, device, dtype == "bf16")
                error = compare(ours, theirs, got, want, dtype)
                out[f"gradient_error_{dtype}"] = max(error, out.get(f"gradient_error_{dtype}", 0.0))
            told = waits(ours, inputs, device, dtype == "bf16")
            out[f"waits_{dtype}"] = len(told)
            if told:
                out[f"waits_{dtype}_said"] = told[:8]
            report = ours.report()
            out[f"aten_nodes_{dtype}"] = report.aten_nodes
            assert report.fallback == "none", f"it fell back to eager: {report.fallback_reason}"
        except Exception as error:
            out["failures"][dtype] = describe(error)
            healthy(device)
    return out


# -- running -----------------------------------------------------------------------------------------------------------


class Poisoned(Exception):
    """The CUDA context is lost."""


def healthy(device: str) -> None:
    if device == "cuda":
        try:
            torch.zeros(1, device=device).add_(1).cpu()
        except Exception as error:
            raise Poisoned(describe(error)) from error


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


def kernel(case: cases.Case, device: str) -> dict[str, Any]:
    """One case of our CUDA kernels in three types, three times each with equal bits. Where they are simulated: once."""
    failures: dict[str, str] = {}
    orders = cases.ORDERS[: 3 if device == "cuda" else 1]
    for dtype in cases.TYPES:
        try:
            cases.check(case, dtype, orders=orders, device=device if device == "cuda" else cases.DEVICE)
        except Exception as error:
            failures[str(dtype).removeprefix("torch.")] = describe(error)
            healthy(device)
    return {"failures": failures}


def feature(check: Callable[[], None], device: str) -> dict[str, Any]:
    try:
        check()
    except Exception as error:
        failures = {"check": describe(error)}
        healthy(device)
        return {"failures": failures}
    return {"failures": {}}


def units(part: str, device: str, small: bool, bf16: bool) -> list[Unit]:
    if part == "features":
        return [(name, lambda c=check: feature(c, device)) for name, check in features.checks(device)]
    if part == "kernels":
        if device != "cuda":
            simulated.simulator()
        found = list(cases.all_cases())[:: 40 if small else 1]
        return [(case.name, lambda c=case: kernel(c, device)) for case in found]
    if part == "operators":
        rows = [row for row in ROWS if device == "cpu" or not row.cpu_alone][:: 12 if small else 1]
        return [(row.qualified_name, lambda r=row: operator(r, device, bf16)) for row in rows]
    names = ["mlp", "gpt2"] if small else zoo.ALL
    return [(name, lambda n=name: family(n, device, bf16)) for name in names]


def main() -> int:
    parser = argparse.ArgumentParser(description="A part of gpu_check.py.")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", required=True)
    parser.add_argument("--start", type=int, default=0, help="skip that many units")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--share", default="0/1", help="1/4: the second of four shares of the units")
    parser.add_argument("--no-bf16", dest="bf16", action="store_false")
    args = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    warnings.simplefilter("ignore")
    share, shares = (int(number) for number in args.share.split("/"))
    todo = units(args.part, args.device, args.small, args.bf16)[share::shares]
    with open(args.out, "a") as out:

        def say(**line: Any) -> None:
            out.write(json.dumps(line, default=str) + "\n")
            out.flush()

        say(total=len(todo))
        for index, (name, check) in enumerate(todo[args.start :], args.start):
            say(begins=index, unit=name)
            start = time.perf_counter()
            try:
                found = check()
            except Poisoned as error:
                say(unit=name, index=index, failures={"device": str(error)})
                return POISONED
            say(unit=name, index=index, seconds=time.perf_counter() - start, **found)
    # autograd's thread of the device may still hold the last grad()'s results, and needs the GIL to let go: a process
    # that ends meanwhile is aborted (PyTorch's own, without ORTModule too). Sleeping leaves the GIL to it
    time.sleep(0.5)
    return 0


if __name__ == "__main__":
    sys.exit(main())
