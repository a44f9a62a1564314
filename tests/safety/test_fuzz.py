"""Broken model files: refused with an error of the library's, or run; no crash, no hang, bounded memory (tests/fuzz).

`python -m tests.fuzz --files 100000` runs more of the same.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from ..fuzz.__main__ import CORPUS, text
from ..fuzz.seeds import write_seeds
from ..fuzz.watchdog import Worker, run

FILES = 5000
FOUND = sorted(map(str, (Path(__file__).parent / "found").glob("*.onnx")))


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fuzz") / "seeds"
    counts = write_seeds(path)
    assert sum(counts.values()) >= 140 and counts["networks"] >= 10
    return path


@pytest.mark.slow
def test_broken_files_do_no_worse_than_an_error(seeds: Path) -> None:
    findings = run(seeds, 20261127, FILES)
    print(text(findings))
    assert findings.files == FILES
    assert findings.problems == {}
    assert findings.reached["trained"] > FILES // 25, "hardly a file is accepted: what is mutated too much tests little"


def test_files_that_once_did_worse_are_errors_now(tmp_path: Path) -> None:
    findings = run(tmp_path, 0, 20 * len(FOUND), files=FOUND * 20)  # what is read beyond a tensor varies
    print(f"{len(FOUND)} files that were found before, 20 times each: {text(findings)}")
    assert len(FOUND) > 0 and findings.problems == {}


def test_what_libfuzzer_has_kept_does_no_worse_than_an_error(tmp_path: Path) -> None:
    """The files beyond the seeds that reach a line of loading and checking each (`make fuzz`)."""
    with zipfile.ZipFile(CORPUS) as kept:
        files = [kept.extract(name, tmp_path) for name in kept.namelist()]
    findings = run(tmp_path, 0, len(files), files=files)
    print(f"libFuzzer's corpus: {text(findings)}")
    assert findings.files == len(files) > 500 and findings.problems == {}
    assert CORPUS.stat().st_size < 200 << 10


def test_a_crash_a_hang_and_a_foreign_error_are_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import json, os, signal, sys, time\n"
        "first, last, fd = map(int, sys.argv[3:6])\n"
        "for n in range(first, last):\n"
        "    os.write(fd, json.dumps({'began': n}).encode() + b'\\n')\n"
        "    if n == 1: os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    while n == 2: pass\n"
        "    problem = 'KeyError: 3' if n == 3 else None\n"
        "    end = {'ended': n, 'reached': 'ran', 'problem': problem, 'seconds': 0.1, 'megabytes': 2000 * (n == 4)}\n"
        "    os.write(fd, json.dumps(end).encode() + b'\\n')\n"
    )
    monkeypatch.setattr(Worker, "PROGRAM", (str(worker),))
    monkeypatch.setattr("tests.fuzz.watchdog.HANG_SECONDS", 0.5)
    findings = run(tmp_path, 0, 6)
    assert sorted(findings.problems) == [1, 2, 3, 4] and findings.files == 6
    assert "SEGV" in findings.problems[1] and findings.problems[2] == "hangs"
    assert findings.problems[3] == "KeyError: 3" and "2000 MB" in findings.problems[4]
