"""CUDA kernels on the simulated GPU: `python -m tests.cuda kernels`, `models` or `mutations`.

kernels: the cases of kernel_cases.py whose names have --match in them, in all types, a line of JSON each. models:
models.py; mutations: mutations.py. --quick: one order of threads, for a run under a sanitizer. Not here: what pytest
asks of them (test_kernels.py).
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import time
import traceback


def kernels(match: str, quick: bool) -> int:
    from .cases import TYPES, all_cases, check, wasteful
    from .simulated import ORDERS, simulator

    simulator()
    wrong = 0
    for case in (c for c in all_cases() if match in c.name):
        begin = time.perf_counter()
        failures: dict[str, str] = {}
        for dtype in TYPES:
            name = str(dtype).removeprefix("torch.")
            try:
                if found := wasteful(case, check(case, dtype, orders=ORDERS[: 1 if quick else None])):
                    failures[name] = f"sectors per needed sector: {found}"
            except Exception as error:
                text = "".join(traceback.format_exception_only(error))
                failures[name] = text[-600:]
        wrong += bool(failures)
        seconds = round(time.perf_counter() - begin, 3)
        print(json.dumps({"case": case.name, "failures": failures, "seconds": seconds}), flush=True)
    time.sleep(0.5)  # for autograd's thread of the device; why, says benchmarks/gpu_units.py
    return int(wrong > 0)


def main() -> int:
    faulthandler.enable()
    parser = argparse.ArgumentParser(description="CUDA kernels on the simulated GPU.")
    parser.add_argument("part", choices=("kernels", "models", "mutations"))
    parser.add_argument("--match", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--every", type=int, default=1, help="of the mutations or models, each so many")
    args = parser.parse_args()
    if args.part == "kernels":
        return kernels(args.match, args.quick)
    if args.part == "models":
        from . import models

        return models.main(args.match)
    from . import mutations

    return mutations.main(args.match, args.every)


if __name__ == "__main__":
    sys.exit(main())
