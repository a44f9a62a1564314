"""`python -m tests.shaken --one-in 100 python -m pytest tests/distributed`: a command whose threads sleep at random.

All its processes get shim.cpp, which delays locks, signals and sockets; races that need an unlikely order of events
show within minutes. `--asan` preloads AddressSanitizer as well, which knows memory that is freed twice, or read after
it was freed by what calls it through libc, in any library (one_in about 100; some three times slower). With a core file
(`ulimit -c unlimited`) gdb tells where it ended otherwise. Ends with the command's status.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SHIM = Path(__file__).with_name("shim.cpp")


def library(name: str) -> str:
    """The path of one of the compiler's libraries."""
    return subprocess.check_output([os.environ.get("CXX", "g++"), f"-print-file-name={name}"], text=True).strip()


def run(command: list[str], one_in: int, asan: bool) -> int:
    with tempfile.TemporaryDirectory() as folder:
        shim = f"{folder}/shim.so"
        flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-o", shim, str(SHIM), "-ldl"]
        subprocess.run([os.environ.get("CXX", "g++"), *flags], check=True)
        # In this order: AddressSanitizer first, and what it asks of C++'s library behind it.
        preloaded = [*([library("libasan.so"), library("libstdc++.so")] if asan else []), shim]
        around = os.environ | {"LD_PRELOAD": " ".join(preloaded), "SHAKEN_ONE_IN": str(one_in)}
        if asan:
            around |= {"PYTHONMALLOC": "malloc", "ASAN_OPTIONS": "detect_leaks=0:malloc_context_size=40"}
        return subprocess.run(command, env=around).returncode


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.shaken", description=__doc__)
    parser.add_argument(
        "--one-in", type=int, default=100, help="how many calls a sleep comes to (default: %(default)s)"
    )
    parser.add_argument("--asan", action="store_true", help="with AddressSanitizer")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what is run")
    args = parser.parse_args()
    if not args.command or args.one_in < 1:
        parser.error("expected a command, and a number of calls from 1 on")
    if shutil.which(args.command[0]) is None:
        parser.error(f"there is no program {args.command[0]}")
    sys.exit(run(args.command, args.one_in, args.asan))


if __name__ == "__main__":
    main()
