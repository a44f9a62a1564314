"""`python -m ortmodule.debug diff A B`: where two recordings part; `show A`: what one has.

The status is that of `diff`: 0 where the recordings agree, 1 where they part, 2 where there is nothing to compare.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ..errors import InvalidArgumentError
from ..globs import Choice
from .divergence import diff
from .recording import recordings


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ortmodule.debug", description="Recordings of ortmodule.debug.record."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    two = commands.add_parser("diff", help="the first step and value at which two recordings part")
    two.add_argument("a", help="a folder that was recorded to")
    two.add_argument("b", help="another one")
    two.add_argument("--rtol", type=float, default=0.0, help="of the largest number of a value (default: every bit)")
    two.add_argument("--atol", type=float, default=0.0, help="a difference that is never too large")
    one = commands.add_parser("show", help="what a recording has")
    one.add_argument("a", help="a folder that was recorded to")
    one.add_argument("--step", type=int, help="the step whose values are shown")
    one.add_argument("--names", default="", help="globs over names of values and nodes, with commas between")
    one.add_argument("--operators", default="", help="globs over operators of nodes")
    asked = parser.parse_args(arguments)
    try:
        if asked.command == "diff":
            found = diff(asked.a, asked.b, rtol=asked.rtol, atol=asked.atol)
            print(found)
            return 0 if found.equal else 1
        show(asked.a, asked.step, Choice(asked.names, asked.operators))
        return 0
    except InvalidArgumentError as error:
        print(error, file=sys.stderr)
        return 2


def show(directory: str, number: int | None, choice: Choice) -> None:
    for recording in recordings(directory).values():
        print(recording)
        if number is None:
            continue
        for half in recording.step(number).halves:
            print(f"step {number} {half.half}" + (f" of '{half.module}'" if half.module else ""))
            for value in half.values:
                if choice.takes([value.name, value.label], value.node, value.operator):
                    print(f"  {value}: {value.statistics}")


if __name__ == "__main__":
    sys.exit(main())
