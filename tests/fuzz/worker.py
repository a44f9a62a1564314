"""Runs mutants in a process of its own: `python -m tests.fuzz.worker SEEDS STATE FIRST LAST FD [FILE ...]`.

Each file goes through loading, running, and, where it was accepted, building its gradient and running both halves. A
line for each goes to the descriptor FD, before and after: nothing that an operator prints can get among them. Files
named at the end are run instead of mutants.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from ortmodule import _C, InferenceSession, InternalError, ORTModuleError, SessionOptions
from ortmodule.sessions.element_types import torch_type

from .mutations import mutant
from .seeds import read_seeds

ELEMENTS = 1 << 18  # of one input; a model that wants more is not run
RUN_BYTES = 256 << 20  # of the values of a run
RUN_SECONDS = 2.0
ADDRESSES = 3 << 30  # bytes of addresses beyond those in use at the start: malloc refuses instead of the system killing


def limits() -> SessionOptions:
    options = SessionOptions()
    options.max_run_bytes = RUN_BYTES
    options.max_seconds = RUN_SECONDS
    return options


def _tensor(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.rand(shape, dtype=torch.float32).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 4, shape).to(dtype)


def _value(declared: Any) -> Any:
    """A value for an input; None where it would be too large, or has a type that no tensor has."""
    sizes = [d if isinstance(d, int) else 2 for d in (declared.shape if declared.shape is not None else [2, 3])]
    count = 1
    for size in sizes:
        count *= max(size, 1)
    if count > ELEMENTS:
        return None
    made = _tensor(sizes, torch_type(declared.element_type or 1))
    return [made, made.clone()] if declared.is_sequence else made


def infer(data: bytes) -> tuple[str, list[Any] | None]:
    """Loads and runs; how far it came, and the inputs where all could be made."""
    session = InferenceSession(data, limits())
    values = {one.name: _value(one) for one in session.get_inputs()}
    if any(value is None for value in values.values()):
        return "loaded", None
    session.run(None, values)
    return "ran", list(values.values())


def train(data: bytes, values: list[Any]) -> str:
    """Builds the gradient of all floating inputs and runs both halves."""
    given = [v for v in values if isinstance(v, torch.Tensor)]
    if len(given) != len(values):
        return "ran"
    probe = _C.Session(data, "inference", [], {})
    names = [n for n, v in zip(probe.input_names, values, strict=True) if v.is_floating_point()]
    if not names:
        return "ran"
    session = _C.Session(data, "training", names, {"limits": {"run_bytes": RUN_BYTES, "seconds": RUN_SECONDS}})
    inputs = [v.clone().requires_grad_(v.is_floating_point()) for v in values]
    flowing = [y for y in session.run(inputs) if isinstance(y, torch.Tensor) and y.requires_grad]
    if not flowing:
        return "built"
    wanted = [v for v in inputs if v.requires_grad]
    try:
        torch.autograd.grad(flowing, wanted, [torch.ones_like(y) for y in flowing], allow_unused=True)
    except RuntimeError as error:  # torch's engine makes it of every error, and has checks of its own
        if "INTERNAL" in str(error):
            raise
        return "refused in backward"
    return "trained"


def outcome(data: bytes) -> tuple[str, str | None]:
    """How far the file came, and what is wrong about how it was refused."""
    reached = "refused"
    try:
        reached, values = infer(data)
        if values is not None:
            reached = train(data, values)
    except InternalError as error:
        return reached, f"InternalError: {error}"
    except ORTModuleError:
        return reached, None
    except Exception as error:
        return reached, f"{type(error).__name__}: {error}"
    return reached, None


def peak_megabytes() -> int:
    """The most that was resident since this was last asked."""
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return peak >> 10


def main(arguments: list[str]) -> None:
    seeds, state, first, last, descriptor = Path(arguments[0]), *map(int, arguments[1:5])
    files = arguments[5:]
    groups = read_seeds(seeds) if not files else {}
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # whose shadow of all addresses is reserved at once
        resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESSES, used + ADDRESSES))
    report = os.fdopen(descriptor, "w", buffering=1)
    for number in range(first, last):
        rng = random.Random(state * 1_000_000_007 + number)
        data = Path(files[number]).read_bytes() if files else mutant(rng, groups, structured=number % 2 == 1)
        report.write(json.dumps({"began": number}) + "\n")
        torch.manual_seed(number)
        begin = time.process_time()
        reached, problem = outcome(data)
        report.write(
            json.dumps({
                "ended": number, "reached": reached, "problem": problem,
                "seconds": time.process_time() - begin, "megabytes": peak_megabytes(),
            }) + "\n"
        )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
