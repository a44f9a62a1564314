"""What the tests of CUDA kernels need, and when a test may be skipped for want of it.

A machine may lack nvcc, and an install has no libraries of the tests: the reason says what is missing. Where CI is set
in the environment, as .ci/run does, nothing may be missing: the tests run, and fail. Not here: how they are built
(CMakeLists.txt).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest


def nvcc() -> str | None:
    """The one of the test dependencies, else the one on the path."""
    package = importlib.util.find_spec("nvidia")
    for folder in (package.submodule_search_locations or []) if package else []:
        for found in sorted(Path(folder).glob("cu*/bin/nvcc")):
            return str(found)
    return shutil.which("nvcc")


def needs(there: bool, missing: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not there and not os.environ.get("CI"), reason=missing)


def needs_built(*libraries: Path) -> pytest.MarkDecorator:
    absent = [library.name for library in libraries if not library.exists()]
    return needs(not absent, f"build/ has no {', '.join(absent)}: `make test-cpp` makes them")
