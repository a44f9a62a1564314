"""Every .cu file is compiled by nvcc for three architectures: no warning, nothing spilled, no header of torch.

nvcc needs no GPU; it comes with the test dependencies (nvidia-cuda-nvcc). What it said of a source is kept in
build/nvcc by a hash of all that it read, so that only what changed is compiled. Not here: what kernels compute
(test_kernels.py).
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

import pytest

from ..device.__main__ import ROOT
from .needs import needs, nvcc

CSRC = ROOT / "csrc"
SOURCES = sorted(str(path.relative_to(CSRC)) for path in CSRC.rglob("*.cu"))
ARCHITECTURES = ("80", "90", "100")


def read_by(name: str, seen: set[str] | None = None) -> set[str]:
    """Our own files that a source includes, and itself."""
    seen = set() if seen is None else seen
    if name not in seen and (CSRC / name).is_file():
        seen.add(name)
        for other in re.findall(r'#include "([^"]+)"', (CSRC / name).read_text()):
            read_by(other, seen)
    return seen


def compiled(name: str) -> str:
    """What nvcc and ptxas say of a source; raises AssertionError where they refuse it."""
    return _compiled(CSRC / name, name.replace("/", "_"), read_by(name))


def compiled_text(name: str, text: str) -> str:
    """The same of a text, which includes our headers."""
    folder = ROOT / "build" / "nvcc"
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / f"{name}.cu"
    source.write_text(text)
    headers = {other for header in re.findall(r'#include "([^"]+)"', text) for other in read_by(header)}
    return _compiled(source, name, headers)


def _compiled(source: Path, name: str, files: set[str]) -> str:
    program = nvcc()
    assert program, "there is no nvcc: nvidia-cuda-nvcc, a test dependency, has it"
    digest = hashlib.sha256(subprocess.run([program, "--version"], capture_output=True).stdout)
    digest.update(source.read_bytes())
    for file in sorted(files):
        digest.update((CSRC / file).read_bytes())
    folder = ROOT / "build" / "nvcc"
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{name}-{digest.hexdigest()[:16]}.log"
    if not kept.exists():
        targets = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in ARCHITECTURES]
        flags = ["-std=c++20", "-O3", "-Werror=all-warnings", "-Xptxas=-v,-warn-spills", "-Xcompiler=-Wall,-Wextra"]
        command = [program, *flags, *targets, f"-I{CSRC}", "-c", str(source), "-o", str(kept.with_suffix(".o"))]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        kept.with_suffix(".o").unlink()
        kept.write_text(done.stdout + done.stderr)
    return kept.read_text()


@needs(nvcc() is not None, "there is no nvcc: nvidia-cuda-nvcc, a test dependency on Linux, has it")
@pytest.mark.parametrize("name", SOURCES)
def test_nvcc_compiles_it_without_a_warning_or_a_spill(name: str) -> None:
    said = compiled(name)
    assert "warning" not in said
    spilled = [line for line in said.splitlines() if "spill" in line and not line.strip().startswith("0 bytes")]
    assert spilled == []
    for architecture in ARCHITECTURES:
        kernels = re.findall(rf"Compiling entry function '(\w+)' for 'sm_{architecture}'", said)
        assert kernels or "__global__" not in (CSRC / name).read_text()
    assert all("0 bytes spill stores, 0 bytes spill loads" in line for line in said.splitlines() if "spill" in line)


def test_kernels_see_cuda_and_our_own_headers_alone() -> None:
    assert SOURCES
    for name in SOURCES:
        for file in read_by(name):
            for header in re.findall(r"#include [<\"]([^>\"]+)[>\"]", (CSRC / file).read_text()):
                assert not header.startswith(("ATen/", "c10/", "torch/")), f"{file} includes {header}"
