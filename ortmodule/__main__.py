"""`python -m ortmodule`: prints environment and build, for bug reports; `--include-dir`: the folder of headers;
`--cmake-dir`: the folder for find_package(ortmodule)."""

from __future__ import annotations

import argparse

from .environment import environment
from .extending import cmake_dir, include_dir
from .graph_transition.disk.cache import usage
from .options import Options


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ortmodule", description="The environment and the build.")
    parser.add_argument("--include-dir", action="store_true", help="print the folder with ortmodule/custom_op.h")
    parser.add_argument("--cmake-dir", action="store_true", help="print what ortmodule_DIR is for find_package")
    asked = parser.parse_args()
    if asked.include_dir or asked.cmake_dir:
        print(include_dir() if asked.include_dir else cmake_dir())
        return
    facts = environment()
    options = Options()
    count, size = usage(options.cache_dir) if options.cache_dir else (0, 0)
    kept = f"{options.cache_dir}, {count} graphs, {size / 2**20:.1f} of {options.cache_dir_mib} MiB"
    facts["disk cache"] = kept if options.cache_dir else "off (ORTMODULE_CACHE_DIR)"
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:{width}}  {value}")


if __name__ == "__main__":
    main()
