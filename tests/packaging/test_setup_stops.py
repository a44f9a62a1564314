"""setup.py stops with one sentence, and no traceback, where something that the build needs is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import setuptools

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def build(monkeypatch):
    """setup.py as a module, its call of setuptools.setup left out."""
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    spec = importlib.util.spec_from_file_location("ortmodule_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sentence(check) -> str:
    with pytest.raises(SystemExit) as stopped:
        check()
    text = str(stopped.value)
    assert text.startswith("ortmodule: ") and "\n" not in text
    return text


def test_everything_here_is_enough(build):
    build.check_all()


def test_old_python_is_named(build, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 13, "final", 0))
    monkeypatch.setattr(sys, "version", "3.10.13 (main)")
    assert "Python 3.11 or later is needed and this is 3.10.13" in sentence(build.check_python_packages)


def test_missing_torch(build, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    text = sentence(build.check_python_packages)
    assert "PyTorch is not visible" in text and "pip install --no-build-isolation ." in text


def test_old_torch_is_named(build, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.10.1+cpu")
    assert "torch 2.10.1+cpu is installed but 2.11 or later is needed" in sentence(build.check_python_packages)


@pytest.mark.parametrize("version", ["2.11.0+cu130", "2.13.0", "3.0.0a0+git1"])
def test_new_torch_is_accepted(build, monkeypatch, version):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    build.check_python_packages()


def test_missing_onnx(build, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnx" else find_spec(name))
    assert "pip install -U onnx" in sentence(build.check_python_packages)


def test_missing_compiler(build, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "apt-get install g++" in sentence(build.check_compiler)


def test_compiler_without_cxx20(build, monkeypatch):
    monkeypatch.setenv("CXX", "false")
    assert "does not compile C++20" in sentence(build.check_compiler)


def test_missing_cmake(build, monkeypatch):
    monkeypatch.setattr(build.shutil, "which", lambda name, path=None: None)
    assert "pip install cmake ninja" in sentence(build.check_cmake)


def test_missing_protobuf(build, monkeypatch, tmp_path):
    monkeypatch.setenv("ORTMODULE_PROTOBUF_ROOT", str(tmp_path))
    monkeypatch.setattr(build.shutil, "which", lambda name, path=None: None)
    text = sentence(build.check_protobuf)
    assert "headers" in text and "protoc" in text
    assert "apt-get install libprotobuf-dev protobuf-compiler" in text


def test_protobuf_root_below_usr_is_enough(build, monkeypatch, tmp_path):
    header = tmp_path / "usr/include/google/protobuf/message_lite.h"
    header.parent.mkdir(parents=True)
    header.touch()
    protoc = tmp_path / "usr/bin/protoc"
    protoc.parent.mkdir()
    protoc.touch(mode=0o755)
    monkeypatch.setenv("ORTMODULE_PROTOBUF_ROOT", str(tmp_path))
    build.check_protobuf()


def test_missing_json(build, monkeypatch):
    monkeypatch.setattr(build.Path, "is_file", lambda path: False)
    assert "apt-get install nlohmann-json3-dev" in sentence(build.check_json)


@pytest.mark.parametrize("variable", ["ORTMODULE_CUDA", "MAX_JOBS"])
def test_a_nonsense_variable_is_named(build, monkeypatch, variable):
    monkeypatch.setenv(variable, "perhaps")
    assert f"{variable} is 'perhaps'" in sentence(build.check_all)


def test_the_command_line_shows_no_traceback():
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=ROOT,
        env={**os.environ, "CXX": "no-such-compiler"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("ortmodule: no C++20 compiler")
