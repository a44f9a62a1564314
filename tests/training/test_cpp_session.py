"""The C++ program of examples/cpp_training on the installed headers alone: its bits are Python's, and what it needs."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ortmodule import InferenceSession, TrainingSession, cmake_dir, export_training_artifacts

from .models import same_files

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "cpp_training"
STEPS, BATCH, HELD_OUT = 200, 64, 297
MOST_MEMORY = 150  # MiB beyond what libtorch takes by itself

TORCH_ALONE = """
#include <ATen/ATen.h>
#include <cstdio>
#include <fstream>
#include <string>

int main() {
  const at::Tensor w = at::randn({64, 128}).requires_grad_(true);
  at::matmul(at::randn({64, 64}), w).sum().backward();
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("VmHWM:", 0) == 0) std::puts(line.c_str());
}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    (folder / "alone.cpp").write_text(TORCH_ALONE)
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(program LANGUAGES CXX)\n"
        f'add_subdirectory("{EXAMPLE}" example)\nfind_package(ortmodule REQUIRED)\n'
        "get_target_property(headers ortmodule::ortmodule INTERFACE_INCLUDE_DIRECTORIES)\n"
        "get_target_property(torch ortmodule::ortmodule INTERFACE_LINK_LIBRARIES)\n"
        "add_executable(alone alone.cpp)\ntarget_include_directories(alone SYSTEM PRIVATE ${headers})\n"
        "target_compile_features(alone PRIVATE cxx_std_20)\ntarget_link_libraries(alone PRIVATE ${torch})\n"
        "target_link_options(alone PRIVATE -Wl,--allow-shlib-undefined -Wl,--no-as-needed)\n"
    )
    torch_root = f"-DTORCH_ROOT={Path(torch.__file__).parent}"
    run("cmake", "-S", str(folder), "-B", str(folder / "build"), f"-Dortmodule_DIR={cmake_dir()}", torch_root)
    run("cmake", "--build", str(folder / "build"), "--target", "train_digits", "alone")
    run(sys.executable, str(EXAMPLE / "save_artifacts.py"), str(folder / "artifacts"), str(folder / "digits.bin"))
    return folder


def run(*command: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def digits(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.from_numpy(np.fromfile(path, np.uint8).reshape(-1, 65))
    return rows[:, :64].float() / 16, rows[:, 64].long()


def batch(images: torch.Tensor, labels: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    begin = step * BATCH % (len(labels) - BATCH + 1)
    return images[begin : begin + BATCH], labels[begin : begin + BATCH]


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def train_in_python(session: TrainingSession, images: torch.Tensor, labels: torch.Tensor) -> list[float]:
    torch.manual_seed(0)
    session.set_linear_schedule(STEPS // 10, STEPS + 1)
    losses = []
    for step in range(STEPS):
        losses.append(session.train_step(*batch(images, labels, step)).item())
        session.optimizer_step()
        session.zero_grad()
    return losses


@pytest.mark.slow
def test_200_steps_in_cpp_are_those_in_python(built: Path, tmp_path: Path, one_thread: None) -> None:
    printed = run(str(built / "build/example/train_digits"), str(built / "artifacts"), str(built / "digits.bin"),
                  str(STEPS), str(tmp_path))  # fmt: skip
    images, labels = digits(built / "digits.bin")
    session = TrainingSession(built / "artifacts")
    losses = train_in_python(session, images[:-HELD_OUT], labels[:-HELD_OUT])
    for step, loss in re.findall(r"step +(\d+)  loss (\S+)", printed):
        assert np.float32(loss) == np.float32(losses[int(step)]), step
    session.save_checkpoint(tmp_path / "python.safetensors")
    assert same_files(tmp_path / "python.safetensors", tmp_path / "checkpoint.safetensors")

    loss, scores = session.eval_step(images[-HELD_OUT:], labels[-HELD_OUT:])
    accuracy = (scores.argmax(1) == labels[-HELD_OUT:]).double().mean().item()
    said = re.search(r"held out: loss (\S+), accuracy (\S+)\n.*: accuracy (\S+)", printed)
    assert said and np.float32(said[1]) == np.float32(loss.item())
    assert float(said[2]) == float(said[3]) == pytest.approx(accuracy, abs=1e-4) and accuracy > 0.9
    inferred = InferenceSession(str(tmp_path / "model.onnx")).run(None, {"input": images[-HELD_OUT:].numpy()})[0]
    assert np.allclose(inferred, scores.numpy(), atol=1e-5)


def new_network() -> tuple[nn.Module, torch.optim.Optimizer]:
    """As save_artifacts.py makes it."""
    torch.manual_seed(0)
    module = runpy.run_path(str(EXAMPLE / "save_artifacts.py"))["network"]()
    return module, torch.optim.AdamW(module.parameters(), lr=3e-3, weight_decay=0.01)


def train_eagerly(
    module: nn.Module, optimizer: torch.optim.Optimizer, loss_of: nn.Module, images: torch.Tensor, targets: torch.Tensor
) -> list[float]:
    warm = STEPS // 10
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: s / warm if s < warm else max(0.0, (STEPS + 1 - s) / (STEPS + 1 - warm))
    )
    torch.manual_seed(0)
    losses = []
    for step in range(STEPS):
        x, y = batch(images, targets, step)
        loss = loss_of(module(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def apart(session: TrainingSession, module: nn.Module, mine: list[float], theirs: list[float]) -> tuple[float, float]:
    """The largest differences of the losses, and of any element of the state_dict."""
    state = module.state_dict()
    tensors = max((tensor.double() - state[name].double()).abs().max() for name, tensor in session.state_dict().items())
    return max(abs(a - b) for a, b in zip(mine, theirs, strict=True)), tensors.item()


@pytest.mark.slow
def test_200_steps_have_the_bits_of_pytorchs_own_loop(built: Path, tmp_path: Path, one_thread: None) -> None:
    """With eager's kernels, and a loss of which the engine has eager's bits."""
    images, labels = (t[:-HELD_OUT] for t in digits(built / "digits.bin"))
    targets = nn.functional.one_hot(labels, 10).float()
    module, optimizer = new_network()
    export_training_artifacts(module, nn.MSELoss(), optimizer, batch(images, targets, 0), tmp_path)
    session = TrainingSession(tmp_path, dropout="torch", fusion=False, matmul="aten")
    losses = train_in_python(session, images, targets)
    eager = train_eagerly(module, optimizer, nn.MSELoss(), images, targets)
    assert apart(session, module, losses, eager) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"fusion": False, "matmul": "aten"}, {}], ids=["eager's kernels", "the engine's"])
def test_200_steps_of_cross_entropy_differ_by_rounding(built: Path, options: dict, one_thread: None) -> None:
    """The engine sums that loss in an order of its own."""
    images, labels = (t[:-HELD_OUT] for t in digits(built / "digits.bin"))
    module, optimizer = new_network()
    session = TrainingSession(built / "artifacts", dropout="torch", **options)
    losses = train_in_python(session, images, labels)
    eager = train_eagerly(module, optimizer, nn.CrossEntropyLoss(), images, labels)
    of_losses, of_tensors = apart(session, module, losses, eager)
    same = sum(a == b for a, b in zip(losses, eager, strict=True))
    print(f"{options}: losses {of_losses:.1e} apart, {same} of {STEPS} equal; tensors {of_tensors:.1e}")
    assert of_losses < 1e-3 and losses[-1] == pytest.approx(eager[-1], abs=1e-3)


@pytest.mark.slow
def test_the_library_needs_little_memory(built: Path, tmp_path: Path) -> None:
    alone = float(run(str(built / "build/alone")).split()[1]) / 1024
    printed = run(str(built / "build/example/train_digits"), str(built / "artifacts"), str(built / "digits.bin"),
                  str(STEPS), str(tmp_path))  # fmt: skip
    whole = float(re.search(r"memory: (\S+) MiB", printed)[1])  # type: ignore[index]
    print(f"libtorch alone {alone:.1f} MiB, 200 steps of training {whole:.1f} MiB: {whole - alone:.1f} MiB more")
    assert whole - alone < MOST_MEMORY


def test_the_program_says_what_is_wrong(built: Path, tmp_path: Path) -> None:
    program = str(built / "build/example/train_digits")
    for arguments, text in (
        ((), "usage"),
        ((str(tmp_path), str(built / "digits.bin")), "has no training artifacts"),
        ((str(built / "artifacts"), str(tmp_path / "nothing.bin")), "has no digits"),
    ):
        done = subprocess.run([program, *arguments], capture_output=True, text=True)
        assert done.returncode in (1, 2) and text in done.stderr
