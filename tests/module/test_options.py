"""Options: names, values, environment variables, and what `python -m ortmodule` prints."""

from __future__ import annotations

import dataclasses
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ortmodule import DebugOptions, InvalidArgumentError, LogLevel, Options, ORTModule
from tests.support import mlp


def test_options_are_frozen_and_compare_by_value() -> None:
    assert Options() == Options(dropout="fast", fallback="eager")
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().dropout = "torch"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dropuot": "fast"}, "did you mean 'dropout'"),
        ({"dropout": "fats"}, "did you mean 'fast'"),
        ({"fallback": "eagre"}, "did you mean 'eager'"),
        ({"cache_size": 0}, "positive"),
        ({"cache_size": "many"}, "positive"),
    ],
)
def test_a_wrong_option_names_the_nearest(fields: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        Options(**fields)


def test_a_variable_wins_over_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in dataclasses.fields(Options):
        default = "" if field.default == () else str(field.default)
        monkeypatch.setenv(f"ORTMODULE_{field.name.upper()}", "7" if field.type == "int" else default)
    monkeypatch.setenv("ORTMODULE_DROPOUT", "torch")
    monkeypatch.setenv("ORTMODULE_FALLBACK", "error")
    options = Options(dropout="fast", fallback="eager", cache_size=2)
    assert (options.dropout, options.fallback, options.cache_size) == ("torch", "error", 7)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [("ORTMODULE_DROPOT", "fast", "ORTMODULE_DROPOUT"), ("ORTMODULE_DROPOUT", "tocrh", "did you mean 'torch'")],
)
def test_a_wrong_variable_is_an_error(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidArgumentError, match=words):
        ORTModule(mlp())


def test_debug_options_check_their_values(tmp_path: Path) -> None:
    DebugOptions(save_onnx=True, onnx_prefix="m", save_path=str(tmp_path))
    for fields, words in (
        ({"save_onnx": True, "save_path": str(tmp_path)}, "onnx_prefix"),
        ({"save_onnx": True, "onnx_prefix": "m", "save_path": str(tmp_path / "none")}, "save_path"),
        ({"onnx_prefix": 3}, "onnx_prefix"),
        ({"log_level": 3.5}, "log_level"),
        ({"log_level": "WARNIN"}, "did you mean 'WARNING'"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            DebugOptions(**fields)


def test_debug_options_say_what_onnx_runtime_training_said() -> None:
    for fields, words in (
        ({"save_onnx": True}, "onnx_prefix must be provided when save_onnx is set."),
        ({"onnx_prefix": 3}, "Expected name prefix of type str, got <class 'int'>."),
        ({"log_level": "loud"}, "Expected log_level of type LogLevel, got <class 'str'>."),
        ({"save_onnx": True, "onnx_prefix": "m", "save_path": "/none"}, "Directory /none is not writable."),
    ):
        with pytest.raises(InvalidArgumentError) as error:
            DebugOptions(**fields)
        assert words in str(error.value)


def test_the_folder_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORTMODULE_SAVE_ONNX_PATH", str(tmp_path))
    assert DebugOptions(save_onnx=True, onnx_prefix="m").save_path == str(tmp_path)


def test_the_log_level_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "info")
    assert DebugOptions().log_level is LogLevel.INFO
    monkeypatch.setattr(logging.getLogger("ortmodule"), "level", logging.NOTSET)
    ORTModule(mlp())(torch.ones(2, 4))
    assert any("first call" in record.getMessage() for record in caplog.records)


def test_python_dash_m_prints_environment_and_build(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ortmodule"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert result.returncode == 0, result.stderr
    facts = dict(line.split("  ", 1) for line in result.stdout.splitlines())
    assert facts["torch"].strip() == torch.__version__
    assert facts["built with torch"].strip() == torch.__version__
    assert int(facts["operators"]) > 100
    assert {"python", "platform", "cuda", "devices", "onnx"} <= facts.keys()
