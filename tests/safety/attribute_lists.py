"""Lists that do not fit their tensors: `python -m tests.safety.attribute_lists [FIRST [STEP]]` runs them in this
process, each STEP-th from FIRST on.

For each operator with list attributes (pads, strides, axes, perm, split ...), and for each input that is such a list,
lists that are too short, too long, empty, negative, out of range, in the samples of tests/ops. Prints a line for each
case before it runs, and what is wrong behind it.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import onnx
import torch

from ortmodule import InternalError, ORTModuleError

from ..ops.engine import build
from ..ops.forms import record_of
from ..ops.samples import ROWS
from ..ops.table import Case, Row

FAR = (-(2**63), 2**63 - 1, -1000, 10**4)


def broken_lists(values: list[int]) -> Iterator[list[int]]:
    """Lists like `values` that few tensors fit; not every one is wrong."""
    yield []
    yield [0] * len(values)
    yield [-1] * len(values)
    yield values[:-1]
    yield [*values, *(values or [1])]
    yield values * 4
    for far in FAR:
        yield [far, *values[1:]]
        yield [*values[:-1], far]


def list_attributes(row: Row, case: Case) -> dict[str, list[Any]]:
    """Those that the sample gives, and those that it leaves away."""
    given = {name: list(v) for name, v in case.attributes.items() if isinstance(v, list | tuple)}
    rank = next((v.dim() for v in case.inputs if v is not None), 1)
    try:
        schema = onnx.defs.get_schema(row.name, row.opset, row.domain)
    except onnx.defs.SchemaError:
        return {name: v for name, v in given.items() if v and isinstance(v[0], int)}
    known = record_of(row)["attributes"]
    for name, attribute in schema.attributes.items():
        if attribute.type == onnx.defs.OpSchema.AttrType.INTS and name in known and name not in given:
            given[name] = [1] * rank
    return {name: v for name, v in given.items() if not v or isinstance(v[0], int)}


def cases() -> Iterator[tuple[str, Row, Case]]:
    """Each with a name."""
    for row in ROWS:
        torch.manual_seed(0)
        samples = list(row.cases(torch.float32))
        seen: set[Any] = set()
        for case in samples:
            for name, values in list_attributes(row, case).items():
                if name in seen:
                    continue
                seen.add(name)
                for k, broken in enumerate(broken_lists(values)):
                    attributes = {**case.attributes, name: broken}
                    yield f"{row.qualified_name} {name} {k}", row, replace(case, attributes=attributes)
            for i, value in enumerate(case.inputs):
                is_list = value is not None and value.dim() == 1 and value.dtype == torch.int64
                if row.name == "Loop" or not is_list or i in seen or value.numel() > 8:
                    continue
                seen.add(i)
                for k, broken in enumerate(broken_lists(value.tolist())):
                    inputs = (*case.inputs[:i], torch.tensor(broken, dtype=torch.int64), *case.inputs[i + 1 :])
                    for constants in (tuple({*case.constants, i}), tuple(c for c in case.constants if c != i)):
                        named = f"{row.qualified_name} input {i} {'constant' if i in constants else 'given'} {k}"
                        yield named, row, replace(case, inputs=inputs, constants=constants)


def run(row: Row, case: Case) -> tuple[str, str]:
    """Whether it was refused, and what is wrong about that."""
    try:
        built = build(row, case)
    except Exception:
        return "no model", ""
    values = [v for i in built.slots if (v := case.inputs[i]) is not None]
    wanted = [name for name, v in zip(built.names, values, strict=True) if v.is_floating_point()]
    try:
        for trained in ([], wanted if row.differentiable else []):
            given = [v.clone().requires_grad_(bool(trained) and v.is_floating_point()) for v in values]
            outputs = built.session(trained).run(given)
            flowing = [y for y in outputs if isinstance(y, torch.Tensor) and y.requires_grad]
            if flowing:
                leaves = [v for v in given if v.requires_grad]
                torch.autograd.grad(flowing, leaves, [torch.ones_like(y) for y in flowing], allow_unused=True)
    except InternalError as error:
        return "refused", f"InternalError: {error}"
    except ORTModuleError:
        return "refused", ""
    except RuntimeError as error:  # torch's engine turns errors of a backward into these
        return "refused", f"RuntimeError: {error}" if "INTERNAL" in str(error) else ""
    except Exception as error:
        return "refused", f"{type(error).__name__}: {error}"
    return "ran", ""


def main(first: int = 0, step: int = 1) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name, row, case in itertools.islice(cases(), first, None, step):
        print(f"case {name}", flush=True)
        how, problem = run(row, case)
        print(f"{how} {' '.join(problem.split())[:300]}".rstrip(), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
