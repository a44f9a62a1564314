"""`examples/quantize.py` as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "quantize.py"


def test_it_trains_exports_calibrates_and_scores(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    out = tmp_path / "rows.json"
    command = [sys.executable, str(EXAMPLE), "--models", "resnet", "--steps", "40", "--json", str(out)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # tests run side by side
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=alone, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [row["form"] for row in rows][:2] == ["float", "QDQ, MinMax"] and len(rows) == 7
    assert rows[0]["accuracy"] > 0.5  # a tenth would be chance
    assert all(abs(row["lost_points"]) < 5 for row in rows)
