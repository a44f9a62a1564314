"""The benchmarks run, at tiny sizes: their files have the shape that their readers expect. No time is judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import used_models

BENCHMARKS = Path(used_models.__file__).parent


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_step_time_compares_a_runner_with_eager(tmp_path: Path) -> None:
    out = tmp_path / "steps.json"
    arguments = "--models tiny --runners ortmodule,eager --small --rounds 1 --samples 1 --threads 1 --json"
    done = run("step_time.py", *arguments.split(), str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    ours, eager = result["rows"]
    assert (ours["runner"], eager["runner"]) == ("ortmodule", "eager")
    assert ours["loss"] == pytest.approx(eager["loss"], rel=1e-4)
    assert set(result["ratios"]["tiny"]["ortmodule"]) >= {"fb", "peak_memory", "first_step"}
    assert result["environment"]["torch"] == torch.__version__


@pytest.mark.parametrize("model", sorted(used_models.MODELS))
def test_step_time_takes_models_of_transformers(model: str, tmp_path: Path) -> None:
    out = tmp_path / "steps.json"
    arguments = (
        f"--as-used --models {model} --runners ortmodule,eager --small --rounds 1 --samples 1 --threads 1 --json"
    )
    done = run("step_time.py", *arguments.split(), str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    ours, eager = json.loads(out.read_text())["rows"]
    assert ours["loss"] == pytest.approx(eager["loss"], rel=1e-2)  # masks of dropout are other draws than eager's
    assert ours["title"] == used_models.MODELS[model].title


def test_trainer_compares_steps_and_memory(tmp_path: Path) -> None:
    out = tmp_path / "trainer.json"
    arguments = "--small --rounds 1 --warm 1 --steps 1 --length 16 --runners ortmodule,eager --threads 1 --json"
    done = run("trainer.py", *arguments.split(), str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(out.read_text())["results"]
    assert results["masked"]["ortmodule"][0]["loss"] == pytest.approx(results["masked"]["eager"][0]["loss"], rel=1e-2)
    assert results["causal"]["ortmodule"][0]["loss"] == pytest.approx(results["causal"]["eager"][0]["loss"], rel=1e-4)


def test_a_runner_that_fails_is_told_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_NO_SUCH_OPTION", "1")
    out = tmp_path / "steps.json"
    arguments = "--models mlp --runners ortmodule,eager --small --rounds 1 --samples 1 --threads 1 --json"
    done = run("step_time.py", *arguments.split(), str(out))
    assert done.returncode == 1
    ours, eager = json.loads(out.read_text())["rows"]
    assert "ORTMODULE_NO_SUCH_OPTION" in ours["failed"]
    assert eager["fb_ms"]["median"] > 0


def test_varying_shapes_gives_totals_and_counts_graphs(tmp_path: Path) -> None:
    out = tmp_path / "shapes.json"
    arguments = "--models tiny --runners ortmodule,eager --small --steps 6 --threads 1 --json"
    done = run("varying_shapes.py", *arguments.split(), str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    runners = json.loads(out.read_text())["rows"][0]["runners"]
    assert runners["ortmodule"]["graphs"] <= 2
    assert runners["ortmodule"]["loss_difference"] < 1e-4
    assert runners["eager"]["total_ratio"] == 1


def test_side_by_side_compares_with_one_by_one(tmp_path: Path) -> None:
    out = tmp_path / "side.json"
    done = run("side_by_side.py", *"--size 64 --depth 2 --rounds 2 --json".split(), str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    assert result["gains"]["median"]["side by side"] > 0 and result["settings"]["branches"] == 2


def test_ranges_that_nobody_hears_cost_under_a_hundredth_of_a_small_step(tmp_path: Path) -> None:
    out = tmp_path / "ranges.json"
    done = run("profiler_cost.py", *"--models tiny --small --rounds 2 --repeats 1 --json".split(), str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(out.read_text())["rows"]
    assert row["nodes"] > 20 and 0 < row["fastest"]["off"] < 0.01, row  # far less on an idle machine


def test_core_scaling_runs_the_chain(tmp_path: Path) -> None:
    out = tmp_path / "chain.json"
    done = run("core_scaling.py", "--nodes", "50,200", "--symbolic", "--run", "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [row["nodes"] for row in rows] == [50, 200]
    assert all(0 < row["forward_nodes"] <= row["nodes"] for row in rows)  # fusion joins them


def test_gpu_check_without_a_gpu_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = run("gpu_check.py")
    assert done.returncode == 2
    assert len(done.stdout.strip().splitlines()) == 1


def test_gpu_check_runs_its_operator_part(tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    done = run("gpu_check.py", "--device", "cpu", "--small", "--parts", "operators", "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    part = json.loads(out.read_text())["operators"]
    assert part["state"] == "complete" and part["units"] == part["of"] and not part["failed"]


def test_cold_start_compares_starts_with_and_without_the_cache(tmp_path: Path) -> None:
    out = tmp_path / "starts.json"
    arguments = "--models gpt2 --runners ortmodule,ortmodule|warm --small --batch 1 --length 8 --threads 1 --json"
    done = run("cold_start.py", *(a.replace("|", " ") for a in arguments.split()), str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    cold, warm = json.loads(out.read_text())["rows"]
    assert len(cold["export"]) == 2 and warm["export"] == [
        f"{reason}, from the disk cache" for reason in cold["export"]
    ]
    assert cold["loss"] == warm["loss"] and cold["other_loss"] == warm["other_loss"] and cold["other_s"] > 0


def test_second_derivatives_are_compared_with_eager(tmp_path: Path) -> None:
    out = tmp_path / "seconds.json"
    done = run("second_derivatives.py", *"--small --rounds 2 --threads 1 --json".split(), str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert {row["task"] for row in rows} == {"penalty", "residual", "maml", "hvp"}
    assert all(row["fallback"] == "none" and row["difference"] < 1e-4 for row in rows)


def test_generate_is_compared_with_eager(tmp_path: Path) -> None:
    out = tmp_path / "generate.json"
    done = run(
        "generate.py",
        *"--small --rounds 1 --warm 3 --tokens 8 --prompt 5 --batches 2 --threads 1 --json".split(),
        str(out),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [row["model"] for row in rows] == ["gpt2", "llama"]
    assert all(row["equal"] and row["runs"] >= 8 for row in rows)


def test_overhead_takes_the_kernels_off(tmp_path: Path) -> None:
    out = tmp_path / "overhead.json"
    arguments = "--models wide --parameters 6 --rounds 2 --repeats 3 --no-compile --json"
    done = run("overhead.py", *arguments.split(), str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(out.read_text())["rows"]
    assert row["calls"] > 0 and row["kernels"] > 0 and row["checks"] > 0 and row["eager"] > 0


def test_the_cost_of_checks_says_how_much_was_compared(tmp_path: Path) -> None:
    out = tmp_path / "watches.json"
    done = run("watch_cost.py", *"--modules 3,6 --names 4 --rounds 2 --repeats 3 --json".split(), str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    few, many = json.loads(out.read_text())["rows"]
    assert many["names"] == 24 and 0 < few["compared"] < many["compared"] and many["checks"] > 0


def test_roofline_gives_bounds_and_how_far_the_runners_are(tmp_path: Path) -> None:
    out = tmp_path / "roofline.json"
    arguments = "--models tiny --runners eager --small --rounds 1 --samples 1 --threads 1 --json"
    done = run("roofline.py", *arguments.split(), str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(out.read_text())["rows"]
    linear, head = 3 * 2 * 32 * 12 * 32 * 32, 3 * 2 * 32 * 32 * 100  # 32 tokens; forward and two backward products
    attention = 7 * 2 * (2 * 2) * (16 * 17 / 2) * 16  # two products forward, five backward, below the diagonal
    assert row["gflop"] == pytest.approx((linear + head + attention) / 1e9, rel=1e-5)
    assert 0 < row["bound_ms"] <= row["products_ms"] * 1.01
    assert row["x_bound"] == pytest.approx(row["fb_ms"] / row["bound_ms"])


def test_the_kernel_table_has_every_kernel_in_the_engine(tmp_path: Path) -> None:
    out = tmp_path / "kernels.json"
    done = run("kernel_table.py", *"--runners eager,ortmodule --small --rounds 1 --threads 1 --json".split(), str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["kernel"]: row for row in json.loads(out.read_text())["rows"]}
    assert len(rows) > 20
    for row in rows.values():
        assert row["ms"]["ortmodule"] > 0 and row["limit_ms"] > 0 and row["nodes"] and not row["failed"]
    assert "PhiloxDropout" in rows["dropout"]["nodes"] and "PhiloxAttention" in rows["attention_dropout"]["nodes"]


def test_a_benchmark_beside_another_checkout_is_measured_in_both(tmp_path: Path) -> None:
    out = tmp_path / "beside.json"
    here = str(BENCHMARKS.parent)
    command = ("--turns", "2", "--fields", "wall_s,stages_s.planned", "--json", str(out), here, "core_scaling.py")
    done = run("beside.py", *command, "--nodes", "50")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    assert [(row["row"], row["field"]) for row in result["rows"]] == [("50", "wall_s"), ("50", "stages_s.planned")]
    assert all(len(row["turns"]) == 2 and row["here"] > 0 for row in result["rows"])
    wrong = run("beside.py", "--fields", "wall_s", str(tmp_path), "core_scaling.py")
    assert wrong.returncode != 0 and "has no .venv" in wrong.stderr


def test_two_checkouts_alternate_with_every_round(tmp_path: Path) -> None:
    out = tmp_path / "beside.json"
    command = ("--turns", "1", "--round-by-round", "--fields", "own", "--json", str(out), str(BENCHMARKS.parent))
    done = run("beside.py", *command, "overhead.py", "--no-compile", "--rounds", "3", "--parameters", "8")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    assert result["round_by_round"] and {row["row"] for row in result["rows"]} == {"deep", "wide"}
    failed = run("beside.py", *command, "overhead.py", "--rounds", "none")
    assert failed.returncode != 0 and "invalid int value" in failed.stderr


def test_recording_cost_has_a_ratio_for_each_kind(tmp_path: Path) -> None:
    out = tmp_path / "recording.json"
    done = run("recording_cost.py", "--models", "mlp", "--small", "--rounds", "1", "--repeats", "2", "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(out.read_text())["rows"]
    assert set(row["fastest"]["ratios"]) == set(row["median"]["ratios"]) == {"figures", "fingerprints", "every tenth"}
    assert row["values"] > 10 and row["bytes"] > 0


def test_optimizers_are_beside_torchs_and_the_memorys_rate(tmp_path: Path) -> None:
    out = tmp_path / "optimizers.json"
    done = run("optimizers.py", "--small", "--rounds", "2", "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["kind"]: row for row in json.loads(out.read_text())["rows"]}
    assert set(rows["AdamW"]["ratios"]) == {"fused", "default", "flat", "8 bit"}
    assert set(rows["LAMB"]["ratios"]) == {"foreach"} and set(rows["clip above"]["ratios"]) == {"default"}
    assert all(row["of_limit"] > 0 and row["bytes"] > 0 for row in rows.values())


def test_one_node_is_timed(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    out = tmp_path / "one.json"
    done = run("one_node.py", "--rounds", "1", "--no-cpp", "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["what"]: row["median"] for row in json.loads(out.read_text())["rows"]}
    assert set(rows) == {"run", "onnxruntime run", "iobinding"} and min(rows.values()) > 0
