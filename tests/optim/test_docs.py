"""The examples of docs/optimizers.md run as they are written there, and print what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "optimizers.md"


def test_every_example_runs_and_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    text = PAGE.read_text()
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 6
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
    said = re.findall(r"^print\(.*\)  # (.*)$", text, re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == said
