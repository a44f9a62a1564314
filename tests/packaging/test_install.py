"""What an install contains, and that it imports where no checkout is around."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# One worker of pytest-xdist runs the whole file (--dist loadgroup): two builds must not share a folder.
pytestmark = pytest.mark.xdist_group("build")
IMPORTS = """
import json, ortmodule, ortmodule._C, ortmodule.graph_transition, ortmodule.optim, ortmodule.distributed
print(json.dumps([ortmodule.__file__, ortmodule._C.__file__, ortmodule.optim.__file__]))
"""


def imported_from(folder: Path, **environment: str) -> list[Path]:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return [Path(name).resolve() for name in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", str(folder), "."]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("ortmodule-*.whl"))


def test_the_editable_install_is_the_checkout(tmp_path):
    package, extension, optim = imported_from(tmp_path)
    assert package == ROOT / "ortmodule/__init__.py"
    assert extension.parent == ROOT / "ortmodule"
    assert optim == ROOT / "optim/__init__.py"


def test_the_wheel_imports_from_an_empty_folder(wheel, tmp_path):
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    zipfile.ZipFile(wheel).extractall(site)
    for path in imported_from(empty, PYTHONPATH=str(site)):
        assert path.is_relative_to(site)


def test_the_wheel_has_one_import_name_and_what_it_needs(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"ortmodule"}
    for part in ["_C.", "libprotobuf", "_build_info.py", "graph_transition/__init__.py", "py.typed"]:
        assert any(name.startswith(f"ortmodule/{part}") for name in names), part


def test_the_wheel_names_no_folder_of_the_build_machine(wheel):
    archive = zipfile.ZipFile(wheel)
    extension = next(name for name in archive.namelist() if name.startswith("ortmodule/_C.") and name.endswith(".so"))
    site = str(Path(sys.executable).parent.parent).encode()
    runpath = [part for part in archive.read(extension).split(b"\0") if b"$ORIGIN" in part]
    assert runpath and all(site not in part for part in runpath)


def test_build_info_records_what_was_built():
    import torch

    from ortmodule import _build_info

    assert _build_info.TORCH_VERSION == torch.__version__
    assert _build_info.TORCH_CUDA == torch.version.cuda
    assert _build_info.VERSION and _build_info.COMPILER and "-O" in _build_info.FLAGS
