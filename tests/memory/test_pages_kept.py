"""What the process keeps between steps is bounded by its largest step, not by how many modules there are.

Each case runs in a process of its own and prints MiB of resident memory. Not here: what a dropped module's objects
hold (test_memory_returns.py).
"""

from __future__ import annotations

import subprocess
import sys

_COMMON = """
import gc, torch
from torch import nn
from ortmodule import ORTModule

torch.set_num_threads(1)
gc.disable()

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

def made(width):
    # The last layer is narrow: what is computed outside the module is malloc's, which keeps what it likes.
    body = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 4))
    return ORTModule(body)

def step(model, rows):
    model(torch.ones(rows, 64)).square().mean().backward()
    model.zero_grad()

step(made(64), 64)
"""


def _printed(code: str) -> list[float]:
    done = subprocess.run([sys.executable, "-c", _COMMON + code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]


def test_six_modules_in_turns_keep_little_more_than_the_largest() -> None:
    one, six = _printed("""
before = resident()
models = [made(256)]
for _ in range(4):
    step(models[0], 16384)
print(resident() - before)
models += [made(width) for width in (256, 224, 240, 192, 208)]
for _ in range(4):
    for model in models:
        step(model, 16384)
print(resident() - before)
""")
    assert one > 30
    assert six < 1.5 * one


def test_many_modules_made_trained_and_dropped_keep_nothing() -> None:
    early, late = _printed("""
for i in range(40):
    model = made(64 + i)
    for _ in range(3):
        step(model, 8192)
    del model
    if i in (9, 39):
        print(resident())
""")
    assert late - early < 20
