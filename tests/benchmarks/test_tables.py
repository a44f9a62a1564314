"""Tables of README.md and docs/ are those of the committed results that they name (benchmarks/tables.py)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import tables  # noqa: E402

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_those_of_their_results(page: Path) -> None:
    text = page.read_text()
    assert tables.written(text, page.name) == text, "run `python benchmarks/tables.py`"


def test_the_headline_is_made_from_a_result() -> None:
    assert "<!-- table steps_short " in (ROOT / "README.md").read_text()


def _result(*rows: tuple[str, str, float, float]) -> dict[str, object]:
    where = {"date": "2026-01-01T00:00:00", "commit": "0123456789ab", "cpu": "a CPU", "threads": 2, "torch": "2.13.0"}
    made = [
        {"model": model, "runner": runner, "fb_ms": {"median": ms}, "step_memory_mib": mib}
        for model, runner, ms, mib in rows
    ]
    return {"environment": where, "settings": {"rounds": 3}, "rows": made}


def test_a_table_has_ratios_and_what_they_are_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("bert", "ortmodule", 500.0, 40.0), ("bert", "eager", 1000.0, 100.0), ("bert", "compile", 2000.0, 80.0)]
    (tmp_path / "one.json").write_text(json.dumps(_result(*rows)))
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    page = "before\n<!-- table steps one.json -->\nstale\n<!-- end of table -->\nafter\n"
    new = tables.written(page, "page.md")
    assert "| BERT 768x4, 4x128, dropout 0.1 | 1000 | 2000 | 500 | 0.50 | 0.25 | 0.40 |" in new
    assert "commit 012345678, a CPU, 2 threads, torch 2.13.0, 3 rounds" in new
    assert "stale" not in new and new.startswith("before\n") and new.endswith("after\n")
    assert tables.written(new, "page.md") == new


@pytest.mark.parametrize("table", ["steps none.json", "nothing one.json"])
def test_what_is_not_there_is_said(table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.json").write_text(json.dumps(_result()))
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    with pytest.raises(SystemExit, match="no table"):
        tables.written(f"<!-- table {table} -->\n<!-- end of table -->\n", "page.md")


def test_a_runner_that_was_not_measured_is_said() -> None:
    with pytest.raises(SystemExit, match="not measured"):
        tables.steps(_result(("bert", "ortmodule", 1.0, 1.0)))


def test_first_steps_at_two_sizes() -> None:
    rows = [
        {"model": "bamba", "runner": "ortmodule", "first_s": 1.04, "other_s": 2.5},
        {"model": "bamba", "runner": "tracing", "first_s": 3.0, "other_s": 9.96},
        {"model": "gpt2", "runner": "ortmodule", "first_s": 0.5, "other_s": 0.7},
    ]
    result = {**_result(), "rows": rows, "arguments": {"batch": 3, "length": 24, "rounds": 1}}
    text = tables.first_steps(result)
    assert "| seconds | its tracing alone | its tracing alone, other size | ORTModule | ORTModule, other size |" in text
    assert "| bamba | 3.0 | 10.0 | 1.0 | 2.5 |" in text and "| gpt2 | - | - | 0.5 | 0.7 |" in text
    assert "3 texts of 24" in text
