"""Runs broken calls of operators: the table's samples with one to three things changed at random.

`python -m tests.ops.fuzzing FIRST LAST` runs the numbered calls and prints a line before each, so that whoever watches
knows which one crashed or hung; errors that are not the library's own are printed. Memory is bounded.
"""

from __future__ import annotations

import random
import resource
import sys
import warnings
from dataclasses import replace
from typing import Any

import torch

from ortmodule import ORTModuleError

from .engine import build
from .forms import record_of
from .samples import ROWS
from .table import Case, Row

INTEGERS = (-(2**63), -(2**31), -7, -1, 0, 1, 2, 3, 64, 10**6, 2**31, 2**62)
FLOATS = (0.0, -1.0, 1e-30, 1e9, 1e30, float("inf"), float("nan"))
WORDS = ("", "none", "linear", "no such thing", "x" * 300)
DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
    torch.bool,
)
MEMORY = 6 << 30
# A Loop runs as often as it is told.
FUZZED = [row for row in ROWS if row.name != "Loop"]


def changed_attribute(rng: random.Random, value: Any) -> Any:
    if isinstance(value, bool | int):
        return rng.choice(INTEGERS)
    if isinstance(value, float):
        return rng.choice(FLOATS)
    if isinstance(value, str):
        return rng.choice(WORDS)
    if isinstance(value, list):
        how = rng.randrange(4)
        if how == 0:
            return value[:-1]
        if how == 1:
            return value + value
        if how == 2:
            return []
        changed = list(value)
        if changed:
            changed[rng.randrange(len(changed))] = changed_attribute(rng, changed[0])
        return changed
    return value


def changed_tensor(rng: random.Random, value: torch.Tensor) -> torch.Tensor | None:
    how = rng.randrange(9)
    if how == 0:
        return None
    if how == 1:
        return value.unsqueeze(rng.randint(0, value.dim()))
    if how == 2:
        return value.flatten()
    if how == 3:
        return value.reshape(-1)[:1].reshape(()) if value.numel() else value
    if how == 4 and value.dim():
        return value.narrow(rng.randrange(value.dim()), 0, 0)
    if how == 5 and value.dim() and value.numel():
        axis = rng.randrange(value.dim())
        return torch.cat([value, value], axis)
    if how == 6 and value.dim() and value.numel():
        return value.narrow(rng.randrange(value.dim()), 0, 1)
    if how == 7:
        return value.to(rng.choice(DTYPES))
    if value.numel() and value.dtype in (torch.int64, torch.int32):
        changed = value.clone()
        limits = torch.iinfo(value.dtype)
        number = max(limits.min, min(limits.max, rng.choice(INTEGERS)))
        changed.view(-1)[rng.randrange(changed.numel())] = number
        return changed
    if value.numel() and value.is_floating_point():
        changed = value.clone()
        changed.reshape(-1)[rng.randrange(changed.numel())] = rng.choice(FLOATS)
        return changed
    return value


def changed_call(rng: random.Random, row: Row, case: Case) -> Case:
    inputs, attributes = list(case.inputs), dict(case.attributes)
    constants, outputs = case.constants, case.outputs
    for _ in range(rng.randint(1, 3)):
        how = rng.randrange(10)
        if how < 5 and inputs:
            at = rng.randrange(len(inputs))
            value = inputs[at]
            inputs[at] = torch.zeros(2, 3) if value is None else changed_tensor(rng, value)
        elif how < 7 and attributes:
            name = rng.choice(sorted(attributes))
            attributes[name] = changed_attribute(rng, attributes[name])
        elif how == 7 and record_of(row)["attributes"]:
            choices = [rng.choice(INTEGERS), rng.choice(FLOATS), rng.choice(WORDS), [rng.choice(INTEGERS)] * 2, []]
            attributes[rng.choice(record_of(row)["attributes"])] = rng.choice(choices)
        elif how == 8:
            inputs = inputs[:-1] if rng.random() < 0.5 else [*inputs, torch.ones(2)]
        else:
            outputs = rng.randint(1, 4)
    constants = tuple(i for i in constants if i < len(inputs) and inputs[i] is not None)
    if rng.random() < 0.2:
        constants = tuple(i for i in constants if rng.random() < 0.5)
    return replace(case, inputs=tuple(inputs), attributes=attributes, constants=constants, outputs=outputs)


def describe(row: Row, case: Case) -> str:
    shown = [None if v is None else (tuple(v.shape), str(v.dtype)) for v in case.inputs]
    return f"{row.qualified_name} {case.attributes} {shown} constants {case.constants} outputs {case.outputs}"


def run(number: int) -> str | None:
    """What went wrong with this call: an error that is not the library's own."""
    rng = random.Random(number)
    row = rng.choice(FUZZED)
    torch.manual_seed(number)
    cases = list(row.cases(torch.float32))
    case = changed_call(rng, row, rng.choice(cases))
    typed, trained = rng.random() < 0.5, row.differentiable and rng.random() < 0.3
    try:
        built = build(row, case)
    except Exception:
        return None  # not even a model
    if not typed:
        for info in built.model.graph.input:
            info.type.tensor_type.ClearField("shape")
    wanted = [
        name for name, i in zip(built.names, built.slots) if (v := case.inputs[i]) is not None and v.is_floating_point()
    ]
    try:
        session = built.session(wanted if trained else [])
        values = [v.clone() for i in built.slots if (v := case.inputs[i]) is not None]
        if trained:
            values = [v.requires_grad_() if v.is_floating_point() else v for v in values]
        outputs = session.run(values)
    except ORTModuleError:
        return None
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]} | {describe(row, case)}"
    flowing = [y for y in outputs if y is not None and y.requires_grad]
    if flowing:
        try:
            torch.autograd.grad(
                flowing,
                [v for v in values if v.requires_grad],
                [torch.ones_like(y) for y in flowing],
                allow_unused=True,
            )
        except Exception:  # autograd raises its own; it must only not crash
            pass
    return None


def main(first: int, last: int) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in range(first, last):
        print(number, flush=True)
        problem = run(number)
        if problem:
            print(f"problem {number}: {problem}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
