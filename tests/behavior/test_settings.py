"""Groups J, L and M: options and variables, memory and passes, optimizers."""

from __future__ import annotations

import copy
import gc
import logging
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ortmodule import CaptureError, DebugOptions, InvalidArgumentError, LogLevel, Options, ORTModule, release_memory
from tests.support import Lambda, assert_same_gradients, exports, mlp, pair

from .table import Row, behavior, call, compare, rand, rows_of, run

x = rand(3, 4)


def breaks(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    h = m.linear(x)
    return h if h.sum() > 0 else h * 2


# -- J: options -------------------------------------------------------------------------------------------------------

WRONG: dict[str, Callable[[], Any]] = {
    "an unknown option": lambda: Options(dropuot="fast"),
    "a wrong value": lambda: Options(dropout="slow"),
    "a wrong number": lambda: Options(cache_size=0),
    "save_onnx without a prefix": lambda: DebugOptions(save_onnx=True),
    "a prefix that is no text": lambda: DebugOptions(save_onnx=True, onnx_prefix=3),  # type: ignore[arg-type]
    "a folder that is not there": lambda: DebugOptions(save_onnx=True, onnx_prefix="a", save_path="/not/there"),
    "a log level that is none": lambda: DebugOptions(log_level=3.5),  # type: ignore[arg-type]
    "something that is no module": lambda: ORTModule(3),  # type: ignore[arg-type]
    "options of another class": lambda: ORTModule(mlp(), options={"dropout": "fast"}),  # type: ignore[arg-type]
}


def refused(make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        make()


for name, make in WRONG.items():
    behavior("J", f"{name} is refused")(lambda make=make: refused(make))


@behavior("J", "save_onnx writes every stage of training and inference")
def saved(tmp_path: Path) -> None:
    model = ORTModule(mlp(), DebugOptions(save_onnx=True, onnx_prefix="my", save_path=str(tmp_path)))
    model(x).sum().backward()
    with torch.no_grad():
        model.eval()(x)
    for mode in ("training", "inference"):
        files = list(tmp_path.glob(f"my_*_{mode}.onnx"))
        assert len(files) > 3
        for file in files:
            onnx.checker.check_model(onnx.load(file))


@behavior("J", "the folder by a variable")
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_SAVE_ONNX_PATH", str(tmp_path))
    ORTModule(mlp(), DebugOptions(save_onnx=True, onnx_prefix="my"))(x)
    assert list(tmp_path.glob("my_*.onnx"))


@behavior("J", "the log level by a variable")
def level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "INFO")
    assert DebugOptions().log_level is LogLevel.INFO


@behavior("J", "each export is logged with its reason")
def logged(caplog: pytest.LogCaptureFixture) -> None:
    model = ORTModule(mlp(), DebugOptions(log_level=LogLevel.INFO))
    with caplog.at_level(logging.INFO, "ortmodule"):
        model(x)
        model(rand(3, 2, 4))
    assert "first call" in caplog.text and "input 'input' changed from float32[?, ?]" in caplog.text


@behavior("J", "no fallback, by an option: an error that names the line")
def strict() -> None:
    with pytest.raises(CaptureError, match="h.sum"):
        ORTModule(Lambda(breaks), options=Options(fallback="error"))(x)


@behavior("J", "no fallback, by the reference's variable")
def policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    with pytest.raises(CaptureError):
        ORTModule(Lambda(breaks))(x)
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_UNSUPPORTED_DATA|FALLBACK_UNSUPPORTED_TORCH_MODEL")
    assert Options(fallback="error").fallback == "eager"
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_NEVER")
    with pytest.raises(InvalidArgumentError, match="FALLBACK_DISABLE"):
        Options()


@behavior("J", "a variable of the reference without a meaning here is accepted and logged")
def without_effect(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("ORTMODULE_SKIPCHECK_POLICY", "SKIP_CHECK_DISABLED")
    monkeypatch.setattr("ortmodule.reference_variables._noted", set())
    with caplog.at_level(logging.INFO, "ortmodule"):
        Options()
        Options()
    assert caplog.text.count("SKIPCHECK_POLICY has no effect") == 1


@behavior("J", "an unknown variable is refused with the nearest name")
def unknown_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_DROPOT", "fast")
    with pytest.raises(InvalidArgumentError, match="ORTMODULE_DROPOUT"):
        ORTModule(mlp())


@behavior("J", "a fallback is said once, with the user's line")
def said_once() -> None:
    model = ORTModule(Lambda(breaks))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            compare(model, Lambda(breaks), *call(x))
    texts = [str(w.message) for w in seen if "runs in PyTorch" in str(w.message)]
    assert len(texts) == 1 and "h.sum() > 0" in texts[0]


@behavior("J", "deterministic algorithms on and off")
def deterministic() -> None:
    model, eager = pair(mlp())
    try:
        for on in (True, False):
            torch.use_deterministic_algorithms(on)
            compare(model, eager, *call(x))
    finally:
        torch.use_deterministic_algorithms(False)


@behavior("J", "a capture leaves every generator as it was")
def generators() -> None:
    def states() -> tuple[Any, ...]:
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()

    model = ORTModule(mlp())
    before = states()
    model(x)
    assert states() == before


@behavior("J", "manual_seed repeats a run")
def seeded() -> None:
    for dropout in ("fast", "torch"):
        model = ORTModule(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), options=Options(dropout=dropout))
        results = []
        for _ in range(2):
            torch.manual_seed(3)
            results.append((model(x), model(x)))
        torch.testing.assert_close(*results)
        assert not torch.equal(*results[0])


@behavior("J", "autocast on, off and of another dtype")
def autocast() -> None:
    model, eager = pair(mlp())
    for enabled in (True, False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            got, wanted = model(x), eager(x)
        assert got.dtype is wanted.dtype
        torch.testing.assert_close(got, wanted)
    assert exports(model) == 2


@behavior("J", "the number of graphs is bounded")
def bounded() -> None:
    model = ORTModule(Lambda(lambda m, x, k: m.linear(x) * k), options=Options(cache_size=2))
    for k in range(4):
        torch.testing.assert_close(model(x, k), model.module(x, k))
    assert len(model.report().sessions) == 2


@behavior("J", "python -m ortmodule prints the build")
def printed() -> None:
    result = subprocess.run([sys.executable, "-m", "ortmodule"], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0 and torch.__version__ in result.stdout


# -- L: memory and passes ---------------------------------------------------------------------------------------------


@behavior("L", "the report has the bytes of a step")
def bytes_of_a_step() -> None:
    model = ORTModule(mlp())
    model(x).sum().backward()
    session = model.report().sessions[0]
    assert session.peak_bytes > 0 and session.saved_bytes > 0


@behavior("L", "what a forward keeps is freed with its result")
def freed() -> None:
    model = ORTModule(nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 2)))
    model(x).sum().backward()
    gc.collect()
    before = sum(isinstance(o, torch.Tensor) for o in gc.get_objects())
    for _ in range(3):
        model(x)
    gc.collect()
    assert sum(isinstance(o, torch.Tensor) for o in gc.get_objects()) <= before


@behavior("L", "kept memory can be given back")
def given_back() -> None:
    model, eager = pair(mlp())
    compare(model, eager, *call(x))
    release_memory()
    compare(model, eager, *call(x))


@behavior("L", "a checkpointed region has eager's gradient")
def checkpointed() -> None:
    def forward(m: Lambda, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda t: m.linear(t).tanh(), m.linear(x), use_reentrant=False)

    model, eager = pair(Lambda(forward))
    compare(model, eager, *call(x))


@behavior("L", "labels that are all ignored")
def ignored() -> None:
    def forward(m: Lambda, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(m.linear(x), y, reduction="sum")

    model, eager = pair(Lambda(forward))
    for labels in ([1, -100, 2], [-100, -100, -100]):
        compare(model, eager, *call(x, torch.tensor(labels)))


# -- M: optimizers ----------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD with momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01),
    "fused AdamW": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "Adam with clipping and accumulation": lambda p: torch.optim.Adam(p, 0.01),
    "LBFGS": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=3),
}


def trained(name: str) -> None:
    eager = mlp()
    model = ORTModule(copy.deepcopy(eager))
    batches = [rand(3, 4) for _ in range(6)]
    for module in (model, eager):
        optimizer = OPTIMIZERS[name](module.parameters())
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        for step, batch in enumerate(batches):

            def closure(module: nn.Module = module, batch: torch.Tensor = batch) -> torch.Tensor:
                loss = module(batch).square().mean()
                loss.backward()
                return loss

            if name == "LBFGS":
                optimizer.step(lambda optimizer=optimizer, closure=closure: (optimizer.zero_grad(), closure())[1])
                continue
            closure()
            if "accumulation" in name and step % 2 == 0:
                continue
            nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    for mine, wanted in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)
    assert_same_gradients(model, eager, rtol=1e-3)


for name in OPTIMIZERS:
    behavior("M", name)(lambda name=name: trained(name))


@pytest.mark.parametrize("row", rows_of("JLM"))
def test_setting(row: Row, request: pytest.FixtureRequest) -> None:
    run(row, request)
