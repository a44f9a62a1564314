"""A run goes on from its checkpoint with its model divided among other numbers of ranks, and cut into other stages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from ortmodule import Options, ORTModule
from ortmodule.distributed import CheckpointError, ZeroPolicy, consolidate, load_checkpoint, save_checkpoint, zero
from ortmodule.distributed.checkpoint.divided import Axis, SavedParts
from ortmodule.distributed.checkpoint.entries import Entry
from ortmodule.distributed.parallel import Column, parallelize
from ortmodule.distributed.parallel.division import Division
from ortmodule.distributed.pipeline import Pipeline
from tests.distributed.models import batch
from tests.distributed.parallel import GPT, SEQUENCE, TENSOR, optimizer_of
from tests.distributed.spawn import on_ranks

# Of each step: stages of the pipeline, tensor ranks, the stage of zero; the rest of the four ranks are data ranks.
LAYOUTS = [(1, 2, 1), (1, 1, 3), (1, 4, 2), (2, 2, 1), (4, 1, 2), (1, 1, 1)]


def step_in(layout: tuple[int, int, int], step: int, folder: str) -> float:
    """Loads the checkpoint of the step before, trains, saves; the loss."""
    stages, tensor, stage = layout
    mesh = init_device_mesh("cpu", (4 // stages // tensor, stages, tensor), mesh_dim_names=("data", "pipe", "tensor"))
    model: Any = ORTModule(GPT(2), options=Options(fallback="error"))
    if tensor > 1:
        model = parallelize(model, SEQUENCE if step == 2 else TENSOR, mesh["tensor"])
    pipeline = None
    ids = batch(step, 0, 0, 4)
    if stages > 1:
        pipeline = Pipeline(model, stages, None, 2, mesh["pipe"], example={"ids": ids})
        model = pipeline.model
    policy = ZeroPolicy(bucket_bytes=8 << 10, mesh=mesh["data"])
    model, optimizer = zero(model, optimizer_of(model), stage=stage, policy=policy)
    if step:
        assert load_checkpoint(f"{folder}/step-{step - 1}", model, optimizer).step == step - 1
    optimizer.zero_grad()
    if pipeline is not None:
        loss = pipeline.step({"ids": ids}, optimizer=optimizer)
    else:
        loss = model(ids)
        loss.backward()
    optimizer.clip_grad_norm_(0.5)
    optimizer.step()
    save_checkpoint(f"{folder}/step-{step}", model, optimizer, step=step)
    return loss.item()


def refused(folder: str) -> list[str]:
    """What all ranks say of a checkpoint of another model, in one that is divided."""
    mesh, out = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor")), []
    for model in (GPT(1), nn.Sequential(nn.Linear(4, 4)), GPT(2)):
        plan: Any = {"0": Column(gather=True)} if isinstance(model, nn.Sequential) else TENSOR
        if isinstance(model, GPT) and len(model.blocks) == 2:
            model.ln_f = nn.LayerNorm(32, bias=False)
        run = parallelize(model, plan, mesh["tensor"])
        run, optimizer = zero(run, optimizer_of(run), stage=1, policy=ZeroPolicy(mesh=mesh["data"]))
        with pytest.raises(CheckpointError) as error:
            load_checkpoint(f"{folder}/step-0", run, optimizer)
        out.append(str(error.value))
    return out


def damaged(folder: str) -> str:
    """What all ranks say of a bit that is not as it was written, in a part that is divided otherwise."""
    model = GPT(2)
    _, optimizer = zero(model, optimizer_of(model), stage=1)
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(f"{folder}/damaged", model, optimizer)
    return str(error.value)


def on_rank(rank: int, folder: str) -> Any:
    losses = [step_in(layout, step, folder) for step, layout in enumerate(LAYOUTS)]
    if rank == 0:
        flip(Path(folder))
    torch.distributed.barrier()
    return losses, refused(folder), damaged(folder)


def flip(folder: Path) -> None:
    """A copy of the first checkpoint with a bit of a divided part turned over."""
    shutil.copytree(folder / "step-0", folder / "damaged")
    manifest = json.loads((folder / "damaged" / "manifest.json").read_text().partition("\n")[2])
    part = manifest["tensors"]["model.blocks.1.fc.weight[1/2]"]["parts"][0]
    data = bytearray((folder / "damaged" / part["file"]).read_bytes())
    data[part["offset"] + 5] ^= 16
    (folder / "damaged" / part["file"]).write_bytes(data)


def test_a_run_goes_on_in_any_layout(tmp_path: Path) -> None:
    found = on_ranks(4, on_rank, str(tmp_path))
    model = GPT(2)
    optimizer, expected = optimizer_of(model), []
    for step in range(len(LAYOUTS)):
        optimizer.zero_grad()
        loss = model(batch(step, 0, 0, 4))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        expected.append(loss.item())
    for losses, texts, broken in found:
        assert losses == pytest.approx(expected, rel=1e-6)
        assert "the checkpoint has model.blocks.1." in texts[0]
        assert "the checkpoint does not have model.0." in texts[1]
        assert "the checkpoint has model.ln_f.bias, which the model does not have" in texts[2]
        assert "blocks.1.fc.weight[1/2] is damaged" in broken
    for step in (3, len(LAYOUTS) - 1):
        names = consolidate(tmp_path / f"step-{step}", tmp_path / "whole.safetensors")
        assert set(names) == {name for name, _ in model.named_parameters()}
    whole = load_file(tmp_path / "whole.safetensors")
    for name, p in model.named_parameters():
        torch.testing.assert_close(whole[name], p.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dims", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (1, 4), (3, 1), (2, 3)])
def test_every_element_is_found(
    dims: tuple[int, int], before: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts in blocks and filled up, along other axes and in pieces."""
    for parts, size in ((1, 13), (3, 36)):
        shape = [5, 5]
        shape[dims[0]] = shape[dims[1]] = size
        whole = torch.arange(shape[0] * shape[1], dtype=torch.float32).view(shape) + 1.0
        saved = Division(dims[0], size, parts if size % (parts * before) == 0 else 1, fill=True)
        loaded = Division(dims[1], size, parts if size % (parts * after) == 0 else 1, fill=True)
        entries = [f"model.w[{r}/{before}]" for r in range(before)]
        flat = {name: saved.part(whole, before, r) for r, name in enumerate(entries)}
        manifest = {
            "divided": {"w": {"dim": saved.dim, "size": size, "parts": saved.parts, "fill": True}},
            "shapes": {name: list(part.shape) for name, part in flat.items()},
            "tensors": {
                name: {"parts": [{"start": 0, "numel": 7}, {"start": 7, "numel": part.numel() - 7}]}
                for name, part in flat.items()
            },
        }

        def chunk(path: Any, manifest: Any, name: str, start: int, flat: Any = flat) -> torch.Tensor:
            del path, manifest
            return flat[name].flatten()[start : 7 if start == 0 else None]

        monkeypatch.setattr("ortmodule.distributed.checkpoint.divided.chunk_tensor", chunk)
        there = SavedParts(Path(), manifest, "model.w", entries)
        axis = Axis(loaded.dim, size, loaded.parts, after)
        for rank in range(after):
            part = loaded.part(whole, after, rank)
            for start, stop in ((0, part.numel()), (3, part.numel() - 2)):
                entry = Entry(part.numel(), torch.full((stop - start,), -1.0), start, tuple(part.shape), axis, rank)
                assert entry.whole_shape == list(whole.shape) == there.shape
                there.load(entry)
                assert torch.equal(entry.part, part.flatten()[start:stop])  # type: ignore[arg-type]
