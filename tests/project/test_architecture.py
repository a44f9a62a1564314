"""docs/architecture.md: every path is there, and the index of the Notes is that of the sources."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
SOURCES = ("csrc", "ortmodule", "graph_transition", "optim", "distributed")
NOTE = re.compile(r"^\s*(?://|#)?\s*Note \[([^\]]+)\]\s*$", re.MULTILINE)


def test_every_path_is_there() -> None:
    named = set(re.findall(r"`((?:csrc|ortmodule|graph_transition|optim|distributed|tests|docs)/[\w./]+)`", TEXT))
    assert len(named) > 40
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_the_notes_are_those_of_the_sources() -> None:
    found: dict[str, set[str]] = {}
    for path in (p for root in SOURCES for p in (ROOT / root).rglob("*") if p.suffix in {".h", ".cpp", ".cu", ".py"}):
        if "include/ortmodule/core" in str(path):  # copies of csrc's headers, which setup.py makes
            continue
        for name in NOTE.findall(path.read_text()):
            found.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    listed = {
        name: set(re.findall(r"`([^`]+)`", files))
        for name, files in re.findall(r"^\| (.+?) \| (`.+`) \|$", TEXT.partition("## Notes")[2], re.MULTILINE)
    }
    assert listed == found


def test_every_folder_of_the_core_is_named() -> None:
    folders = {f"csrc/{path.name}" for path in (ROOT / "csrc").iterdir() if path.is_dir()}
    assert [folder for folder in sorted(folders) if f"`{folder}`" not in TEXT and f"`{folder}/" not in TEXT] == []
