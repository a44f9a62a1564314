"""`python -m ortmodule`: prints environment and build, for bug reports; `--include-dir`: the folder of headers."""

from __future__ import annotations

import argparse

from .environment import environment
from .extending import include_dir


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ortmodule", description="The environment and the build.")
    parser.add_argument("--include-dir", action="store_true", help="print the folder with ortmodule/custom_op.h")
    if parser.parse_args().include_dir:
        print(include_dir())
        return
    facts = environment()
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:{width}}  {value}")


if __name__ == "__main__":
    main()
