"""What copies are around attention: `python -m tests.cuda layouts --match llama`.

Small language models and a ViT of benchmarks/models.py in bfloat16, where attention is ATen's flash attention (here the
guarded device's), whose results lie as its operands do. Told of a steady step: copies by ATen, and launches. What to
look for are copies that only bring a value into another order. Not here: other families (models.py).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch

import ortmodule

from ..device.__main__ import ROOT
from .cases import DEVICE
from .models import asked
from .simulated import simulator


def _models() -> dict[str, tuple[Callable[[], torch.nn.Module], Callable[[], tuple[torch.Tensor, ...]]]]:
    if str(ROOT / "benchmarks") not in sys.path:
        sys.path.append(str(ROOT / "benchmarks"))
    from models import Bert, Gpt2, Llama, Vit, masked_text, pictures, text

    return {
        "gpt2": (lambda: Gpt2(200, 32, 2, 2, 16), lambda: text(2, 16, 200)),
        "llama": (lambda: Llama(200, 32, 2, 2, 64, 16), lambda: text(2, 16, 200)),
        "bert": (lambda: Bert(200, 32, 2, 2, 16, 0.1), lambda: masked_text(2, 16, 200)),
        "vit": (lambda: Vit(32, 8, 32, 2, 2, 10), lambda: pictures(2, 32, 10)),
    }


def look(name: str) -> dict[str, Any]:
    simulator()
    make, batch = _models()[name]
    module = make().train().to(DEVICE, torch.bfloat16)
    inputs = [x.to(DEVICE, torch.bfloat16 if x.is_floating_point() else None) for x in batch()]
    engine = ortmodule.ORTModule(module)
    for _ in range(3):
        module.zero_grad()
        with asked() as found:
            result = engine(*inputs)
            (result["loss"] if isinstance(result, dict) else result).backward()
    copies = found.aten.get("aten::copy_", {"launches": 0, "bytes": 0})
    failures = [f"it fell back to eager: {engine.report().fallback_reason}"] * (engine.report().fallback != "none")
    return {
        "model": name,
        "copies": copies["launches"],
        "copied": copies["bytes"],
        **found.told(),
        "failures": failures,
    }


def main(match: str) -> int:
    wrong = 0
    for name in (n for n in _models() if match in n):
        found = look(name)
        wrong += bool(found["failures"])
        print(json.dumps(found), flush=True)
    return int(wrong > 0)
