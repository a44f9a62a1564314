"""The examples of docs/training_sessions.md run as they are written there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "training_sessions.md"


def test_every_example_runs_and_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text()
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 6
    names: dict = {}
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
    said = re.findall(r"^print\(.*\)  # (.*)$", text, re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == said
