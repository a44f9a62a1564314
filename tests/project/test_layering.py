"""The include rule of the core: a layer sees the layers below it, and torch and protobuf stay where they belong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "csrc"
PUBLIC = CSRC.parent / "ortmodule" / "include"  # what is installed for programs and libraries of users
# base < cuda < graph < records < {kernels < products < ops, {onnx, transforms, gradient, placement} < plan}, then as listed
RANK = {
    "base": 0,
    "cuda": 0.5,
    "graph": 1,
    "records": 2,
    "kernels": 3,
    "products": 4,
    "ops": 5,
    "onnx": 3,
    "transforms": 3,
    "gradient": 3,
    "placement": 3,
    "plan": 4,
    "device": 6,
    "runtime": 7,
    "compile": 8,
    "autograd": 8,
    "session": 9,
    "bindings": 10,
}
# What an operator's family knows beyond its record nobody else does, but a program that loads a library of some.
SEES_FAMILIES = {"ops", "bindings"}
TORCH = re.compile(r"^(ATen|c10|torch|caffe2)/")
PROTOBUF = re.compile(r"google/protobuf|\.pb\.h$|^onnx/onnx")
WITH_TORCH = {"kernels", "products", "runtime", "device", "compile", "autograd", "session", "bindings"}


def sources() -> list[Path]:
    return sorted(p for p in CSRC.rglob("*") if p.suffix in {".h", ".cpp", ".cu", ".cuh"})


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE)


def layer(path: Path) -> str:
    return path.relative_to(CSRC).parts[0]


@pytest.fixture(scope="module")
def reached() -> dict[Path, set[str]]:
    """Every include of a file, through our own headers as well."""
    direct = {path: includes(path) for path in sources()}
    out: dict[Path, set[str]] = {}

    def walk(path: Path) -> set[str]:
        if path not in out:
            out[path] = set()
            found = set(direct[path])
            for name in direct[path]:
                if (CSRC / name) in direct:
                    found |= walk(CSRC / name)
            out[path] = found
        return out[path]

    for path in direct:
        walk(path)
    return out


def test_the_sources_are_found() -> None:
    assert len(sources()) > 100
    assert {layer(p) for p in sources()} <= RANK.keys()


def test_no_layer_includes_one_above_it_or_beside_it() -> None:
    wrong = []
    for path in sources():
        mine = layer(path)
        for name in includes(path):
            theirs = name.split("/")[0]
            if theirs in RANK and theirs != mine and RANK[theirs] >= RANK[mine]:
                wrong.append(f"{path.relative_to(CSRC)} includes {name}")
    assert not wrong, "\n".join(wrong)


def test_torch_is_seen_by_what_runs_alone(reached: dict[Path, set[str]]) -> None:
    wrong = []
    for path, names in reached.items():
        allowed = layer(path) in WITH_TORCH or path.name.endswith("_kernel.cpp")
        if allowed or (path.suffix == ".h" and layer(path) == "ops"):  # a family's kernels may share a header
            continue
        wrong += [f"{path.relative_to(CSRC)} sees {name}" for name in names if TORCH.match(name)]
    assert not wrong, "\n".join(wrong)


def test_no_header_of_the_core_below_ops_includes_torch() -> None:
    low = {"base", "graph", "records", "onnx", "transforms", "gradient", "placement", "plan"}
    wrong = [str(p) for p in sources() if layer(p) in low and any(TORCH.match(n) for n in includes(p))]
    assert not wrong, "\n".join(wrong)


def test_the_wide_torch_headers_are_included_nowhere() -> None:
    wide = {"torch/torch.h", "torch/all.h", "ATen/ATen.h", "ATen/Functions.h", "torch/extension.h"}
    wrong = []
    for path in sources():
        bad = wide & set(includes(path))
        if bad - ({"torch/extension.h"} if layer(path) == "bindings" else set()):
            wrong.append(f"{path.relative_to(CSRC)} includes {bad}")
    assert not wrong, "\n".join(wrong)


def test_cuda_headers_of_torch_are_included_nowhere() -> None:
    bad = re.compile(r"^(c10/cuda|ATen/cuda|torch/csrc/cuda)")
    wrong = [str(p) for p in sources() if any(bad.match(n) for n in includes(p))]
    assert not wrong, "\n".join(wrong)


def test_protobuf_stays_in_onnx(reached: dict[Path, set[str]]) -> None:
    wrong = []
    for path, names in reached.items():
        if layer(path) != "onnx":
            wrong += [f"{path.relative_to(CSRC)} sees {name}" for name in names if PROTOBUF.search(name)]
    assert not wrong, "\n".join(wrong)


def test_an_operator_family_is_included_by_itself_alone() -> None:
    assert [str(p) for p in (CSRC / "ops").iterdir() if p.is_file()] == [], "ops/ has families and nothing else"
    wrong = []
    for path in sources():
        parts = path.relative_to(CSRC).parts
        for name in includes(path):
            theirs = name.split("/")
            if theirs[0] != "ops" or (parts[0] == "ops" and theirs[1] == parts[1]):
                continue
            if parts[0] == "ops" or parts[0] not in SEES_FAMILIES:
                wrong.append(f"{'/'.join(parts)} includes {name}")
    assert not wrong, "\n".join(wrong)


def test_python_is_seen_by_bindings_alone() -> None:
    bad = re.compile(
        r"^(Python\.h|pybind11/|torch/csrc/utils/pybind|torch/csrc/autograd/python_|torch/csrc/Exceptions)"
    )
    wrong = [str(p) for p in sources() if layer(p) != "bindings" and any(bad.match(n) for n in includes(p))]
    assert not wrong, "\n".join(wrong)


def test_public_headers_include_nothing_of_the_core() -> None:
    found = sorted((PUBLIC / "ortmodule").glob("*.h"))  # beside them lie copies of the core's, which `setup.py` makes
    assert found
    wrong = []
    for path in found:
        for name in includes(path):
            standard = "/" not in name
            if not standard and not TORCH.match(name) and not (PUBLIC / name).is_file():
                wrong.append(f"{path.name} includes {name}")
    assert not wrong, "\n".join(wrong)


def test_cuda_kernels_include_no_torch() -> None:
    kernels = [p for p in sources() if p.suffix in {".cu", ".cuh"} or layer(p) == "cuda"]
    wrong = [str(p) for p in kernels if any(TORCH.match(n) for n in includes(p))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("layers", "word"), [({"gradient"}, r'"(MatMul|Gelu|Relu|Softmax|Conv|LayerNormalization)"'), ({"plan"}, r"at::")]
)
def test_general_code_names_no_operator_and_no_torch(layers: set[str], word: str) -> None:
    wrong = [str(p) for p in sources() if layer(p) in layers and re.search(word, p.read_text())]
    assert not wrong, "\n".join(wrong)
