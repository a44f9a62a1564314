"""The command and its page: one file, no network, no weights; sizes and errors in a sentence."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ortmodule import InvalidArgumentError, inspect
from ortmodule.inspect import page
from ortmodule.inspect.__main__ import main
from tests.sessions.models import F, add_one, model_of, two_results

from .test_history import model

ROOT = Path(__file__).parents[2]


def unpacked(text: str) -> list[dict[str, Any]]:
    """The records as the page's script unpacks them."""
    (data,) = re.findall(r'<script type="application/octet-stream" id="data">([^<]*)</script>', text)
    return json.loads(gzip.decompress(base64.b64decode(data)))


@pytest.fixture
def path(tmp_path) -> Path:
    onnx.save(two_results(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_a_model_becomes_a_page(path, tmp_path, capsys) -> None:
    assert main([str(path), "-o", str(tmp_path / "page.html"), "--size", "batch=7", "--runs", "2"]) == 0
    assert "2 runs on made-up inputs" in capsys.readouterr().out
    (record,) = unpacked((tmp_path / "page.html").read_text())
    assert record["title"] == "model.onnx" and record["sizes"] == {"batch": 7}
    assert {row[3] for row in record["times"]} == {2}
    assert record["history"]["events"][0]["stage"] == "imported"
    products = [step for half in record["halves"] for step in half["steps"] if step["op"] == "MatMul"]
    assert products[0]["flops"] == 2 * 7 * 3 * 2 and products[0]["bytes"] == 4 * (7 * 3 + 3 * 2 + 7 * 2)


def test_a_folder_becomes_a_page_beside_its_records(tmp_path, monkeypatch, path) -> None:
    monkeypatch.setenv("ORTMODULE_INSPECT_PATH", str(tmp_path / "records"))
    import ortmodule

    ortmodule.InferenceSession(path)
    assert main([str(tmp_path / "records")]) == 0
    assert len(unpacked((tmp_path / "records" / "inspect.html").read_text())) == 1


def test_a_page_is_one_file_that_asks_for_nothing_and_holds_no_weight(tmp_path) -> None:
    onnx.save(model(), tmp_path / "weights.onnx")
    text = inspect.page_of([inspect.inspect_model(tmp_path / "weights.onnx")], title="</title><script>")
    assert "&lt;/title&gt;&lt;script&gt;" in text and "default-src 'none'" in text
    assert not re.search(
        r"""(src|href)\s*=\s*["'](?!data:)|@import|url\(|fetch\(|XMLHttpRequest|https?://(?!www.w3.org)""", text
    )
    assert "123.4375" not in json.dumps(unpacked(text))
    assert "{{" not in text


def test_sizes_without_a_name_are_given_by_input_and_axis(tmp_path) -> None:
    onnx.save(
        model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": (F, [None, 3])}, {"y": (F, None)}), tmp_path / "m.onnx"
    )
    record = inspect.inspect_model(tmp_path / "m.onnx", {"x:0": 5})
    assert record["halves"][0]["steps"][0]["outputs"][0]["bytes"] == 4 * 5 * 3
    with pytest.raises(InvalidArgumentError, match=r"no free size 'x:1'; it leaves free: x:0; did you mean"):
        inspect.inspect_model(tmp_path / "m.onnx", {"x:1": 5})


def test_what_cannot_run_is_shown_nevertheless(tmp_path, capsys) -> None:
    strings = model_of(
        [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["s"], ["t"])],
        {"x": (F, [2]), "s": (F, ["n"])}, {"y": (F, [2]), "t": (F, ["n"])},
    )  # fmt: skip
    refuses = model_of(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        {"x": (F, ["n"])}, {"y": (F, None)}, {"shape": np.array([3, -1], np.int64)},
    )  # fmt: skip
    onnx.save(strings, tmp_path / "a.onnx")
    assert inspect.inspect_model(tmp_path / "a.onnx")["notes"]["runs"].startswith("5 runs")
    onnx.save(refuses, tmp_path / "b.onnx")
    assert main([str(tmp_path / "b.onnx"), "-o", str(tmp_path / "b.html")]) == 0
    assert "does not run on made-up inputs" in capsys.readouterr().out
    (record,) = unpacked((tmp_path / "b.html").read_text())
    assert record["halves"][0]["steps"] and not record["times"]


def test_integers_are_ones_or_zeros(tmp_path) -> None:
    one_row = model_of(
        [helper.make_node("Gather", ["table", "at"], ["y"])],
        {"at": (TensorProto.INT64, ["n"])}, {"y": (F, None)}, {"table": np.ones((1, 3), np.float32)},
    )  # fmt: skip
    onnx.save(one_row, tmp_path / "m.onnx")
    assert inspect.inspect_model(tmp_path / "m.onnx", {"n": 2}, runs=1)["notes"]["runs"] == "1 runs on made-up inputs"


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["none.onnx"], "error: "),
        (["model.onnx", "--size", "batsch=2"], "no free size 'batsch'; it leaves free: batch; did you mean 'batch'?"),
        (["model.onnx", "--size", "batch"], "should be NAME=NUMBER"),
        (["model.onnx", "--runs", "-1"], "should be a number from 0 on"),
        (["model.onnx", "-o", "none/page.html"], "cannot be written"),
        ([".", "--size", "a=1"], "--size is for a model"),
        (["."], "has no records"),
        (["text.onnx"], "error: "),
    ],
)
def test_errors_are_a_sentence(path, monkeypatch, capsys, arguments, answer) -> None:
    monkeypatch.chdir(path.parent)
    (path.parent / "text.onnx").write_text("no model")
    try:
        status = main(arguments)
    except SystemExit as stopped:  # argparse's
        status = stopped.code
    assert status == 2 and answer in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ((3,), "path of a model, got int"),
        (("m", {"n": "4"}), "the size 'n' should be"),
        (("m", {}, -1), "runs should be"),
    ],
)
def test_wrong_types_are_said(arguments: tuple[Any, ...], answer: str) -> None:
    with pytest.raises(InvalidArgumentError, match=answer):
        inspect.inspect_model(*arguments)


def test_there_is_no_page_of_nothing() -> None:
    with pytest.raises(InvalidArgumentError, match="no record"):
        inspect.page_of([])


def test_every_asset_is_used_and_packed() -> None:
    files = {file.name for file in resources.files("ortmodule.inspect").joinpath("assets").iterdir()}
    assert files == {"page.html", *page._STYLES, *page._SCRIPTS}
    assert '"ortmodule.inspect": ["assets/*"]' in (ROOT / "setup.py").read_text()
    packed = re.search(r"recursive-include ortmodule/inspect/assets (.*)", (ROOT / "MANIFEST.in").read_text())
    assert packed and {Path(name).suffix for name in files} == {end[1:] for end in packed[1].split()}


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(BROWSER is None, reason="no browser")
@pytest.mark.parametrize("view", ["overview", "graph", "plan", "memory", "profile"])
def test_a_browser_draws_every_view(path, tmp_path, view) -> None:
    inspect.write_page([inspect.inspect_model(path, {"batch": 2})], tmp_path / "page.html")
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'browser'}",
        "--virtual-time-budget=9000", "--dump-dom", f"file://{tmp_path / 'page.html'}#view={view}&node=1",
    ]  # fmt: skip
    drawn = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    assert re.search(r'<html lang="en" data-ready="\d+"', drawn), drawn[-2000:]  # set when all is drawn
    assert re.search(r'aria-selected="true"[^>]*>' + view, drawn, re.IGNORECASE)


def test_the_module_is_a_command(path) -> None:
    command = [sys.executable, "-m", "ortmodule.inspect", str(path), "--runs", "0"]
    ran = subprocess.run(command, cwd=path.parent, capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stderr == "", ran.stderr
    assert (path.parent / "model.inspect.html").stat().st_size > 50_000
    onnx.save(add_one(), path)


def test_the_example_makes_a_page(tmp_path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "inspect_model.py"), "--layers", "1", "--out", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    records = unpacked((tmp_path / "inspect.html").read_text())
    assert [r["mode"] for r in records] == ["training", "inference"] and all(r["times"] for r in records)


def test_the_examples_of_its_documentation_run(path, monkeypatch) -> None:
    monkeypatch.chdir(path.parent)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "inspect.md").read_text(), re.DOTALL)
    exec(compile(code, "docs/inspect.md", "exec"), {})
    assert Path("page.html").exists()
