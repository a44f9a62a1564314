"""`python -m tests.fuzz --files 100000`: broken models through loading, running and training, in watched processes.

Prints how far they came and every finding: a signal, more than 5 s, more than 1 GB, an error that is not the library's
own. `--show N` writes file N of a state to standard output; findings are written to the folder that `--keep` names.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from .mutations import mutant
from .seeds import read_seeds, write_seeds
from .watchdog import Findings, run

CORPUS = Path(__file__).parents[1] / "cpp" / "fuzz" / "corpus.zip"


def text(findings: Findings) -> str:
    """One line."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in findings.reached.most_common())
    seconds, slow = findings.slowest
    megabytes, large = findings.largest
    return (
        f"{findings.files:,} files: {kinds}; slowest {seconds:.1f} s (file {slow}), largest {megabytes} MB (file "
        f"{large}); {len(findings.problems)} findings"
    )


def write_corpus(folder: Path, seeds: Path) -> None:
    """A file for each seed, named by its contents, and one for each that CORPUS holds."""
    folder.mkdir(parents=True, exist_ok=True)
    models = {model for group in read_seeds(seeds).values() for model in group}
    if CORPUS.exists():
        with zipfile.ZipFile(CORPUS) as kept:
            models |= {kept.read(name) for name in kept.namelist()}
    for model in models:
        (folder / hashlib.sha1(model).hexdigest()).write_bytes(model)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--files", type=int, default=5000, help="how many (even numbers: bytes, odd ones: fields)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    parser.add_argument("--state", type=int, default=1, help="another state is another sequence of files")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after this time at the latest")
    parser.add_argument("--seeds", type=Path, help="where the seeds are kept; made there when there is no such file")
    parser.add_argument("--keep", type=Path, help="a folder for the files with findings")
    parser.add_argument("--corpus", type=Path, help="write the seeds and what libFuzzer has kept there, and end")
    parser.add_argument("--show", type=int, help="write this file to standard output and end")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seeds = options.seeds or Path(folder) / "seeds"
        if not seeds.exists():
            counts = write_seeds(seeds)
            print(f"{sum(counts.values())} seeds: {counts}", file=sys.stderr)

        def file(number: int) -> bytes:
            rng = random.Random(options.state * 1_000_000_007 + number)
            return mutant(rng, read_seeds(seeds), structured=number % 2 == 1)

        if options.corpus:
            write_corpus(options.corpus, seeds)
            return 0
        if options.show is not None:
            sys.stdout.buffer.write(file(options.show))
            return 0
        begin = time.monotonic()
        findings = run(
            seeds, options.state, options.files, first=options.first, seconds=60 * options.minutes,
            progress=lambda so_far: print(text(so_far), flush=True),
        )  # fmt: skip
        for number, problem in sorted(findings.problems.items()):
            print(f"file {number}: {' '.join(problem.split())[:300]}")
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{options.state}-{number}.onnx").write_bytes(file(number))
        print(f"{text(findings)}; {time.monotonic() - begin:.0f} s")
    return bool(findings.problems)


if __name__ == "__main__":
    sys.exit(main())
