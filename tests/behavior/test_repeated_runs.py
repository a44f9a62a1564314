"""Two processes with one seed give the same bits, also where one of them runs beside others that keep the machine busy.

`LONG_RUNS=1` trains 50 steps of the GPT example's size five times; by default a few steps of a small one, once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

LONG = bool(os.environ.get("LONG_RUNS"))
STEPS, LAYERS, WIDTH, LENGTH = (50, 4, 256, 128) if LONG else (4, 2, 128, 64)
REPEATS = 5 if LONG else 1

_TRAINS = f"""
import hashlib, torch
from torch import nn
from ortmodule import ORTModule

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.dropout = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (4, -1)).transpose(1, 2) for y in self.attention(self.first(x)).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.second(x)))))

class Language(nn.Module):
    def __init__(self, words, width, layers):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(layers)])
        self.head = nn.Linear(width, words)

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.head(self.blocks(self.words(x))).flatten(0, 1), y.flatten())

torch.manual_seed(7)
torch.set_num_threads(2)
model = ORTModule(Language(512, {WIDTH}, {LAYERS}))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
seen = hashlib.sha256()
for _ in range({STEPS}):
    x = torch.randint(0, 512, (8, {LENGTH} + 1))
    loss = model(x[:, :-1].contiguous(), x[:, 1:].contiguous())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen.update(loss.detach().numpy().tobytes())
for parameter in model.parameters():
    seen.update(parameter.detach().numpy().tobytes())
assert model.report().fallback == "none"
print(seen.hexdigest())
"""


def _trained() -> str:
    done = subprocess.run([sys.executable, "-c", _TRAINS], capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextmanager
def _busy() -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@pytest.mark.parametrize("repeat", range(REPEATS))
def test_a_run_beside_load_has_the_bits_of_an_idle_one(repeat: int) -> None:
    idle = _trained()
    with _busy():
        assert _trained() == idle
