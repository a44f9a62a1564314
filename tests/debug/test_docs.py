"""The examples of docs/tools.md run as they are written there, and say what it says they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tools.md"


def test_every_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 3
    names: dict = {}
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "50 forward weight 0.weight"
    assert "step 50, forward: weight '0.weight'" in rest
    assert len(names["norms"]) == 60 and all(norm > 0 for norm in names["norms"])
    assert any(line.startswith("  out ") and "float32[3, 2] min" in line for line in rest)
