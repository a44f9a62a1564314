"""Build of the wheel and of the editable install: setuptools for Python, CMake and Ninja for the C++ engine.

What: checks that everything the build needs is there (each missing thing stops it with one sentence that says what to
do), runs CMake, places the compiled files in the package, writes `ortmodule/_build_info.py`.
Why a setup.py: the extension has to bind to the torch that is installed, which static metadata cannot express.
Not here: what is compiled and how (CMakeLists.txt), names, versions and dependencies (pyproject.toml).

Environment variables:
    MAX_JOBS                 compile jobs at once (default: one per core, fewer where memory is short)
    ORTMODULE_CUDA           auto (default: build the CUDA kernels if nvcc is there), 0 or 1 (nvcc is required)
    ORTMODULE_PROTOBUF_ROOT  folder with an unpacked libprotobuf (include/google, lib, bin/protoc; also below usr/)
    ORTMODULE_TESTS          1 builds the GoogleTest program build/ortmodule_tests as well
    ORTMODULE_BUILD_TYPE     RelWithDebInfo (default), Release or Debug
    TORCH_CUDA_ARCH_LIST     GPU architectures, as PyTorch reads it ("8.0;9.0+PTX")
    CXX, CMAKE_ARGS          the compiler; further arguments for CMake
"""

from __future__ import annotations

import filecmp
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import setuptools
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.dist_info import dist_info

ROOT = Path(__file__).resolve().parent
MINIMUM_PYTHON = (3, 11)
MINIMUM_TORCH = (2, 11)
MINIMUM_SETUPTOOLS = 77
BYTES_PER_JOB = 2 << 30

# Import name -> folder of the checkout. Everything installed lives under `ortmodule`.
CORE_LAYERS = ("base", "cuda", "graph", "records", "kernels", "transforms", "placement")
CORE = Path("include/ortmodule/core")
PACKAGE_ROOTS = {
    "ortmodule": "ortmodule",
    "ortmodule.graph_transition": "graph_transition",
    "ortmodule.optim": "optim",
    "ortmodule.distributed": "distributed",
}


def stop(sentence: str) -> None:
    """Ends the build with one sentence and no traceback."""
    raise SystemExit(f"ortmodule: {sentence}")


def find_tool(name: str) -> str | None:
    """Path of a program on PATH, or beside this Python (a venv that is not activated)."""
    beside = os.path.dirname(sys.executable)
    return shutil.which(name) or shutil.which(name, path=beside)


# --- what the build needs ---------------------------------------------------------------------------------------------


def check_python_packages() -> None:
    """Python, torch, the onnx package (whose onnx-ml.proto is compiled) and setuptools, told in one sentence."""
    if sys.version_info[:2] < MINIMUM_PYTHON:
        stop(f"Python 3.11 or later is needed and this is {sys.version.split()[0]}; use another interpreter.")
    problems, wanted = [], []
    if importlib.util.find_spec("torch") is None:
        problems.append("PyTorch is not visible to this build")
        wanted.append("'torch>=2.11'")
    else:
        version = importlib.metadata.version("torch")
        numbers = re.match(r"(\d+)\.(\d+)", version)
        if numbers is None or (int(numbers[1]), int(numbers[2])) < MINIMUM_TORCH:
            problems.append(f"torch {version} is installed but 2.11 or later is needed")
            wanted.append("'torch>=2.11'")
    if importlib.util.find_spec("onnx") is None:
        problems.append("the onnx package is missing")
        wanted.append("onnx")
    if int(setuptools.__version__.split(".")[0]) < MINIMUM_SETUPTOOLS:
        problems.append(f"setuptools {setuptools.__version__} is too old")
        wanted.append(f"'setuptools>={MINIMUM_SETUPTOOLS}'")
    if problems:
        stop(
            f"{' and '.join(problems)}; run `pip install -U {' '.join(wanted)}` first and then "
            "`pip install --no-build-isolation .` (only without isolation can the build see the installed torch)."
        )


def check_compiler() -> None:
    advice = "run `apt-get install g++` (GCC 11 or later) or point CXX to one"
    named = os.environ.get("CXX")
    compiler = shlex.split(named) if named else [shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")]
    if compiler[0] is None or shutil.which(compiler[0]) is None:
        stop(f"no C++20 compiler was found{f' (CXX is {named!r})' if named else ''}; {advice}.")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cpp")
        source.write_text(
            "#include <concepts>\n#include <span>\nstd::integral auto f(std::span<int> s) { return s[0]; }\n"
        )
        command = [*compiler, "-std=c++20", "-fsyntax-only", str(source)]
        if subprocess.run(command, capture_output=True).returncode:
            stop(f"the compiler {compiler[0]} does not compile C++20; {advice}.")
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        stop("Python.h was not found; run `apt-get install python3-dev`.")


def check_cmake() -> None:
    if find_tool("cmake") is None or find_tool("ninja") is None:
        stop("CMake and Ninja are needed; run `pip install cmake ninja` or `apt-get install cmake ninja-build`.")


def protobuf_prefixes() -> list[Path]:
    named = os.environ.get("ORTMODULE_PROTOBUF_ROOT")
    if not named:
        return [Path("/usr"), Path("/usr/local")]
    root = Path(named).expanduser()
    if not root.is_dir():
        stop(f"ORTMODULE_PROTOBUF_ROOT is {named!r}, which is no folder.")
    return [root, root / "usr"]


def check_protobuf() -> None:
    prefixes = protobuf_prefixes()
    missing = []
    if not any((prefix / "include/google/protobuf/message_lite.h").is_file() for prefix in prefixes):
        missing.append("its C++ headers (google/protobuf)")
    if not shutil.which("protoc") and not any(shutil.which("protoc", path=str(prefix / "bin")) for prefix in prefixes):
        missing.append("its compiler (protoc)")
    if missing:
        stop(
            f"protobuf is incomplete: {' and '.join(missing)} not found; "
            "run `apt-get install libprotobuf-dev protobuf-compiler`, "
            "or unpack these two packages in a folder and name it in ORTMODULE_PROTOBUF_ROOT."
        )


def check_json() -> None:
    prefixes = [*protobuf_prefixes(), Path("/usr"), Path("/usr/local")]
    if not any((prefix / "include/nlohmann/json.hpp").is_file() for prefix in prefixes):
        stop(
            "nlohmann/json.hpp was not found; run `apt-get install nlohmann-json3-dev`, "
            "or unpack that package in the folder that ORTMODULE_PROTOBUF_ROOT names."
        )


def check_cuda() -> None:
    wanted = os.environ.get("ORTMODULE_CUDA", "auto")
    if wanted not in ("auto", "0", "1"):
        stop(f"ORTMODULE_CUDA is {wanted!r}; it must be auto, 0 or 1.")
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    if wanted == "1" and not (os.environ.get("CUDACXX") or shutil.which("nvcc") or Path(home, "bin/nvcc").is_file()):
        stop("ORTMODULE_CUDA=1 but nvcc was not found; install the CUDA toolkit and put nvcc on PATH, or unset it.")


def check_all() -> None:
    check_python_packages()
    check_compiler()
    check_cmake()
    check_protobuf()
    check_json()
    check_cuda()
    jobs()


# --- CMake ------------------------------------------------------------------------------------------------------------


def jobs() -> int:
    named = os.environ.get("MAX_JOBS")
    if named:
        if not named.isdigit() or int(named) < 1:
            stop(f"MAX_JOBS is {named!r}; it must be a positive number.")
        return int(named)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory // BYTES_PER_JOB))


def run_cmake(in_place: bool) -> Path:
    """Configures and builds; returns CMake's build folder. Both kinds of install share one folder and its objects."""
    tag = f"{sys.implementation.cache_tag}-torch{importlib.metadata.version('torch')}"
    build = ROOT / "build" / tag
    cmake, ninja = find_tool("cmake"), find_tool("ninja")
    torch_lib = Path(importlib.util.find_spec("torch").origin).parent / "lib"
    configure = [
        cmake,
        *("-S", str(ROOT), "-B", str(build), "-G", "Ninja"),
        f"-DCMAKE_MAKE_PROGRAM={ninja}",
        f"-DCMAKE_BUILD_TYPE={os.environ.get('ORTMODULE_BUILD_TYPE', 'RelWithDebInfo')}",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-DORTMODULE_CUDA={os.environ.get('ORTMODULE_CUDA', 'auto')}",
        f"-DORTMODULE_TESTS={'ON' if os.environ.get('ORTMODULE_TESTS', '0') == '1' else 'OFF'}",
        f"-DORTMODULE_CORE_HEADERS={headers_symbol()}",
        f"-DORTMODULE_PROTOBUF_ROOT={os.environ.get('ORTMODULE_PROTOBUF_ROOT', '')}",
        # A wheel finds torch beside itself in site-packages; an editable install does not lie there.
        f"-DORTMODULE_EXTRA_RPATH={torch_lib if in_place else ''}",
        *shlex.split(os.environ.get("CMAKE_ARGS", "")),
    ]
    if subprocess.run(configure).returncode:
        stop("CMake could not configure the build; its message stands above.")
    if subprocess.run([cmake, "--build", str(build), "--parallel", str(jobs())]).returncode:
        stop("the C++ build failed; the compiler's message stands above.")
    return build


def git_commit() -> str | None:
    """Commit of the checkout, with "-dirty" behind it where tracked files differ; None outside a checkout."""
    if not (ROOT / ".git").exists():
        return None
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
        changed = subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=ROOT, capture_output=True).returncode
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.stdout.strip() + ("-dirty" if changed else "")


def replace_file(source: Path, target: Path) -> None:
    """Copies by renaming, so that a process that has the old library mapped keeps it."""
    if target.is_file() and filecmp.cmp(source, target, shallow=False):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(target.name + ".new")
    shutil.copy2(source, fresh)
    os.replace(fresh, target)


def core_headers() -> list[Path]:
    """The engine's headers that libraries with passes, providers and kernels are written with, below csrc."""
    csrc = ROOT / "csrc"
    found = sorted(path.relative_to(csrc) for layer in CORE_LAYERS for path in (csrc / layer).rglob("*.h"))
    return [path for path in found if "simt" not in path.parts]  # the tests' simulated GPU


def headers_symbol() -> str:
    """A symbol's name that changes with any of these headers and with torch: Note [Built for these headers]."""
    digest = hashlib.sha256(importlib.metadata.version("torch").encode())
    for header in core_headers():
        digest.update(f"\0{header}\0".encode() + (ROOT / "csrc" / header).read_bytes())
    return f"ortmodule_headers_{digest.hexdigest()[:16]}"


class CMakeBuild(build_ext):
    """build_ext that runs CMake once and copies what it made into the package."""

    def run(self) -> None:
        check_all()
        in_place = bool(self.inplace or self.editable_mode)
        build = run_cmake(in_place)
        target = ROOT / "ortmodule" if in_place else Path(self.build_lib, "ortmodule")
        self.products = [path.name for path in sorted((build / "ortmodule").iterdir())]
        if in_place:
            for stale in target.glob("*.so*"):
                if stale.name not in self.products:
                    stale.unlink()
        for name in self.products:
            replace_file(build / "ortmodule" / name, target / name)
        for header in core_headers():
            replace_file(ROOT / "csrc" / header, target / CORE / header)
        self.write_build_info(json.loads((build / "build_info.json").read_text()), target / "_build_info.py")

    def write_build_info(self, facts: dict[str, str], path: Path) -> None:
        facts = {"VERSION": self.distribution.get_version(), "GIT_COMMIT": git_commit() or "", **facts}
        lines = ['"""What this copy of ortmodule was built from and for. Written by setup.py; not kept in git."""', ""]
        for name, value in facts.items():
            kind = "str | None" if name in ("GIT_COMMIT", "TORCH_CUDA", "CUDA_TOOLKIT") else "str"
            lines.append(f"{name}: {kind} = {json.dumps(value) if value else None}")
        path.write_text("\n".join(lines) + "\n")

    def get_outputs(self) -> list[str]:
        headers = [str(CORE / header) for header in core_headers()]
        names = [*getattr(self, "products", []), "_build_info.py", *headers]
        return [os.path.join(self.build_lib, "ortmodule", name) for name in names]

    def get_output_mapping(self) -> dict[str, str]:
        if not (self.inplace or self.editable_mode):
            return {}
        package = os.path.join(self.build_lib, "ortmodule")
        return {output: str(ROOT / "ortmodule" / os.path.relpath(output, package)) for output in self.get_outputs()}


class FreshBuildPy(build_py):
    """build_py that starts from an empty package folder: a module deleted from the checkout is not to be packed."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(os.path.join(self.build_lib, "ortmodule"), ignore_errors=True)
        super().run()


class CheckedDistInfo(dist_info):
    """pip asks for the metadata first: a missing tool is reported here, before pip downloads any dependency."""

    def run(self) -> None:
        check_all()
        super().run()


def packages() -> tuple[list[str], dict[str, str]]:
    names, folders = [], {}
    for name, folder in PACKAGE_ROOTS.items():
        if not (ROOT / folder / "__init__.py").is_file():
            continue
        folders[name] = folder
        names += [name, *(f"{name}.{inner}" for inner in setuptools.find_packages(str(ROOT / folder)))]
    return names, folders


def main() -> None:
    if int(setuptools.__version__.split(".")[0]) < MINIMUM_SETUPTOOLS:  # it could not read pyproject.toml
        check_python_packages()
    names, folders = packages()
    setuptools.setup(
        packages=names,
        package_dir=folders,
        package_data={
            "": ["py.typed", "*.pyi"],
            "ortmodule": ["include/ortmodule/*.h", "cmake/ortmodule/*.cmake"],
            "ortmodule.inspect": ["assets/*"],
        },
        ext_modules=[setuptools.Extension("ortmodule._C", sources=[])],
        cmdclass={"build_ext": CMakeBuild, "build_py": FreshBuildPy, "dist_info": CheckedDistInfo},
        zip_safe=False,
    )


main()
