"""The examples whose loop is another library's train to the same losses with ORTModule as without it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALL = "--steps 3 --width 32 --layers 1 --context 16 --batch-size 2".split()
NEEDS = {
    "train_hf_trainer": "accelerate",
    "train_accelerate": "accelerate",
    "train_lightning": "lightning",
    "finetune_lora": "peft",
    "train_ddp": "torch",
}


def start(example: str, out: Path, *arguments: str, processes: int = 1) -> subprocess.Popen[str]:
    launcher = []
    if processes > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *launcher, str(ROOT / f"examples/{example}.py"), *SMALL, "--json", str(out), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def both(
    example: str,
    folder: Path,
    *arguments: str,
    processes: int = 1,
    tolerance: float = 1e-5,
    only_ours: tuple[str, ...] = (),
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the example wrote with ORTModule and without; the two run beside each other."""
    if importlib.util.find_spec(NEEDS[example]) is None:
        pytest.skip(f"{NEEDS[example]} is not installed")
    results = {}
    started = {}
    for engine in ("ortmodule", "eager"):
        own = [text.replace("OUT", str(folder / engine)) for text in arguments]
        own += only_ours if engine == "ortmodule" else ()
        json_path = folder / f"{engine}.json"
        started[engine] = start(example, json_path, "--engine", engine, *own, processes=processes)
    for engine, process in started.items():
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        results[engine] = json.loads((folder / f"{engine}.json").read_text())
    assert results["ortmodule"]["losses"] == pytest.approx(results["eager"]["losses"], abs=tolerance)
    assert len(results["eager"]["losses"]) == 3
    return results["ortmodule"], results["eager"]


def test_hf_trainer_trains_evaluates_clips_saves_and_resumes(tmp_path: Path) -> None:
    ours, eager = both("train_hf_trainer", tmp_path, "--out", "OUT")
    assert ours["evaluation_loss"] == pytest.approx(eager["evaluation_loss"], abs=1e-5)
    assert ours["gradient_norms"] == pytest.approx(eager["gradient_norms"], abs=1e-4)
    for engine in ("ortmodule", "eager"):
        files = {p.name for p in (tmp_path / engine / "final").iterdir()}
        assert {"config.json", "model.safetensors"} <= files, "save_pretrained ran"
    shutil.rmtree(tmp_path / "ortmodule/checkpoint-3")
    again = start("train_hf_trainer", tmp_path / "again.json", "--out", str(tmp_path / "ortmodule"), "--resume")
    output, _ = again.communicate(timeout=300)
    assert again.returncode == 0, output
    assert json.loads((tmp_path / "again.json").read_text())["losses"] == pytest.approx(ours["losses"], abs=1e-6)


def test_accelerate_prepares_accumulates_and_saves(tmp_path: Path) -> None:
    both("train_accelerate", tmp_path, "--out", "OUT")
    assert (tmp_path / "ortmodule/model/config.json").exists()


@pytest.mark.parametrize("example", ["train_hf_trainer", "train_accelerate"])
def test_stage_2_on_two_processes_has_the_losses_of_ddp(tmp_path: Path, example: str) -> None:
    both(example, tmp_path, processes=2, only_ours=("--zero", "2"))


def test_accelerate_in_bfloat16(tmp_path: Path) -> None:
    both("train_accelerate", tmp_path, "--bf16", tolerance=1e-2)


def test_lightning_fits_validates_and_saves(tmp_path: Path) -> None:
    ours, eager = both("train_lightning", tmp_path, "--out", "OUT")
    assert ours["validation_loss"] == pytest.approx(eager["validation_loss"], abs=1e-5)


def test_lora_computes_no_gradient_of_a_frozen_weight_and_saves_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What backward reads is compared; at this size recomputation would decide instead.
    monkeypatch.setenv("ORTMODULE_MEMORY_BUDGET", "all")
    full = start("finetune_lora", tmp_path / "full.json", "--full")
    ours, eager = both("finetune_lora", tmp_path, "--out", "OUT")
    output, _ = full.communicate(timeout=300)
    assert full.returncode == 0, output
    whole = json.loads((tmp_path / "full.json").read_text())
    assert ours["bytes_saved_for_backward"] < whole["bytes_saved_for_backward"]
    assert whole["gradients_computed"] == whole["trained_tensors"] > ours["trained_tensors"]
    assert ours["frozen_weights_with_a_gradient"] == 0
    assert ours["gradients_computed"] == ours["trained_tensors"]
    for kind in ("with_adapters", "without_adapters", "with_merged_adapters"):
        assert ours[f"loss_{kind}"] == pytest.approx(eager[f"loss_{kind}"], abs=1e-5), kind
    assert ours["loss_without_adapters"] != pytest.approx(ours["loss_with_adapters"], abs=1e-4)
    assert (tmp_path / "ortmodule/adapter_config.json").exists()
    assert sum(p.stat().st_size for p in (tmp_path / "ortmodule").glob("adapter_model*")) < 100_000


def test_ddp_on_two_processes(tmp_path: Path) -> None:
    ours, eager = both("train_ddp", tmp_path, processes=2)
    assert ours["processes"] == 2 and ours["same_weights_everywhere"]
