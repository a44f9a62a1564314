"""Whether the cases would notice: each barrier of the kernels left out, each bound moved by one.

`python -m tests.cuda mutations --match norm`. All mutants are in one library, which is compiled once: a comparison asks
when it runs whether it is the one that is wrong (mutants.h). Each mutant is a fork of this process, which runs the
cases that come by its line until one fails, the quickest first. What none notices is told. Bounds of arrays in
registers are checked by the compiler's own means. What was found is kept beside the library, by a hash of the cases:
`--seconds 200` ends after so many, and the next run goes on. Not here: mutants of code of the host, which chooses
kernels and counts blocks.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..device.__main__ import ROOT

CSRC = ROOT / "csrc"
BARRIER = re.compile(r"\b__sync(threads|warp)\(\);")
COMPARISON = re.compile(r"(?<=[\w)\]}]) (<|<=|>|>=) (?=[\w(])")
NAMES = {"<": "LESS", "<=": "LESS_OR_EQUAL", ">": "GREATER", ">=": "GREATER_OR_EQUAL"}
SHIFTED = {"<": ("<=", "+ 1 <"), "<=": ("<", "- 1 <="), ">": (">=", "- 1 >"), ">=": (">", "+ 1 >=")}
FLAGS = ["-std=c++20", "-O1", "-fPIC", "-w", "-fsanitize=bounds", "-fsanitize-undefined-trap-on-error"]
# What changes no result, by a part of the line and the change.
EQUIVALENT = {
    ("first < N; first += kPart", "+ 1 <"): "both are multiples of kPart, which is 4 or 8",
    ("if (first + N <= n) {", "<"): "the last vector element by element, to the same values",
    ("first + (lane + 1) * N <= a.count", "<"): "the last vector element by element, to the same values",
    ("return a > b || a != a ? a : b", ">="): "one of two equal numbers",
    ("for (int v = 0; v < kHeld; ++v) {", "<="): "the column of a vector that is not held is beyond the row",
    ("if (now > Maximum::kNothing) {", "- 1 >"): "nothing but minus infinity is minus infinity less 1",
    ("if (largest > Maximum::kNothing)", "- 1 >"): "nothing but minus infinity is minus infinity less 1",
    (
        "if (largest > Maximum::kNothing)",
        ">=",
    ): "a sum that is 0 times exp of minus infinity, or of NaN in a row of NaN",
    ("if (first > 0 && a.same(first - 1, first)", "- 1 >"): "a multiple of 64 is above 1 where it is above 0",
    ("if (i + N <= end) {", "<"): "the last vector element by element, to the same values",
    ("i < end; i += kListThreads * N", "<="): "a vector that begins at the end has no elements",
    ("if (row >= n.rows || column >= n.columns) return;", ">"): "a tile that begins at the end has no results",
    ("step < n.steps; step += kTile", "<="): "a tile of zeros is added once more",
    ("if (last < 0 || last > rows) __trap();", "+ 1 <"): "a group of fewer than 0 rows, which traps as well",
    ("Vector<T, N> held[kHeld > 0 ? kHeld : 1];", ">="): "an array that is not used",
    ("Vector<T, N> held[kHeld > 0 ? kHeld : 1];", "- 1 >"): "kHeld is 0 or 10",
    ("return begin + of < end ?", "<="): "no rows by division, too",
    ("if (!there || threadIdx.x >= kWarpSize) return;", ">"): "a thread of the second warp stores what the first has",
    ("for (int k = 1; k < kConcatParts; ++k)", "<="): "no column is behind the last part, whose place is not read",
}


@dataclasses.dataclass(frozen=True)
class Mutant:
    number: int
    file: str
    line: int
    column: int
    change: str
    code: str  # the line

    def where(self) -> str:
        return f"{self.file}:{self.line}:{self.column} {self.change}"

    def same_as_before(self) -> str:
        """Why it changes nothing; empty: it does."""
        found = (why for (part, change), why in EQUIVALENT.items() if part in self.code and change == self.change)
        return next(found, "")


def device_lines(text: str) -> set[int]:
    """Lines of functions that run on the GPU: from a line with __global__ or __device__ to the brace that ends it."""
    found, depth, inside, opened = set(), 0, False, False
    for number, line in enumerate(text.splitlines()):
        if not inside and re.search(r"\b__(global|device)__\b", line) and not line.lstrip().startswith(("//", "#")):
            inside, opened, depth = True, False, 0
        if not inside:
            continue
        found.add(number)
        depth += line.count("{") - line.count("}")
        opened = opened or "{" in line
        if opened and depth <= 0 or not opened and line.rstrip().endswith(";"):
            inside = False
    return found


def rewritten(file: str, first: int) -> tuple[str, list[Mutant]]:
    """The file with its mutants in it, which are numbered from `first` on."""
    text = (CSRC / file).read_text()
    lines = text.splitlines(keepends=True)
    mutants: list[Mutant] = []
    for number in sorted(device_lines(text)):
        code, comment = lines[number].partition("//")[::2]
        here: list[tuple[int, int, str, tuple[str, ...]]] = []
        for found in BARRIER.finditer(code):
            here.append((found.start(), found.end(), "BARRIER", ("no barrier",)))
        if not re.search(r"\btemplate <|constexpr|#", code):  # choices of code are no bounds
            for found in COMPARISON.finditer(code):
                here.append((found.start(), found.end(), NAMES[found[1]], SHIFTED[found[1]]))
        for begin, end, name, changes in sorted(here, reverse=True):
            n = first + len(mutants)
            mutants += [
                Mutant(n + i, file, number + 1, begin + 1, change, lines[number].strip())
                for i, change in enumerate(changes)
            ]
            new = f"MUTANT_OF_BARRIER({n}, {code[begin:end]})" if name == "BARRIER" else f" < MUTANT_OF_{name}({n}) > "
            code = code[:begin] + new + code[end:]
        lines[number] = code + ("//" + comment if comment else "")
    return "".join(lines), mutants


def library_of(sources: dict[str, str]) -> Path:
    """All of them in one library, which is kept until something that it is made of changes."""
    build = (ROOT / "build" / "libsimulated_cuda.so").resolve().parent
    objects = sorted((build / "CMakeFiles" / "simulated_cuda.dir").rglob("*.o"))
    kept = [o for o in objects if ".cu." not in o.name]
    header = ROOT / "tests" / "cuda" / "mutants.h"
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    simulator = sorted((CSRC / "cuda").rglob("*.h"))
    for file in (header, *kept, *simulator, *sorted(CSRC.rglob("*_launch.h"))):
        digest.update(file.read_bytes())
    for name, text in sorted(sources.items()):
        digest.update(f"{name}\n{text}".encode())
    folder = ROOT / "build" / "mutants"
    target = folder / f"{digest.hexdigest()[:16]}.so"
    if target.exists():
        return target
    for name, text in sources.items():
        (folder / "csrc" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "csrc" / name).write_text(text)
    include = [f"-I{p}" for p in (folder / "csrc", CSRC, ROOT / "ortmodule" / "include")]
    made = []
    for name in (n for n in sources if n.endswith(".cu")):
        made.append(folder / (name.replace("/", "_") + ".o"))
        command = ["g++", *FLAGS, "-include", str(header), *include, "-x", "c++", "-c", str(folder / "csrc" / name)]
        subprocess.run([*command, "-o", str(made[-1])], check=True)
    libraries = [f"-L{build / 'ortmodule'}", "-lortmodule", "-lboost_context", f"-Wl,-rpath,{build / 'ortmodule'}"]
    linked = [str(o) for o in (*made, *kept)]
    subprocess.run(["g++", "-shared", "-fsanitize=bounds", "-o", str(target), *linked, *libraries], check=True)
    return target


def in_a_fork(work: Callable[[], str]) -> tuple[str, int]:
    """What `work` returns there, and the status that the fork ended with."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with os.fdopen(writing, "w") as out:
            out.write(work())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        said = told.read()
    return said, os.waitpid(child, 0)[1]


def with_mutants(library: Path) -> ctypes.CDLL:
    from . import simulated

    simulated.LIBRARY = library
    # Generated kernels include headers with mutants, too.
    headers = f"-include {ROOT / 'tests' / 'cuda' / 'mutants.h'} -I{library.parent / 'csrc'}"
    os.environ["ORTMODULE_SIMULATED_FLAGS"] = " ".join([headers, *FLAGS[3:]])
    simulated.simulator()
    return ctypes.CDLL(str(library))


def by_case(library: Path, count: int) -> str:
    """JSON: for each case and type what went wrong, how long it took and which mutants it came by."""
    from .cases import TYPES, all_cases, check

    knobs = with_mutants(library)
    found = []
    for i, case in enumerate(all_cases()):
        for k, dtype in enumerate(TYPES):
            begin, wrong = time.perf_counter(), ""
            try:
                check(case, dtype)
            except BaseException as error:
                wrong = f"{case.name}: {' '.join(str(error).split())[:200]}"
            reached = [n for n in range(count) if knobs.mutants_reached(n)]
            found.append((time.perf_counter() - begin, i, k, wrong, reached))
    return json.dumps(found)


def noticed(library: Path, number: int, runs: list[tuple[float, int, int]]) -> str:
    """What the first run that fails says; empty: none does. One that hangs ends this process by a signal."""
    from .cases import TYPES, all_cases, check

    with_mutants(library).mutants_choose(number)
    cases = list(all_cases())
    for seconds, i, k in runs:
        signal.setitimer(signal.ITIMER_REAL, 10 + 10 * seconds)
        try:
            check(cases[i], TYPES[k])
        except BaseException as error:
            return f"{cases[i].name}: {' '.join(str(error).split())[:200]}"
    return ""


class Kept:
    """What was found before of these mutants by these cases, a line of JSON each: cases first, then mutants."""

    def __init__(self, library: Path) -> None:
        digest = hashlib.sha256()
        for file in sorted((ROOT / "tests" / "cuda").glob("*cases.py")):
            digest.update(file.read_bytes())
        self.file = library.with_name(f"{library.stem}-{digest.hexdigest()[:16]}.jsonl")
        lines = [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []
        self.cases: list[Any] | None = lines[0] if lines else None
        self.noticed: dict[int, str] = {number: what for number, what in lines[1:]}

    def add(self, found: Any) -> None:
        with self.file.open("a") as out:
            out.write(json.dumps(found) + "\n")


def judged(library: Path, todo: list[Mutant], kept: Kept, until: float) -> Iterator[tuple[Mutant, str]]:
    """Each mutant and what noticed it, as far as time allows."""
    for mutant in todo:
        if mutant.number in kept.noticed:
            yield mutant, kept.noticed[mutant.number]
            continue
        if time.monotonic() > until:
            return
        runs = sorted((seconds, i, k) for seconds, i, k, _, reached in kept.cases or [] if mutant.number in reached)
        what = ""
        if runs:
            said, ended = in_a_fork(lambda n=mutant.number, r=runs: noticed(library, n, r))
            what = said or ("it does not end" if ended == signal.SIGALRM else f"signal {ended}" if ended else "")
        kept.add((mutant.number, what))
        yield mutant, what


def main(match: str, every: int, seconds: float) -> int:
    """Prints each mutant and what noticed it; 1 where fewer than 95 % of those that change something were noticed, 2
    where time was up before all were judged."""
    import ortmodule  # noqa: F401 - before the forks, which share it

    until = time.monotonic() + seconds
    files = sorted(str(p.relative_to(CSRC)) for p in [*CSRC.rglob("*.cu"), *(CSRC / "cuda").glob("*.cuh")])
    sources, mutants = {}, []
    for file in files:
        sources[file], made = rewritten(file, len(mutants))
        mutants += made
    library = library_of(sources)
    kept = Kept(library)
    if kept.cases is None:
        said, ended = in_a_fork(lambda: by_case(library, len(mutants)))
        kept.cases = [] if ended else json.loads(said)
        if wrong := [f"status {ended}"] * bool(ended) + [one[3] for one in kept.cases if one[3]]:
            print(json.dumps({"without a mutant": wrong}))
            return 1
        kept.add(kept.cases)
    same = {m.number: why for m in mutants if (why := m.same_as_before())}
    chosen = [m for m in mutants if match in m.file][::every]
    for mutant in (m for m in chosen if m.number in same):
        print(json.dumps({"mutant": mutant.where(), "changes nothing": same[mutant.number]}), flush=True)
    todo = [m for m in chosen if m.number not in same]
    found = looked_at = 0
    for mutant, what in judged(library, todo, kept, until):
        found, looked_at = found + bool(what), looked_at + 1
        print(json.dumps({"mutant": mutant.where(), "noticed": what}), flush=True)
    share = found / max(1, looked_at)
    total = {"mutants": len(chosen), "change nothing": len(chosen) - len(todo), "judged": looked_at, "noticed": found}
    print(json.dumps({**total, "share": round(share, 3)}), flush=True)
    return 2 if looked_at < len(todo) else int(share < 0.95)
