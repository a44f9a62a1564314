"""`python -m tests.trust --programs 3000 --seed 1 --wrappers ortmodule,compile`; see the package for what it does.

`--show N` runs one program here, prints its source, its schedule and what differed. Program N of a seed is always the
same. `--only TEXT` keeps the programs of which a place, reading or change has TEXT in its name.
"""

from __future__ import annotations

import argparse
import json
import threading
from pathlib import Path
from typing import Any

from .comparing import RIGHT, SILENT
from .programs import program
from .table import engine_share, failures, table
from .workers import answer, results, serve
from .wrappers import WRAPPERS


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.trust", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=300, help="how many (default: 300)")
    parser.add_argument("--start", type=int, default=0, help="number of the first one (default: 0)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--depth", type=int, default=0, help="make each program's model a stack of so many equal parts")
    parser.add_argument("--wrappers", default="ortmodule", help=f"of {', '.join(WRAPPERS)}, with commas between")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (default: 1)")
    parser.add_argument("--only", default="", metavar="TEXT", help="programs with this in the name of a kind")
    parser.add_argument("--show", type=int, metavar="N", help="run program N alone and print it")
    parser.add_argument("--source", action="store_true", help="with --show: print it, do not run it")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the results, a program each, as JSON, also on the way",
    )
    parser.add_argument("--list", type=int, default=40, metavar="N", help="how many failures to list (default: 40)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def show(args: argparse.Namespace, wrappers: list[str]) -> None:
    made = program(args.seed, args.show, args.depth)
    print(made.text())
    if args.source:
        return
    import torch

    torch.set_num_threads(1)
    found = answer(args.seed, args.show, wrappers, args.depth)
    print(f"watchable: {found['watchable']}; eager raises: {found['raises'] or 'nothing'}")
    for name, outcome in found["outcomes"].items():
        where = f" at step {outcome['step']}" if outcome["step"] >= 0 else ""
        engine = (
            f", in the engine before: {outcome['before']}, after: {outcome['after']}"
            if name == "ortmodule" and outcome["verdict"] == RIGHT
            else ""
        )
        print(f"{name}: {outcome['verdict']}{where}{engine} {outcome['text']}")


def chosen(args: argparse.Namespace) -> list[int]:
    """Numbers of the programs; with `--only` the first that have the kind."""
    if not args.only:
        return list(range(args.start, args.start + args.programs))
    numbers: list[int] = []
    for number in range(args.start, args.start + 60 * args.programs):
        made = program(args.seed, number, args.depth)
        if any(args.only in kind for kind in (*made.places, *made.readings, *made.changes, *made.whens)):
            numbers.append(number)
            if len(numbers) == args.programs:
                break
    return numbers


def write(path: Path, found: list[dict[str, Any]]) -> None:
    """At once, so that a run that is stopped leaves what it had found."""
    fresh = path.with_name(f"{path.name}.{threading.get_ident()}")
    fresh.write_text(json.dumps(found, indent=1))
    fresh.replace(path)


def main() -> int:
    args = arguments()
    if args.serve:
        serve()
        return 0
    wrappers = [w for w in args.wrappers.split(",") if w]
    unknown = [w for w in wrappers if w not in WRAPPERS]
    if unknown:
        raise SystemExit(f"unknown wrapper {unknown[0]!r}; there are {', '.join(WRAPPERS)}")
    if args.show is not None:
        show(args, wrappers)
        return 0
    from tqdm import tqdm  # type: ignore[import-untyped]

    numbers = chosen(args)
    with tqdm(total=len(numbers), unit="program", smoothing=0.05) as bar:

        def done(so_far: list[dict[str, Any]]) -> None:
            bar.update()
            if args.json and len(so_far) % 100 == 0:
                write(args.json, so_far)

        found = results(args.seed, numbers, wrappers, jobs=args.jobs, depth=args.depth, done=done)
    print(table(found, wrappers))
    for wrapper in wrappers:
        wrong = [r for r in found if r["outcomes"][wrapper]["verdict"] != RIGHT]
        for r in sorted(wrong, key=lambda r: (r["outcomes"][wrapper]["verdict"] != SILENT, r["number"]))[: args.list]:
            o, kinds = r["outcomes"][wrapper], f"{', '.join(r['places'])}; {', '.join(r['changes'])}"
            print(f"{wrapper} {r['number']}: {o['verdict']} ({kinds}): {o['text'][:150]}")
        ran, could = engine_share(found, wrapper)
        silent = len(failures(found, wrapper))
        share = f", in the engine before and after {ran} of {could}" if wrapper == "ortmodule" else ""
        print(f"{wrapper}: {len(found) - len(wrong)} of {len(found)} right, {silent} silently wrong{share}")
    if args.json:
        write(args.json, found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
