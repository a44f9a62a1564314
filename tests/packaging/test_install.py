"""What an install contains, and that it imports where no checkout is around."""

from __future__ import annotations

import json
import os
import re
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
    needed = ["_C.", "libprotobuf", "_build_info.py", "graph_transition/__init__.py", "py.typed"]
    for part in [*needed, "inspect/assets/page.html", "inspect/assets/page.css", "inspect/assets/main.js"]:
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


def test_the_library_knows_no_python_and_shows_little(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    library = tmp_path / "ortmodule/libortmodule.so"
    needed = subprocess.run(["objdump", "-p", library], capture_output=True, text=True, check=True).stdout
    assert "libtorch_cpu" in needed and "python" not in needed
    shown = subprocess.run(["nm", "-DC", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    ours = [line for line in shown.splitlines() if "ortmodule::" in line]
    assert 0 < len(ours) < 200, "\n".join(ours)


def test_a_cpp_program_is_built_on_the_wheel_and_trains(wheel, tmp_path):
    """The example, in a CMake project of its own, on what the wheel holds."""
    import torch

    site, build, model = tmp_path / "site", tmp_path / "build", tmp_path / "model.onnx"
    zipfile.ZipFile(wheel).extractall(site)
    environment = {**os.environ, "PYTHONPATH": str(site)}

    def run(*command: str | Path, fails: bool = False) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert bool(done.returncode) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    example = ROOT / "examples" / "cpp_training"
    folder = run(sys.executable, "-m", "ortmodule", "--cmake-dir").strip()
    assert Path(folder) == site / "ortmodule" / "cmake" / "ortmodule"
    torch_root = f"-DTORCH_ROOT={Path(torch.__file__).parent}"
    run("cmake", "-S", example, "-B", build, f"-Dortmodule_DIR={folder}", torch_root)
    run("cmake", "--build", build)
    run(sys.executable, example / "save_graph.py", model)
    losses = [float(line.split()[-1]) for line in run(build / "train", model, "200").splitlines()]
    assert losses[0] > 2 and losses[-1] < 0.3, losses
    assert "cannot be read" in run(build / "train", "nothing.onnx", fails=True)
    assert re.search(r"output .*: 1 elements\na run takes [\d.]+ us", run(build / "infer", model, "20"))
    assert "cannot be read" in run(build / "infer", "nothing.onnx", fails=True)
    run(sys.executable, example / "save_artifacts.py", tmp_path / "artifacts", tmp_path / "digits.bin")
    printed = run(build / "train_digits", tmp_path / "artifacts", tmp_path / "digits.bin", "60", tmp_path)
    assert min(float(share) for share in re.findall(r"accuracy ([\d.]+)", printed)) > 0.7, printed

    (site / "ortmodule" / "_build_info.py").write_text('TORCH_VERSION: str = "1.0"\nVERSION: str = "0.1"\n')
    other = run("cmake", "-S", example, "-B", tmp_path / "other", f"-Dortmodule_DIR={folder}", torch_root, fails=True)
    assert "was built for torch 1.0" in " ".join(other.split())


def test_a_cpp_pass_is_built_on_the_wheel_and_runs(wheel, tmp_path):
    """The example, in a CMake project of its own, on what the wheel holds; a library that Python cannot use is said."""
    import torch

    site, build = tmp_path / "site", tmp_path / "build"
    zipfile.ZipFile(wheel).extractall(site)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    example = ROOT / "examples" / "cpp_extension"

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    folder, torch_root = site / "ortmodule/cmake/ortmodule", Path(torch.__file__).parent
    for command in (
        ("cmake", "-S", example, "-B", build, f"-Dortmodule_DIR={folder}", f"-DTORCH_ROOT={torch_root}"),
        ("cmake", "--build", build),
    ):
        done = run(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    library = build / "libquick_gelu.so"
    done = run(sys.executable, example / "use.py", library)
    assert done.returncode == 0, done.stderr
    difference, fused = (line.split()[1] for line in done.stdout.splitlines())
    assert float(difference) < 1e-6 and fused == "True"

    (build / "copy.so").write_bytes(library.read_bytes())
    load = "import ortmodule, sys; [ortmodule.load_extension(name) for name in sys.argv[1:]]"
    twice = run(sys.executable, "-c", load, library, build / "copy.so")
    assert "InvalidArgumentError" in twice.stderr and "fuse_quick_gelu" in twice.stderr, twice.stderr
    name = re.search(rb"ortmodule_headers_[0-9a-f]{16}", library.read_bytes())[0]
    (build / "other.so").write_bytes(library.read_bytes().replace(name, name[:-16] + b"0" * 16))
    other = run(sys.executable, "-c", load, build / "other.so")
    assert "InvalidArgumentError" in other.stderr and "built for another ortmodule" in other.stderr, other.stderr
    missing = run(sys.executable, "-c", load, build / "nothing.so")
    assert "InvalidArgumentError" in missing.stderr and "nothing.so" in missing.stderr
