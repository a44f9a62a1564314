"""The examples' loop: resuming is exact, a stop is orderly, wrong input is answered with a sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALL = "--width 32 --layers 1 --heads 2 --context 16 --vocabulary 400 --batch-size 2".split()


def start(*arguments: str | Path, example: str = "train_gpt") -> subprocess.Popen[str]:
    small = SMALL if example == "train_gpt" else []
    command = [sys.executable, str(ROOT / f"examples/{example}.py"), *small, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(*arguments: str | Path, status: int = 0, example: str = "train_gpt") -> str:
    process = start(*arguments, example=example)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == status, output
    return output


def losses(folder: Path) -> list[float]:
    return json.loads((folder / "result.json").read_text())["losses"]


@pytest.mark.parametrize(("engine", "flags"), [("eager", ["--resume"]), ("ortmodule", ["--resume", "--out"])])
def test_a_resumed_run_equals_an_unbroken_one(tmp_path, engine, flags):
    run("--engine", engine, "--steps", 6, "--out", tmp_path / "whole")
    run("--engine", engine, "--steps", 3, "--out", tmp_path / "halves")
    run("--engine", engine, "--steps", 6, *flags, tmp_path / "halves")
    assert len(losses(tmp_path / "whole")) == 6
    assert losses(tmp_path / "halves") == losses(tmp_path / "whole")


def test_compare_draws_the_masks_of_eager(tmp_path):
    run("--compare", "--dropout", 0.1, "--dropout-mode", "torch", "--steps", 3, "--out", tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert set(result["engines"]) == {"ortmodule", "eager"}
    assert result["loss_difference"]["max_abs"] <= 1e-3
    assert (tmp_path / "loss.png").stat().st_size > 10_000


def test_ctrl_c_saves_and_the_run_goes_on(tmp_path):
    process = start("--engine", "eager", "--steps", 5000, "--out", tmp_path)
    deadline = time.monotonic() + 120
    for line in process.stdout:
        if line.startswith("step 1/") or time.monotonic() > deadline:
            break
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "continue with --resume" in output
    (saved,) = (tmp_path / "checkpoints").iterdir()
    step = int(saved.stem.removeprefix("step-"))
    output = run("--engine", "eager", "--steps", step + 1, "--resume", tmp_path)
    assert len(losses(tmp_path)) == step + 1


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--text", "no-such-file"], "--text no-such-file: no such file"),
        (["--text", __file__, "--context", "100000"], "the text is too short"),
        (["--resume", "no-such-folder"], "no such file or folder"),
        (["--resume", str(ROOT / "examples")], "holds no checkpoint"),
        (["--resume", __file__], "is damaged or no checkpoint"),
        (["--dropout", "1.5"], "1.5 is not in [0, 1)"),
    ],
)
def test_wrong_input_is_answered_with_a_sentence(tmp_path, arguments, answer):
    out = [] if "--resume" in arguments else ["--out", tmp_path]
    output = run("--engine", "eager", *out, *arguments, status=2)
    assert answer in output
    assert "Traceback" not in output


@pytest.mark.parametrize("example", ["finetune_bert", "train_resnet"])
def test_the_other_examples_run(tmp_path, example):
    size = ["--width", "8"] if example == "train_resnet" else ["--width", "16", "--layers", "1"]
    output = run("--engine", "eager", "--steps", 3, "--batch-size", 4, *size, "--out", tmp_path, example=example)
    assert "accuracy" in output and len(losses(tmp_path)) == 3
