"""The examples of docs/sessions.md run as they are written there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from .models import F, model_of

PAGE = Path(__file__).parents[2] / "docs" / "sessions.md"


def test_every_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node("ReduceSum", ["scores"], ["total"], keepdims=0),
    ]
    weights = np.arange(6, dtype=np.float32).reshape(3, 2)
    model = model_of(
        nodes, {"x": (F, ["batch", 3])}, {"scores": (F, ["batch", 2]), "total": (F, [])}, {"w": weights}
    )  # fmt: skip
    onnx.save(model, tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 8
    names: dict = {}
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert printed[:4] == ["[('x', 'tensor(float)', ['batch', 3])]", "120.0", "180.0", "240.0"]


def test_every_option_is_in_the_table() -> None:
    from ortmodule import SessionOptions
    from ortmodule.sessions.session_options import _is_option

    page = PAGE.read_text()
    assert [name for name, what in vars(SessionOptions).items() if _is_option(what) and f"`{name}`" not in page] == []
