"""docs/environment_variables.md lists exactly the variables that the code reads, with the defaults of Options."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import re
from pathlib import Path

from ortmodule import Options
from ortmodule import options as module

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/environment_variables.md").read_text()
_READ = re.compile(r"""environ(?:\.get)?[(\[]["'](ORTMODULE_[A-Z_0-9]+)|getenv\("(ORTMODULE_[A-Z_0-9]+)""")


def listed() -> set[str]:
    return set(re.findall(r"^\| `(ORTMODULE_[A-Z_0-9]+)` \|", PAGE, re.MULTILINE))


def known() -> set[str]:
    fields = {f"ORTMODULE_{f.name.upper()}" for f in dataclasses.fields(Options)}
    names = fields | module._OTHER_VARIABLES
    if importlib.util.find_spec("ortmodule.reference_variables"):
        names |= set(importlib.import_module("ortmodule.reference_variables").WITHOUT_EFFECT)
    return names


def test_the_page_lists_every_variable_that_is_known() -> None:
    assert listed() == known()


def test_no_code_reads_a_variable_that_is_not_known() -> None:
    read: set[str] = set()
    for folder, ends in (("ortmodule", ".py"), ("graph_transition", ".py"), ("optim", ".py"), ("distributed", ".py"),
                         ("csrc", ".cpp"), ("csrc", ".h"), ("csrc", ".cu")):  # fmt: skip
        for file in (ROOT / folder).rglob(f"*{ends}"):
            read |= {a or b for a, b in _READ.findall(file.read_text())}
    read |= {a or b for a, b in _READ.findall((ROOT / "setup.py").read_text())}
    assert read <= known()


def test_the_page_gives_the_defaults_of_options() -> None:
    for field in dataclasses.fields(Options):
        line = next(row for row in PAGE.splitlines() if f"`ORTMODULE_{field.name.upper()}`" in row)
        default = str(field.default)
        assert not default or f"`{default}` (default)" in line or f"(default {default})" in line, line
