"""House rules for files: none too long, none with the paths of somebody's machine, none that says what to do later."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUFFIXES = {".py", ".pyi", ".cpp", ".h", ".cu", ".cuh", ".cmake", ".toml", ".md", ".txt", ".sh", ".yaml", ".yml"}
NAMES = {"Makefile", "run", "CMakeLists.txt", "LICENSE", ".gitignore", ".clang-format"}
LIMIT = 500


def tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
    paths = (ROOT / name for name in names if name)
    return [p for p in paths if p.is_file() and (p.suffix in SUFFIXES or p.name in NAMES)]


def offenders(pattern: str, paths: list[Path]) -> list[str]:
    found = []
    for path in paths:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(pattern, line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    return found


def sources() -> list[Path]:
    return [p for p in tracked() if p.suffix in {".py", ".pyi", ".cpp", ".h", ".cu", ".cuh"}]


def test_no_source_file_is_longer_than_the_limit() -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in sources()}
    assert len(lengths) > 100
    assert {name: n for name, n in lengths.items() if n > LIMIT} == {}


def test_the_readme_is_read_in_three_minutes_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text) <= 6000
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_no_path_of_a_machine_is_in_any_file() -> None:
    # /work, a home folder, or a temporary folder with a name of its own; this file must name none itself.
    places = ["ho" + "me/[a-z]", "ro" + "ot/", "wo" + "rk/", "Us" + "ers/[A-Za-z]", "tm" + "p/(?!ortmodule)[a-z]"]
    pattern = r"(?<![\w.$}/])/(" + "|".join(places) + ")"
    assert offenders(pattern, tracked()) == []


def test_no_note_to_do_something_later_is_left() -> None:
    words = ["TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"]
    assert offenders(r"\b(" + "|".join(words) + r")\b", sources()) == []


def test_every_source_file_says_what_it_is() -> None:
    silent = []
    for path in sources():
        text = path.read_text()
        if not text.strip() or path.name == "__init__.py" and "tests" in path.parts:
            continue
        first = text.lstrip().splitlines()[0]
        paired = path.suffix == ".cpp" and path.with_name(path.stem.removesuffix("_kernel") + ".h").exists()
        if not paired and not first.startswith(('"""', "//", "#!")):
            silent.append(str(path.relative_to(ROOT)))
    assert silent == []
