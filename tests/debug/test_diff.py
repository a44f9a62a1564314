"""`ortmodule.debug.diff`: the first step and value at which two recordings part, by each cause that it is made for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from ortmodule import InvalidArgumentError, Options, ORTModule
from ortmodule.debug import Recording, RecordingDiff, diff, record
from ortmodule.debug.__main__ import main
from tests.support import mlp

Change = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def train(
    directory: Path,
    at: int = -1,
    change: Change = lambda m, x: x,
    steps: int = 6,
    options: Options | None = None,
    **how,
) -> ORTModule:
    """Trains with `change` before step `at`; returns the model."""
    net = mlp(8)
    model = ORTModule(net, options=options)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    batches = torch.Generator().manual_seed(0)
    with record(model, directory, **how):
        for step in range(steps):
            x = torch.randn(4, 8, generator=batches)
            if step == at:
                x = change(net, x)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return model


def parted(tmp_path: Path, at: int, change: Change, **how) -> RecordingDiff:
    train(tmp_path / "a", **how)
    train(tmp_path / "b", at, change, **how)
    return diff(tmp_path / "a", tmp_path / "b")


def flip(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    net[2].weight.data.view(-1).view(torch.int32)[3] ^= 1
    return x


def test_a_bit_of_a_weight(tmp_path: Path) -> None:
    found = parted(tmp_path, 3, flip)
    first = found.first
    assert first is not None and (first.step, first.half, first.kind, first.name) == (
        3,
        "forward",
        "weight",
        "2.weight",
    )
    assert first.node == "" and first.a is not None and first.b is not None
    assert first.a.statistics.fingerprint != first.b.statistics.fingerprint
    assert found.steps == 4 and not found.equal
    after = [d for d in found.step if d.kind == "node"]
    assert after and after[0].half == "forward" and after[0].node
    text = str(found)
    assert "part after 3 steps that agree" in text and "step 3, forward: weight '2.weight'" in text
    assert "at step 2 the weight and its gradient were equal in every bit" in text
    assert f"the first node is {after[0].operator} '{after[0].node}'" in text


def test_another_input_another_size_and_another_gradient_of_the_loss(tmp_path: Path) -> None:
    other = parted(tmp_path / "input", 2, lambda m, x: x + 1)
    assert other.first and (other.first.step, other.first.kind) == (2, "input")
    size = parted(tmp_path / "size", 2, lambda m, x: x[:3])
    assert size.first and size.first.kind == "input" and "float[4, 8] in a, float[3, 8] in b" in str(size)

    for name, factor in (("a", 1.0), ("b", 2.0)):
        model = ORTModule(mlp())
        with record(model, tmp_path / name):
            (model(torch.ones(2, 4)).sum() * factor).backward()
    loss = diff(tmp_path / "a", tmp_path / "b")
    assert loss.first and (loss.first.half, loss.first.kind) == ("backward", "gradient of output")
    assert "gradient of output" in str(loss.first)


def test_a_backward_that_one_did_not_run(tmp_path: Path) -> None:
    for name, runs in (("a", 2), ("b", 1)):
        model = ORTModule(mlp())
        with record(model, tmp_path / name):
            for run in range(2):
                loss = model(torch.ones(2, 4)).sum()
                if run < runs:
                    loss.backward()
    found = diff(tmp_path / "a", tmp_path / "b")
    assert found.first and found.first.kind == "half" and found.first.step == 1
    assert "step 1, backward: only a ran this half" in str(found)


def test_graphs_that_are_fused_differently_are_matched_by_names(tmp_path: Path) -> None:
    train(tmp_path / "a")
    train(tmp_path / "b", options=Options(fusion=False))
    found = diff(tmp_path / "a", tmp_path / "b", rtol=1e-4, atol=1e-6)
    assert found.equal, str(found)
    assert found.compared > 8, "weights, the input and gradients have their names in both"
    train(tmp_path / "c", 3, lambda m, x: x * 1.01, options=Options(fusion=False))
    found = diff(tmp_path / "a", tmp_path / "c", rtol=1e-4, atol=1e-6)
    assert found.first and (found.first.step, found.first.kind) == (3, "input")
    assert ("only b has" in str(found)) == bool(found.only_b)


def test_tolerances_are_relative_to_the_largest_number(tmp_path: Path) -> None:
    train(tmp_path / "a")
    train(tmp_path / "b", 2, lambda m, x: x * (1 + 1e-6))
    assert diff(tmp_path / "a", tmp_path / "b").first
    assert diff(tmp_path / "a", tmp_path / "b", rtol=1e-4).equal
    train(tmp_path / "c", 2, lambda m, x: x.index_fill(1, torch.tensor([1]), float("nan")))
    found = diff(tmp_path / "a", tmp_path / "c", rtol=1.0)
    assert found.first and "0 nan and 0 inf in a, 4 and 0 in b" in str(found)


def test_steps_of_one_alone_are_left_out_and_said(tmp_path: Path) -> None:
    train(tmp_path / "a")
    train(tmp_path / "b", steps=4)
    found = diff(tmp_path / "a", tmp_path / "b")
    assert found.equal and "only a has 2 steps (4, 5)" in str(found)
    train(tmp_path / "c", every=2)
    assert diff(tmp_path / "a", tmp_path / "c").steps == 3
    train(tmp_path / "d", 3, flip, every=2)
    found = diff(tmp_path / "a", tmp_path / "d")
    assert found.first and (found.first.step, found.first.kind) == (4, "weight"), "the next recorded step"


def test_a_filter_leaves_what_only_one_has(tmp_path: Path) -> None:
    train(tmp_path / "a")
    train(tmp_path / "b", names="0.*")
    found = diff(tmp_path / "a", tmp_path / "b")
    assert found.equal and "2.weight" in found.only_a and not found.only_b
    assert "only a has" in str(found)


def test_processes_are_compared_by_their_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        for rank in range(2):
            monkeypatch.setenv("RANK", str(rank))
            train(tmp_path / name, 2 if (name, rank) == ("b", 1) else -1, flip)
    found = diff(tmp_path / "a", tmp_path / "b")
    assert found.first and found.first.rank == 1 and "rank 1" in str(found)
    assert diff(tmp_path / "a" / "rank0.recording", tmp_path / "b" / "rank0.recording").equal
    assert diff(Recording(tmp_path / "a", 1), Recording(tmp_path / "a", 1)).equal
    (tmp_path / "b" / "rank1.recording").unlink()
    assert "those of both were compared" in str(diff(tmp_path / "a", tmp_path / "b"))
    with pytest.raises(InvalidArgumentError, match="nothing to compare"):
        diff(Recording(tmp_path / "a", 1), tmp_path / "b")
    with pytest.raises(InvalidArgumentError, match="a recording is a folder's path, got int"):
        diff(tmp_path / "a", 3)
    with pytest.raises(InvalidArgumentError, match=r"recordings of ranks \[0\], and none of 3"):
        Recording(tmp_path / "b", 3)


@pytest.mark.parametrize("wrong", [{"rtol": -1}, {"atol": "much"}, {"rtol": float("nan")}])
def test_wrong_tolerances_are_refused(tmp_path: Path, wrong: dict) -> None:
    with pytest.raises(InvalidArgumentError, match="should be 0 or more"):
        diff(tmp_path, tmp_path, **wrong)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: str | Path) -> tuple[int, str, str]:
        return main([*map(str, arguments)]), *capsys.readouterr()

    train(tmp_path / "a")
    train(tmp_path / "b", 3, flip)
    assert said("diff", tmp_path / "a", tmp_path / "a") == (0, "the recordings agree in 6 steps\n", "")
    status, text, _ = said("diff", tmp_path / "a", tmp_path / "b")
    assert status == 1 and "weight '2.weight'" in text
    assert said("diff", "--rtol", "0.1", tmp_path / "a", tmp_path / "b")[0] == 0
    status, _, error = said("diff", tmp_path / "a", tmp_path / "none")
    assert status == 2 and error.strip().endswith("none does not exist")
    status, text, _ = said("show", tmp_path / "a", "--step", "2", "--names", "*weight")
    assert status == 0 and "weight '0.weight': float[8, 8] min" in text and "'0.bias'" not in text
    assert said("show", tmp_path / "a", "--step", "77")[0] == 2
