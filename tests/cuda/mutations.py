"""Whether the cases would notice: each barrier of the kernels left out, each bound moved by one.

`python -m tests.cuda mutations --match norm --every 5`. A mutant is one changed line of a .cu or .cuh file; its library
is compiled beside the build's objects, and loaded by a fork of this process, which runs the cases of a file that has
that line until one fails, then those of the next such file. What none notices is told. Bounds of arrays in registers
are checked by the compiler's own means. Not here: mutants of code of the host, which chooses kernels and counts blocks.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ..device.__main__ import ROOT

CSRC = ROOT / "csrc"
# Which cases run a file's kernels.
CASES = {
    "ops/norm/norm.cu": ("Norm",),
    "ops/softmax/softmax.cu": ("oftmax ",),
    "ops/loss/cross_entropy.cu": ("CrossEntropy",),
    "ops/elementwise/activation.cu": ("Gelu  ", "Tanh"),
    "ops/dropout/philox_dropout.cu": ("Dropout",),
    "ops/reduce/sum.cu": ("Reduce",),
    "ops/index/rows.cu": ("Embedding", "Gather"),
}
BARRIER = re.compile(r"\b__sync(threads|warp)\(\);")
COMPARISON = re.compile(r"(?<=[\w)\]}]) (<|<=|>|>=) (?=[\w(])")
SECONDS = 240  # for one mutant; one that goes round for ever is found


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    column: int
    change: str
    text: str  # of the file


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


def mutants_of(file: str) -> Iterator[Mutant]:
    text = (CSRC / file).read_text()
    lines = text.splitlines(keepends=True)

    def changed(number: int, line: str, at: int, change: str) -> Mutant:
        return Mutant(file, number + 1, at + 1, change, "".join([*lines[:number], line, *lines[number + 1 :]]))

    for number in sorted(device_lines(text)):
        line = lines[number]
        code = line.partition("//")[0]
        for found in BARRIER.finditer(code):
            yield changed(number, line[: found.start()] + ";" + line[found.end() :], found.start(), "no barrier")
        if "template" in code or "constexpr" in code or "#" in code:  # choices of code are no bounds
            continue
        for found in COMPARISON.finditer(code):
            sign = found[1]
            other = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}[sign]
            shift = "+ 1 <" if sign == "<" else "- 1 <=" if sign == "<=" else "- 1 >" if sign == ">" else "+ 1 >="
            for new in (other, shift):
                yield changed(number, f"{line[: found.start()]} {new} {line[found.end() :]}", found.start(), new)


def users_of(file: str) -> list[str]:
    """The .cu files that have it, the one that compiles fastest first."""
    if file.endswith(".cu"):
        return [file]

    def reached(name: str) -> set[str]:
        path = CSRC / name
        if not path.is_file():
            return set()
        names = set(re.findall(r'#include "([^"]+)"', path.read_text()))
        return names.union(*(reached(n) for n in names)) if names else set()

    return sorted((cu for cu in CASES if file in reached(cu)), key=lambda cu: (CSRC / cu).stat().st_size)


def build_folder() -> Path:
    return (ROOT / "build" / "libsimulated_cuda.so").resolve().parent


def compiled(mutant: Mutant, user: str, folder: Path) -> Path | None:
    """The library with the mutant in it; None where the compiler refuses it."""
    build = build_folder()
    object_name = user.replace("/", "_") + ".cpp.o"
    objects = sorted((build / "CMakeFiles" / "simulated_cuda.dir").rglob("*.o"))
    sources = folder / "csrc"
    (sources / mutant.file).parent.mkdir(parents=True, exist_ok=True)
    (sources / mutant.file).write_text(mutant.text)
    mine = folder / object_name
    include = [f"-I{p}" for p in (sources, CSRC, ROOT / "ortmodule" / "include")]
    flags = ["-std=c++20", "-O1", "-fPIC", "-w", "-fsanitize=bounds", "-fsanitize-undefined-trap-on-error"]
    compile_ = ["g++", *flags, *include, "-x", "c++", "-c"]
    source = sources / user
    if not source.exists():
        source = CSRC / user
    done = subprocess.run([*compile_, str(source), "-o", str(mine)], capture_output=True)
    (sources / mutant.file).unlink()
    if done.returncode:
        return None
    target = folder / "libmutant.so"
    linked = [str(mine), *(str(o) for o in objects if o.name != object_name)]
    libraries = [f"-L{build / 'ortmodule'}", "-lortmodule", "-lboost_context", f"-Wl,-rpath,{build / 'ortmodule'}"]
    subprocess.run(["g++", "-shared", "-o", str(target), *linked, *libraries], check=True)
    return target


def noticed(library: Path, matches: tuple[str, ...]) -> str:
    """What goes wrong first in a fork that has this library; empty: nothing."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        from . import simulated
        from .cases import TYPES, all_cases, check

        simulated.LIBRARY = library
        simulated.simulator()
        told = b""
        for case in (c for c in all_cases() if any(m in c.name for m in matches)):
            for dtype in TYPES:
                try:
                    check(case, dtype)
                except BaseException as error:
                    told = told or f"{case.name}: {' '.join(str(error).split())[:200]}".encode()
            if told:
                break
        os.write(writing, told)
        os._exit(0)
    os.close(writing)
    deadline = time.monotonic() + SECONDS
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            return "it does not end"
        time.sleep(0.02)
    with os.fdopen(reading, "rb") as told_by:
        told = told_by.read().decode()
    return told or (f"the process ended with {status}" if status else "")


def main(match: str, every: int) -> int:
    """Prints each mutant and what noticed it; 1 where fewer than 95 % were noticed."""
    import tempfile

    import ortmodule  # noqa: F401 - before the forks, which share it

    files = [*CASES, *sorted(f"cuda/{p.name}" for p in (CSRC / "cuda").glob("*.cuh"))]
    todo = [m for file in files if match in file and users_of(file) for m in mutants_of(file)][::every]
    found = 0
    told = 0
    for mutant in todo:
        what = ""
        for user in users_of(mutant.file):  # what one kernel does not ask of a header another may
            with tempfile.TemporaryDirectory() as folder:
                library = compiled(mutant, user, Path(folder))
                what = noticed(library, CASES[user]) if library else "the compiler refuses it"
            if what:
                break
        found += bool(what)
        told += 1
        where = f"{mutant.file}:{mutant.line}:{mutant.column} {mutant.change}"
        print(json.dumps({"mutant": where, "noticed": what}), flush=True)
    share = found / max(1, told)
    print(json.dumps({"mutants": told, "noticed": found, "share": round(share, 3)}), flush=True)
    return int(share < 0.95)


if __name__ == "__main__":
    sys.exit(main("", 1))
