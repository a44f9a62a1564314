"""Generated kernels: they compute what the CPU's interpreter does, and the compilers for GPUs take them.

On the simulated GPU in a process of its own, as test_kernels.py. nvcc compiles for three architectures what the fusion
pass makes of the six models of benchmarks/gpu_models.py at their real widths, with two layers each; NVRTC, which
sessions use, where it is installed. Not here: kernels written by hand (test_sources.py).
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
from pathlib import Path

import pytest

from ortmodule import _C

from ..device.__main__ import ROOT
from .generated_models import NAMES, sources_of
from .needs import needs, nvcc
from .test_kernels import run
from .test_sources import ARCHITECTURES, compiled_text

simulated = needs(
    (ROOT / "build" / "libsimulated_cuda.so").exists(), "build/libsimulated_cuda.so is built by `make test`"
)


@simulated
@pytest.mark.parametrize("match", ["booleans", "places 64", "norm 9x64", "norm gradient 300x64", "dropout 1000"])
def test_a_program_computes_what_the_interpreter_does(match: str) -> None:
    found = run("kernels", "--match", f"Fused {match}")
    assert found
    assert not {one["case"]: one["failures"] for one in found if one["failures"]}


@simulated
@pytest.mark.parametrize("match", ["LinearCrossEntropy", "Attention ", "LinearGrad"])
def test_kernels_around_those_of_aten_compute_what_pytorch_does(match: str) -> None:
    found = run("kernels", "--match", match)
    assert found
    assert not {one["case"]: one["failures"] for one in found if one["failures"]}


@functools.cache
def sources(name: str) -> list[str]:
    return sources_of(name)


def test_kernels_are_named_by_what_they_compute() -> None:
    """A profile shows the names, and layers share their kernels: they are no layer's."""
    found = {name: set(re.findall(r"\bfused_\w+(?=\(Global)", "".join(sources(name)))) for name in NAMES}
    assert found["gpt2-small"] >= {"fused_add_layer_norm", "fused_layer_norm_grad_add", "fused_layer_norm_grad_total"}
    assert found["llama-1b"] >= {"fused_rotary", "fused_silu_mul", "fused_add_rms_norm"}
    assert found["bert-large"] >= {"fused_dropout_add_layer_norm", "fused_gelu_gelu_grad_column_sum_total"}
    assert found["resnet50"] >= {"fused_mul_add_relu", "fused_column_sum"}
    assert max(len(kernel) for kernels in found.values() for kernel in kernels) <= 60


def joined(texts: list[str]) -> str:
    """Sources as one, each in a namespace of its own: nvcc reads their headers once."""
    parts = []
    for i, text in enumerate(texts):
        text = re.sub(r"\bfused_\w+", rf"\g<0>_{i}", text)
        parts.append(text.replace("namespace ortmodule::cuda {", f"namespace ortmodule::cuda::part{i} {{", 1))
    return "\n".join(parts)


@needs(nvcc() is not None, "there is no nvcc: nvidia-cuda-nvcc, a test dependency on Linux, has it")
@pytest.mark.parametrize("name", NAMES)
def test_nvcc_compiles_the_kernels_of_a_model_without_a_warning_or_a_spill(name: str) -> None:
    texts = sources(name)
    assert texts
    said = compiled_text(f"generated-{name}", joined(texts))
    assert "warning" not in said
    for architecture in ARCHITECTURES:
        assert said.count(f"for 'sm_{architecture}'") >= len(texts)
    spills = [line for line in said.splitlines() if "spill" in line]
    assert spills and all("0 bytes spill stores, 0 bytes spill loads" in line for line in spills)


def nvrtc() -> Path | None:
    package = importlib.util.find_spec("nvidia")
    for folder in (package.submodule_search_locations or []) if package else []:
        for found in sorted(Path(folder).glob("*/lib/libnvrtc.so.1[23]")):
            return found
    return None


@needs(nvrtc() is not None, "there is no NVRTC: nvidia-cuda-nvrtc, a test dependency on Linux, has it")
@pytest.mark.parametrize("architecture", [int(a) for a in ARCHITECTURES])
def test_nvrtc_compiles_what_sessions_give_it(architecture: int) -> None:
    ctypes.CDLL(str(nvrtc()), mode=ctypes.RTLD_GLOBAL)
    for text in sources("gpt2-small")[:4] + sources("bert-large")[:4]:
        assert _C.compile_with_nvrtc(text, architecture)[:4] == b"\x7fELF"
