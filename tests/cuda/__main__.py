"""CUDA kernels on the simulated GPU: `python -m tests.cuda kernels`, `sanitized`, `models`, `pictures`, `layouts`,
`steps` or `mutations`.

kernels: the cases of kernel_cases.py whose names have --match in them, in all types, a line of JSON each. sanitized:
the same under AddressSanitizer and UBSan, with threads in one order. models, pictures, layouts, steps, mutations: the
files of these names. Not here: what pytest asks of them (test_kernels.py).
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import subprocess
import sys
import time
import traceback


def kernels(match: str, every: int, first: int, quick: bool, device: str | None) -> int:
    from .cases import DEVICE, TYPES, all_cases, check, wasteful
    from .simulated import ORDERS, simulator

    if device is None:
        simulator()
    wrong = 0
    orders = ORDERS[: 1 if quick else None]
    for case in [c for c in all_cases() if match in c.name][first::every]:
        begin = time.perf_counter()
        failures: dict[str, str] = {}
        for dtype in TYPES:
            name = str(dtype).removeprefix("torch.")
            try:
                if found := wasteful(case, check(case, dtype, orders=orders, device=device or DEVICE)):
                    failures[name] = f"sectors per needed sector: {found}"
            except Exception as error:
                text = "".join(traceback.format_exception_only(error))
                failures[name] = text[-600:]
        wrong += bool(failures)
        seconds = round(time.perf_counter() - begin, 3)
        print(json.dumps({"case": case.name, "failures": failures, "seconds": seconds}), flush=True)
    time.sleep(0.5)  # for autograd's thread of the device; why, says benchmarks/gpu_units.py
    return int(wrong > 0)


def sanitized(arguments: list[str]) -> int:
    """Becomes a process that has the sanitizers' libraries before all others, for a library that needs them."""
    from .simulated import SANITIZED

    found = [subprocess.run(["g++", f"-print-file-name=lib{name}.so"], capture_output=True, text=True, check=True)
             for name in ("asan", "ubsan")]  # fmt: skip
    os.environ["LD_PRELOAD"] = " ".join(one.stdout.strip() for one in found)
    # What leaks is Python's.
    os.environ["ASAN_OPTIONS"] = "detect_leaks=0:quarantine_size_mb=32"
    os.environ["ORTMODULE_SIMULATED_CUDA"] = str(SANITIZED)
    os.execv(sys.executable, [sys.executable, "-m", "tests.cuda", "kernels", "--quick", *arguments])


def main() -> int:
    faulthandler.enable()
    parser = argparse.ArgumentParser(description="CUDA kernels on the simulated GPU.")
    parts = ("kernels", "sanitized", "models", "pictures", "layouts", "steps", "mutations")
    parser.add_argument("part", choices=parts)
    parser.add_argument("--match", default="")
    parser.add_argument("--quick", action="store_true", help="threads in one order")
    parser.add_argument("--every", type=int, default=1, help="of the kernels or mutations, each so many")
    parser.add_argument("--first", type=int, default=0, help="of those: where to begin")
    parser.add_argument("--device", choices=("cuda",), help="kernels: a real GPU instead of the simulated one")
    parser.add_argument("--seconds", type=float, default=1e9, help="of the mutations: a later run goes on")
    parser.add_argument("--steps", type=int, default=20, help="of the models")
    args = parser.parse_args()
    if args.part == "kernels":
        return kernels(args.match, args.every, args.first, args.quick, args.device)
    if args.part == "sanitized":
        return sanitized(["--match", args.match, "--every", str(args.every)])
    if args.part == "models":
        from . import models

        return models.main(args.match, args.steps)
    if args.part == "pictures":
        from . import pictures

        return pictures.main(args.match)
    if args.part == "layouts":
        from . import layouts

        return layouts.main(args.match)
    if args.part == "steps":
        from . import steps

        return steps.main(args.match, 200)
    from . import mutations

    return mutations.main(args.match, args.every, args.seconds)


if __name__ == "__main__":
    sys.exit(main())
