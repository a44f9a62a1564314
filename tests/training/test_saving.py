"""Checkpoints in files: safetensors' own library reads and writes the same, and a killed process loses nothing."""

from __future__ import annotations

import json
import random
import signal
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from torch import nn

from ortmodule import ORTModuleError, TrainingSession

from .models import batches, mlp, session_for, train

ROUNDS = 20


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def test_the_library_reads_what_is_saved(tmp_path: Path) -> None:
    data = batches(3)
    session = session_for(mlp(), adamw, data[0], tmp_path)
    train(session, data)
    path = tmp_path / "saved.safetensors"
    session.save_checkpoint(path)
    tensors = safetensors.torch.load_file(path)
    for name in session.tensor_names:
        assert torch.equal(tensors[name], session.get_tensor(name))
        assert tensors[f"optimizer/step/{name}"] == 3
    with safetensors.safe_open(path, "pt") as file:
        numbers = json.loads(file.metadata()["ortmodule.training"])
    assert numbers == {"steps": 3, "learning_rates": [0.01]}


def test_what_the_library_writes_is_read(tmp_path: Path) -> None:
    data = batches(3)
    session = session_for(mlp(), adamw, data[0], tmp_path)
    train(session, data)
    session.save_checkpoint(tmp_path / "saved")
    tensors = safetensors.torch.load_file(tmp_path / "saved")
    metadata = {"ortmodule.training": '{"steps": 7, "learning_rates": [0.5]}'}
    safetensors.torch.save_file({**tensors, "0.bias": torch.full((16,), 2.0)}, tmp_path / "edited", metadata)
    session.load_checkpoint(tmp_path / "edited")
    assert session.get_tensor("0.bias").eq(2).all() and session.step_count == 7 and session.learning_rate == 0.5


def broken_headers(whole: bytes) -> dict[str, bytes]:
    (length,) = struct.unpack("<Q", whole[:8])
    header, data = json.loads(whole[8 : 8 + length]), whole[8 + length :]
    name = "0.weight"

    def with_entry(**changes: object) -> bytes:
        text = json.dumps({**header, name: {**header[name], **changes}}).encode()
        return struct.pack("<Q", len(text)) + text + data

    begin, end = header[name]["data_offsets"]
    other = header["2.weight"]["data_offsets"]
    return {
        "the header should be longer than the file": struct.pack("<Q", 1 << 62) + whole[8:],
        "no JSON": whole[:8] + b"[" + whole[9:],
        "shape of other bytes": with_entry(shape=[2, 8]),
        "shape that overflows": with_entry(shape=[1 << 62, 1 << 62]),
        "negative size": with_entry(shape=[-16, -8]),
        "shape that is text": with_entry(shape="16, 8"),
        "offsets beyond the end": with_entry(data_offsets=[len(data), len(data) + end - begin]),
        "offsets that turn round": with_entry(data_offsets=[end, begin]),
        "offsets of another tensor": with_entry(data_offsets=other, shape=header["2.weight"]["shape"]),
        "no type": with_entry(dtype=None),
        "trailing bytes": whole + b"more",
    }


def test_broken_headers_are_refused(tmp_path: Path) -> None:
    session = session_for(mlp(), adamw, batches(1)[0], tmp_path)
    session.save_checkpoint(tmp_path / "saved")
    for what, content in broken_headers((tmp_path / "saved").read_bytes()).items():
        (tmp_path / "broken").write_bytes(content)
        with pytest.raises(ORTModuleError, match="is no whole safetensors file") as raised:
            session.load_checkpoint(tmp_path / "broken")
        assert "broken'" in str(raised.value), what
    text = json.dumps({"x": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}).encode()
    (tmp_path / "broken").write_bytes(struct.pack("<Q", len(text)) + text + b"0")
    with pytest.raises(ORTModuleError, match="of type 'F4', which torch has not"):
        session.load_checkpoint(tmp_path / "broken")


def test_noise_in_any_byte_ends_in_an_error_or_a_checkpoint(tmp_path: Path) -> None:
    session = session_for(nn.Linear(8, 4), adamw, batches(1)[0], tmp_path)
    session.save_checkpoint(tmp_path / "saved")
    whole = (tmp_path / "saved").read_bytes()
    draws = random.Random(0)
    for _ in range(300):
        noisy = bytearray(whole)
        for _ in range(draws.randint(1, 4)):
            noisy[draws.randrange(len(noisy))] = draws.randrange(256)
        (tmp_path / "noisy").write_bytes(noisy)
        try:
            session.load_checkpoint(tmp_path / "noisy")
        except ORTModuleError:
            pass


SAVER = """
import sys, torch
from ortmodule import TrainingSession
session = TrainingSession(sys.argv[1])
value = 0
while True:  # every save has another value, the same in all tensors
    value += 1
    for name in session.tensor_names:
        session.set_tensor(name, torch.full_like(session.get_tensor(name), value))
    session.save_checkpoint(sys.argv[2])
    print(value, flush=True)
"""


def test_a_process_killed_while_saving_loses_nothing(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, example = nn.Sequential(nn.Linear(8, 20000), nn.Linear(20000, 4)), batches(1)[0]
    session = session_for(module, adamw, example, tmp_path / "artifacts")
    path = tmp_path / "checkpoint.safetensors"
    draws, last = random.Random(7), 0.0
    for _ in range(ROUNDS):
        command = [sys.executable, "-c", SAVER, str(tmp_path / "artifacts"), str(path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        said = 0
        for _ in range(draws.randint(1, 3)):
            said = int(process.stdout.readline())
        time.sleep(draws.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
        process.wait()
        said = int(rest[-1]) if rest else said
        session.load_checkpoint(path)
        values = {session.get_tensor(name).unique().tolist()[0] for name in session.tensor_names}
        assert len({*values}) == 1, "a file of two saves"
        assert min(values) >= said, "the last save that was said to be done is gone"
        last = min(values)
    assert last > 0
    session.save_checkpoint(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["artifacts", path.name], "what they have left is gone"


def test_threads_that_save_to_one_file(tmp_path: Path) -> None:
    session = session_for(mlp(), adamw, batches(1)[0], tmp_path / "artifacts")
    path = tmp_path / "checkpoint"

    def save(_: int) -> None:
        for _ in range(20):
            session.save_checkpoint(path)
            TrainingSession(tmp_path / "artifacts", checkpoint=path)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(save, range(3)))
    session.load_checkpoint(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["artifacts", "checkpoint"]


def test_places_where_nothing_can_be_written(tmp_path: Path) -> None:
    session = session_for(mlp(), adamw, batches(1)[0], tmp_path)
    with pytest.raises(ORTModuleError, match="cannot write '.*nowhere/x"):
        session.save_checkpoint(tmp_path / "nowhere" / "x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ORTModuleError, match="cannot put '.*folder' in place"):
        session.save_checkpoint(tmp_path / "folder")
    with pytest.raises(ORTModuleError, match="nowhere"):
        session.export_model_for_inference(tmp_path / "nowhere" / "model.onnx")
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".partial")]
    assert np.fromfile(tmp_path / "artifacts.json", np.uint8).size
