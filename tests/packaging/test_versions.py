"""Which Python and torch: what the Makefile's PYTHON, TORCH and VENV do, and an engine that was built for others.

Not here: what setup.py asks of torch (test_setup_stops.py).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ortmodule import _build_info
from ortmodule.environment import check_build

ROOT = Path(__file__).resolve().parents[2]
HERE = "{}.{}".format(*sys.version_info[:2])


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    environ = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "PYTHON", "TORCH", "VENV")}
    return subprocess.run(["make", "-C", str(ROOT), *arguments], capture_output=True, text=True, env=environ)


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment whose Python is 3.9, or says so."""
    python = tmp_path / "env/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 3.9\n")
    python.chmod(0o755)
    return tmp_path / "env"


def test_an_interpreter_that_is_named_is_the_environments(venv: Path) -> None:
    result = make(f"{venv}/.stamps/venv", f"VENV={venv}", f"PYTHON={sys.executable}")
    assert result.returncode != 0
    assert f"has Python 3.9; name a new folder for {sys.executable}, for example VENV=.venv-{HERE}" in result.stderr


def test_without_a_name_the_environments_interpreter_stays(venv: Path) -> None:
    result = make(f"{venv}/.stamps/venv", f"VENV={venv}")
    assert result.returncode == 0, result.stderr
    assert (venv / ".stamps/venv").exists()


def test_an_old_interpreter_is_refused(venv: Path, tmp_path: Path) -> None:
    old = tmp_path / "python3.10"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    result = make(f"{venv}/.stamps/venv", f"VENV={venv}", f"PYTHON={old}")
    assert result.returncode != 0 and "Python 3.11 or later is needed" in result.stderr


@pytest.mark.parametrize(
    ("given", "asked_for"),
    [
        ((), "-m pip install -q torch==2.13.0"),
        (("TORCH=2.11.0",), '-m pip install -q "torch==2.11.0"'),
        (("TORCH=torch>=2.11,<2.12",), '-m pip install -q "torch>=2.11,<2.12"'),
        (("TORCH=/x/torch-2.12.0.whl",), '-m pip install -q "/x/torch-2.12.0.whl"'),
    ],
)
def test_torch_is_the_version_that_is_named(venv: Path, given: tuple[str, ...], asked_for: str) -> None:
    result = make("-n", f"{venv}/.stamps/torch", f"VENV={venv}", *given)
    assert result.returncode == 0 and asked_for in result.stdout


@pytest.mark.parametrize(
    ("fact", "value", "sentence"),
    [
        ("PYTHON_VERSION", "3.9.2", f"built for Python 3.9 but runs in {HERE}; reinstall it with"),
        ("TORCH_VERSION", "2.9.0", f"for torch 2.9.0 but torch {torch.__version__} is installed; reinstall it with"),
    ],
)
def test_an_engine_for_another_version_is_refused_in_one_sentence(monkeypatch, fact, value, sentence) -> None:
    monkeypatch.setattr(_build_info, fact, value)
    with pytest.raises(ImportError) as refused:
        check_build()
    assert sentence in str(refused.value) and "\n" not in str(refused.value)
