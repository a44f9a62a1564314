"""Runs ONNX's backend tests through InferenceSession: `python -m tests.conformance [--kinds node,light] [--match X]`.

Prints what failed and what is not supported, by reason, and last `N passed, N failed, N unsupported`. The tests run in
a process of their own, which is started again when one crashes or hangs: that counts as failed.
"""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

from .cases import RANDOM, assert_equal, cases, data_of, model_of

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "light")
SECONDS = 120.0  # for one test


def run(kind: str, name: str) -> tuple[str, str]:
    """("passed" | "failed" | "unsupported", why)."""
    import numpy as np

    import ortmodule

    case = cases(kind)[name]
    if name.startswith(RANDOM):
        return "unsupported", "the expected output is a draw of another generator"
    model = model_of(case)
    try:
        session = ortmodule.InferenceSession(model)
        names = [v.name for v in session.get_inputs()]
        for inputs, outputs in data_of(case):
            got = session.run(None, dict(zip(names, inputs)))
            with np.errstate(all="ignore"):
                for g, w in zip(got, outputs, strict=True):
                    assert_equal(g, w, case.rtol, case.atol)
    except ortmodule.UnsupportedError as error:
        return "unsupported", " ".join(str(error).split())
    except Exception as error:
        return "failed", f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
    return "passed", ""


def serve() -> None:
    """Answers each "kind name" line of standard input with a JSON line."""
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        kind, name = line.split()
        print(json.dumps(run(kind, name)), flush=True)


class Server:
    """The process that runs the tests."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def ask(self, kind: str, name: str) -> tuple[str, str]:
        import select

        if self.process is None or self.process.poll() is not None:
            command = [sys.executable, "-W", "ignore", "-m", "tests.conformance", "--serve"]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{kind} {name}\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], SECONDS)
        line = self.process.stdout.readline() if ready else ""
        if line:
            state, why = json.loads(line)
            return state, why
        self.process.kill()
        code = self.process.wait()
        self.process = None
        return "failed", f"crashed with {code}" if ready else f"took more than {SECONDS:.0f} s"

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def report(results: dict[str, tuple[str, str]], by_kind: dict[str, list[str]]) -> None:
    for state in ("failed", "unsupported"):
        for name, (got, why) in results.items():
            if got == state:
                print(f"{state}  {name}: {why}")
    reasons: collections.Counter[tuple[str, str]] = collections.Counter()
    for state, why in results.values():
        if state != "passed":
            reasons[state, why.split(" (")[0][:100]] += 1
    print("\n  tests  reason")
    for (state, why), count in reasons.most_common(40):
        print(f"  {count:5d}  {state}: {why}")
    print()
    groups = {f"{kind}: ": names for kind, names in by_kind.items()} if len(by_kind) > 1 else {}
    for title, names in [*groups.items(), ("", list(results))]:
        counts = collections.Counter(results[name][0] for name in names)
        print(title + ", ".join(f"{counts[state]} {state}" for state in ("passed", "failed", "unsupported")))


def operator_table(results: dict[str, tuple[str, str]]) -> str:
    """Markdown: every operator of ai.onnx and ours, since when, whether it has a gradient, and its tests."""
    import onnx

    from ortmodule import _C

    known = cases("node")
    tested: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for name, (state, _) in results.items():
        case = known.get(name.partition("_expanded")[0], known.get(name))
        if case is None:
            continue
        nodes = [n for n in case.model.graph.node if n.op_type != "Constant"]
        if nodes:
            tested[nodes[-1].domain, nodes[-1].op_type][state] += 1
    records: dict[tuple[str, str], list[Any]] = collections.defaultdict(list)
    for record in _C.operators():
        records[record["domain"], record["name"]].append(record)
    standard = {("", s.name) for s in onnx.defs.get_all_schemas() if s.domain == ""}
    lines = [
        "# Operators",
        "",
        f"Made by `python -m tests.conformance --table docs/operators.md` with onnx {onnx.__version__}. `since` is the",
        "oldest opset whose form of the operator runs; `passed` counts ONNX's backend tests of the operator.",
        "",
        "| operator | since | gradient | passed | failed | unsupported |",
        "|---|---|---|---|---|---|",
    ]
    for key in sorted({*standard, *records, *tested}):
        if key[1].endswith("Grad"):
            continue
        found, counts = records.get(key, []), tested[key]
        since = ", ".join(map(str, sorted(r["since"] for r in found))) or "not there"
        gradient = "yes" if any(r["differentiable"] for r in found) else "no" if found else ""
        title = f"{key[0]}::{key[1]}" if key[0] else key[1]
        numbers = " | ".join(str(counts[s]) if counts[s] else "" for s in ("passed", "failed", "unsupported"))
        lines.append(f"| {title} | {since} | {gradient} | {numbers} |")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kinds", default="node,light", help=f"of {', '.join(KINDS)}, or all")
    parser.add_argument("--match", default="", help="only tests whose name holds this")
    parser.add_argument("--json", metavar="OUT", help="the result of every test")
    parser.add_argument("--table", metavar="OUT", help="a table by operator, in Markdown")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.serve:
        serve()
        return 0
    warnings.simplefilter("ignore")
    results: dict[str, tuple[str, str]] = {}
    by_kind: dict[str, list[str]] = {}
    server = Server()
    try:
        for kind in KINDS if args.kinds == "all" else args.kinds.split(","):
            by_kind[kind] = [name for name in cases(kind) if args.match in name]
            for name in by_kind[kind]:
                results[name] = server.ask(kind, name)
    finally:
        server.close()
    report(results, by_kind)
    if args.table:
        Path(args.table).parent.mkdir(parents=True, exist_ok=True)
        Path(args.table).write_text(operator_table(results))
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1) + "\n")
    return 1 if any(state == "failed" for state, _ in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
