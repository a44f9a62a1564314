"""The guarded device by itself: its streams, memory, copies and devices go wrong where a GPU's would.

A missing wait, a lost lifetime or a copy must show as wrong numbers, or the tests of what is built on the device prove
nothing. The checks run in a process that has the device: `python -m tests.device streams --out results.jsonl`. Not
here: what the device computes (test_guarded_device.py).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable

import pytest
import torch

from .__main__ import LIBRARY, ROOT, library

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="build/libguarded_device.so is built by `make test`")

N = 4096
SLOW = 20_000  # microseconds: longer than anything that is not made to wait


def slow(device: int, stream: int) -> None:
    library().guarded_set_delay(device, stream, SLOW, 1000)


def copies() -> list[int]:
    return [library().guarded_copies(way) for way in range(3)]


def ready(value: float, device: str = "guarded:0") -> torch.Tensor:
    x = torch.full((N,), value, device=device)
    torch.accelerator.synchronize(x.device)
    return x


def wrong(x: torch.Tensor) -> bool:
    return bool(x.cpu().isnan().all())


def holds(x: torch.Tensor, value: float) -> bool:
    return bool((x.cpu() == value).all())


# -- checks, each in a process that has the device ---------------------------------------------------------------------


def check_another_stream_must_wait() -> None:
    x, side = ready(1.0), torch.Stream("guarded:0")
    for waits in (False, True):
        slow(0, 0)
        y = x + 1
        made = torch.Event("guarded")
        made.record()
        assert not made.query()
        with side:
            if waits:
                side.wait_event(made)
            z = y * 1
            assert holds(z, 2.0) if waits else wrong(z)
        made.synchronize()
        assert made.query()
        assert holds(y, 2.0)


def check_a_copy_to_the_host_is_there_after_a_wait() -> None:
    slow(0, 0)
    y = ready(1.0) + 1
    for given in (torch.zeros(N), torch.zeros(N, 2)[:, 0], torch.zeros(N, dtype=torch.float64)):
        before = given.copy_(y, non_blocking=True).clone()
        assert before.isnan().all()
        torch.accelerator.synchronize(0)
        assert holds(given, 2.0)
    assert holds(y.to("cpu"), 2.0), "a copy that blocks waits by itself"


def check_a_copy_from_the_host_reads_when_it_runs() -> None:
    slow(0, 0)
    given, x, y = torch.ones(N), ready(0.0), ready(0.0)
    x.copy_(given, non_blocking=True)
    given.fill_(2.0)
    assert holds(x, 2.0)
    y.copy_(given)
    given.fill_(3.0)
    assert holds(y, 2.0)


def check_numbers_of_the_host_are_taken_at_once() -> None:
    slow(0, 0)
    x, number = ready(1.0), torch.tensor(2.0)
    y = x * number
    number.fill_(5.0)
    assert holds(y, 2.0)


def check_memory_that_another_stream_reads_is_recorded() -> None:
    side = torch.Stream("guarded:0")
    for recorded in (False, True):
        library().guarded_set_delay(-1, -1, 0, 0)
        x = ready(3.0)
        slow(0, side.stream_id)
        with side:
            y = x * 1
        if recorded:
            x.record_stream(side)
        del x
        side.synchronize()
        assert holds(y, 3.0) if recorded else wrong(y)


def check_freed_memory_is_poisoned_and_stays_with_its_stream() -> None:
    x = ready(3.0)
    where = x.data_ptr()
    del x
    with torch.Stream("guarded:0"):
        assert torch.empty(N, device="guarded:0").data_ptr() != where
    y = torch.empty(N, device="guarded:0")
    assert y.data_ptr() == where
    assert wrong(y)
    assert (torch.empty(N, dtype=torch.int64, device="guarded:1").cpu() == -1).all(), "fresh memory too"


def check_the_devices_refuse_each_others_tensors() -> None:
    x, y = ready(1.0, "guarded:0"), ready(1.0, "guarded:1")
    for refused in (
        lambda: x + y,
        lambda: torch.cat([x, y]),
        lambda: torch.where(x > 0, x, y),
        lambda: x.add_(y),
        lambda: x + torch.ones(N),
        lambda: torch.nn.functional.linear(x[None], y[None]),
    ):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            refused()
    assert torch.zeros(2, device="guarded").device.index == 0
    with torch.accelerator.device_index(1):
        assert torch.zeros(2, device="guarded").device.index == 1
        assert (x + 1).device.index == 0
    assert holds(y + 1, 2.0)
    assert (y * 2).device.index == 1


def check_a_copy_between_devices_waits_for_neither_stream() -> None:
    x = ready(1.0)
    for waits in (False, True):
        slow(0, 0)
        y = x + 1
        made = torch.Event("guarded")
        made.record(torch.accelerator.current_stream(0))
        if waits:
            torch.accelerator.current_stream(1).wait_event(made)
        z = y.to("guarded:1")
        assert holds(z, 2.0) if waits else wrong(z)
        torch.accelerator.synchronize(0)


def check_copies_are_counted() -> None:
    library().guarded_reset_copies()
    x = torch.ones(N).to("guarded:0")
    assert copies() == [1, 0, 0]
    y = x.to("guarded:1")
    assert copies() == [1, 0, 1]
    y.cpu()
    assert copies() == [1, 1, 1]
    x.clone().nonzero().sum().item()
    torch.nn.functional.dropout(x * 2, 0.5)
    torch.histc(x, 3)
    assert copies() == [1, 1, 1], "what operators do inside is not"


def check_what_a_job_throws_is_thrown_once() -> None:
    slow(0, 0)
    table, places = torch.ones(4, 2, device="guarded"), torch.tensor([9], device="guarded")
    torch.embedding(table, places)
    with pytest.raises(IndexError):
        torch.accelerator.synchronize(0)
    torch.accelerator.synchronize(0)
    assert torch.embedding(table, places.clamp(0, 3)).cpu().tolist() == [[1.0, 1.0]]


def check_random_numbers_come_in_the_programs_order() -> None:
    library().guarded_set_delay(-1, -1, 300, 500)
    torch.manual_seed(3)
    want = [torch.randn(N), torch.rand(N), torch.zeros(N).bernoulli_(0.3)]
    torch.manual_seed(3)
    a, side = torch.randn(N, device="guarded"), torch.Stream("guarded:0")
    with side:
        b = torch.rand(N, device="guarded")
        torch.accelerator.synchronize(0)
    c = torch.zeros(N, device="guarded:1").bernoulli_(0.3)
    for got, expected in zip((a, b, c), want, strict=True):
        torch.testing.assert_close(got.cpu(), expected)


def check_autograd_follows_the_streams() -> None:
    library().guarded_set_delay(-1, -1, 2000, 500)
    torch.manual_seed(0)
    leaf = torch.randn(8, 8)
    want = leaf.clone().requires_grad_()
    ((want @ want).relu().sum() + (want * 3).sum()).backward()
    got = leaf.to("guarded:1").requires_grad_()
    side = torch.Stream("guarded:1")
    side.wait_stream(torch.accelerator.current_stream(1))
    with side:
        loss = (got @ got).relu().sum() + (got * 3).sum()
        loss.backward()
    torch.accelerator.current_stream(1).wait_stream(side)
    assert got.grad is not None
    torch.testing.assert_close(got.grad.cpu(), want.grad)


def check_a_stream_that_was_left_is_current_again() -> None:
    before, side = torch.accelerator.current_stream(0), torch.Stream("guarded:0")
    with side:
        assert torch.accelerator.current_stream(0).stream_id == side.stream_id != 0
    assert torch.accelerator.current_stream(0) == before
    assert len({torch.Stream("guarded:1").stream_id for _ in range(12)}) == 4


def main() -> int:
    """A line of JSON per check to --out. What is queued when it ends must not keep the process."""
    parser = argparse.ArgumentParser(description="Checks of the guarded device by itself.")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    with open(args.out, "a") as out:
        for index, (name, check) in enumerate(CHECKS.items()):
            library().guarded_set_delay(-1, -1, 0, 0)
            failure = ""
            try:
                check()
            except Exception:
                failure = traceback.format_exc()
            for device in range(2):
                with contextlib.suppress(Exception):
                    torch.accelerator.synchronize(device)
            print(json.dumps({"index": index, "unit": name, "failures": failure}), file=out, flush=True)
    slow(1, 0)
    x = torch.ones(N, device="guarded:1")
    for _ in range(5):
        x = x * 2
    return 0


CHECKS: dict[str, Callable[[], None]] = {
    name.removeprefix("check_"): value for name, value in list(globals().items()) if name.startswith("check_")
}


# -- tests -------------------------------------------------------------------------------------------------------------


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("streams") / "checks.jsonl"
    done = python("-m", "tests.device", "streams", "--out", str(out))
    assert done.returncode == 0, f"the process ended with {done.returncode}: {done.stderr[-2000:]}"
    return {line["unit"]: line["failures"] for line in map(json.loads, out.read_text().splitlines())}


@pytest.mark.parametrize("name", CHECKS)
def test_the_device_is_as_strict_as_a_gpu(name: str, found: dict[str, str]) -> None:
    assert not found[name], found[name]


@pytest.mark.parametrize("meanwhile", ["torch.accelerator.synchronize(0)", "x.mul_(2)"])
def test_the_host_cannot_touch_the_memory(meanwhile: str) -> None:
    """Also while a job of the device has it."""
    program = f"""
import ctypes, torch
from tests.device.__main__ import library, register
register()
library().guarded_set_delay(0, 0, 50_000, 1000)
x = torch.ones(4096, device="guarded")
{meanwhile}
print("before", flush=True)
ctypes.string_at(x.data_ptr(), 1)
print("after", flush=True)
"""
    done = python("-c", program)
    assert done.returncode < 0, done.stderr
    assert done.stdout.split() == ["before"]
