"""Another checkout beside this one: a benchmark of this folder in both, in turns, and the ratio of what it measures.

    git worktree add ../before COMMIT && make -C ../before setup
    python benchmarks/beside.py --turns 7 --fields own,checks --json out.json ../before overhead.py --no-compile

Both run this checkout's script, this one with the Python in front, the other with that of its own `.venv`, where its
own ortmodule is installed; who begins alternates. Rows are told apart by what they say under `--keys`. For each field
(a number of a row; `fb_ms.median` is one within another) the table has the median of both over the turns, the ratio of
the medians, and the median of the ratios of each turn, which what else runs on the machine moves less. Where that is
much, `--round-by-round` lets both processes of a turn live at once and alternate with every round of the script.
Measured is this machine in this hour: the JSON has every turn.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import ROOT, TURNS, commit, facts, python_of, table, write_json


def number(row: dict[str, Any], field: str) -> float | None:
    value: Any = row
    for part in field.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


class Run:
    """One run of a script in a process of its own, whose rounds can be told when to begin (common.rounds).

    Raises:
        SystemExit: from `rows`, if it failed.
    """

    def __init__(self, python: Path, command: list[str], in_turns: bool) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.out = Path(self.folder.name, "out.json")
        self.command = [str(python), str(ROOT / "benchmarks" / command[0]), *command[1:], "--json", str(self.out)]
        environment = dict(os.environ)
        theirs: tuple[int, ...] = ()
        self.ends: list[int] = []
        if in_turns:
            (their_read, go), (done, their_write) = os.pipe(), os.pipe()
            theirs, self.ends = (their_read, their_write), [go, done]
            environment[TURNS] = f"{their_read},{their_write}"
        with open(self.out.with_name("messages"), "w") as messages:
            self.process = subprocess.Popen(
                self.command, stdout=messages, stderr=messages, cwd=self.folder.name, env=environment, pass_fds=theirs
            )
        for end in theirs:
            os.close(end)

    def between(self) -> bool:
        """Waits until its round is done; whether another will come."""
        return bool(os.read(self.ends[1], 1))

    def go(self) -> None:
        os.write(self.ends[0], b".")

    def rows(self, keys: list[str]) -> dict[str, dict[str, Any]]:
        """Its rows, by name, when it has ended."""
        ended = self.process.wait()
        for end in self.ends:
            os.close(end)
        with self.folder:
            if ended or not self.out.exists():
                messages = self.out.with_name("messages").read_text()
                raise SystemExit(f"{' '.join(self.command)} ended with {ended}:\n{messages}")
            rows = json.loads(self.out.read_text())["rows"]
        return {" ".join(str(row[key]) for key in keys if key in row): row for row in rows}


def whole_runs(pythons: dict[str, Path], order: list[str], args: argparse.Namespace) -> dict[str, Any]:
    """One after the other."""
    return {side: Run(pythons[side], args.command, in_turns=False).rows(args.keys) for side in order}


def round_by_round(pythons: dict[str, Path], order: list[str], args: argparse.Namespace) -> dict[str, Any]:
    """Both at once, of which one waits while the other has a round."""
    runs = {side: Run(pythons[side], args.command, in_turns=True) for side in order}
    going = [side for side in order if runs[side].between()]
    while going:
        for side in list(going):
            runs[side].go()
            if not runs[side].between():
                going.remove(side)
    return {side: run.rows(args.keys) for side, run in runs.items()}


def compared(turns: list[dict[str, dict[str, dict[str, Any]]]], fields: list[str]) -> list[dict[str, Any]]:
    """For each row and field: both sides' medians and ratios, this checkout by the other."""
    found = []
    for name in turns[0]["here"]:
        for field in fields:
            pairs = [
                (number(turn["here"].get(name, {}), field), number(turn["other"].get(name, {}), field))
                for turn in turns
            ]  # fmt: skip
            whole = [(here, other) for here, other in pairs if here is not None and other is not None]
            if not whole:
                continue
            here, other = (statistics.median(side) for side in zip(*whole, strict=True))
            ratios = [a / b for a, b in whole if b]
            found.append({
                "row": name, "field": field, "here": here, "other": other, "ratio": here / other if other else None,
                "ratio_of_turns": statistics.median(ratios) if ratios else None, "turns": whole,
            })  # fmt: skip
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--fields", type=lambda s: s.split(","), required=True, help="numbers of a row to compare")
    parser.add_argument("--keys", type=lambda s: s.split(","), default=["model", "runner", "nodes", "modules"])
    parser.add_argument("--round-by-round", action="store_true", help="alternate within a turn: needs common.rounds")
    parser.add_argument("--json", metavar="OUT", help="written after every turn")
    parser.add_argument("other", type=lambda s: Path(s).resolve(), help="the other checkout, set up")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a script of this folder and its arguments")
    args = parser.parse_args()
    if not args.command:
        parser.error("a script is missing, e.g. overhead.py")
    checkouts = {"here": ROOT, "other": args.other}
    pythons = {side: python_of(checkout) for side, checkout in checkouts.items()}
    commits = {side: commit(checkout) for side, checkout in checkouts.items()}
    turns: list[dict[str, dict[str, dict[str, Any]]]] = []
    result: dict[str, Any] = {"environment": facts(), "commits": commits, "command": args.command}
    result["round_by_round"] = args.round_by_round
    for turn in range(args.turns):
        order = list(checkouts) if turn % 2 else list(reversed(checkouts))
        turns.append((round_by_round if args.round_by_round else whole_runs)(pythons, order, args))
        result["rows"] = compared(turns, args.fields)
        if args.json:
            write_json(args.json, result)
    short = [re.sub("(?<=^[0-9a-f]{9})[0-9a-f]*", "", commits[side] or side) for side in checkouts]
    columns = ("row", "field", *short, "ratio", "of turns")
    cells = [
        (
            row["row"], row["field"], *(f"{row[side]:.4g}" for side in ("here", "other")),
            *(f"{row[key]:.3f}" if row[key] else "-" for key in ("ratio", "ratio_of_turns")),
        )
        for row in result["rows"]
    ]  # fmt: skip
    print(table(columns, cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
