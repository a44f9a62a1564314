"""Every operator record in the sources is in the registry of the built engine, and none is from elsewhere."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from ortmodule import _C

ROOT = Path(__file__).parents[2]
RECORD = re.compile(r'^\s*ORTMODULE_OP\(\s*"([^"]*)"\s*,\s*(\w+)\s*,\s*(\d+)', re.MULTILINE)
KERNEL = re.compile(r'^\s*ORTMODULE_KERNEL\(\s*"([^"]*)"\s*,\s*(\w+)', re.MULTILINE)


def in_sources() -> Counter[tuple[str, str, int]]:
    found: Counter[tuple[str, str, int]] = Counter()
    for path in (ROOT / "csrc" / "ops").rglob("*.cpp"):
        for domain, name, since in RECORD.findall(path.read_text()):
            found[(domain, name, int(since))] += 1
    return found


def registered() -> Counter[tuple[str, str, int]]:
    return Counter((o["domain"], o["name"], o["since"]) for o in _C.operators())


def test_every_macro_is_read_by_this_test() -> None:
    texts = [p.read_text() for p in (ROOT / "csrc" / "ops").rglob("*.cpp")]
    assert sum(len(re.findall(r"^\s*ORTMODULE_OP\(", t, re.MULTILINE)) for t in texts) == in_sources().total()


def test_the_registry_holds_what_the_sources_record() -> None:
    assert registered() == in_sources()
    assert registered().total() > 100


def test_no_operator_is_recorded_twice() -> None:
    assert [op for op, count in registered().items() if count > 1] == []


def test_every_record_names_the_file_that_it_stands_in() -> None:
    for op in _C.operators():
        path = Path(op["file"])
        path = path if path.is_absolute() else ROOT / path
        path = path if path.exists() else ROOT / "csrc" / op["file"]
        assert path.exists(), f"{op['domain']}::{op['name']} says that it stands in {op['file']}"
        assert re.search(rf"\b{op['name']}\b", path.read_text()), op


def test_every_record_has_a_kernel_or_a_body() -> None:
    kernels: set[tuple[str, str]] = set()
    bodies: set[str] = set()
    for path in (ROOT / "csrc" / "ops").rglob("*.cpp"):
        text = path.read_text()
        kernels |= set(KERNEL.findall(text))
        bodies |= {m.group(2) for m in RECORD.finditer(text) if ".body(" in text[m.start() : m.start() + 6000]}
    # Kernels that a macro or a table of a family registers name their operators as plain words in its kernel file.
    words = " ".join(p.read_text() for p in (ROOT / "csrc" / "ops").rglob("*_kernel.cpp"))
    missing = [
        f"{domain}::{name}"
        for domain, name, _ in in_sources()
        if (domain, name) not in kernels and name not in bodies and not re.search(rf"\b{name}\b", words)
    ]
    assert missing == []
