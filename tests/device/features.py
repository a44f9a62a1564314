"""What a step needs beside kernels, on the guarded device: `python -m tests.device features --out results.jsonl`.

Each module is trained beside eager on the same device for a few steps; losses, gradients and their devices must agree.
Not here: operators and models (benchmarks/gpu_units.py).
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import ortmodule

DEVICE = "guarded"
Inputs = Callable[[int], Sequence[torch.Tensor]]


class Branch(nn.Module):
    """One of two layers, by the sign of the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.first(x) if x.sum() > 0 else self.second(x)).pow(2).mean()


class Chosen(nn.Module):
    """As many rows as the data say."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = x.sum(-1) > 0
        return self.linear(x[mask]).sum() + self.linear(x)[mask.nonzero()[:, 0]].mean()


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8, padding_idx=0)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        return self.attention(x, x, x, key_padding_mask=mask)[0].pow(2).mean()


class Numbers(nn.Module):
    """Numbers and tables that are no parameters, beside the device's tensors and as sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        table = torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)
        y = self.linear(x) + table * torch.arange(x.shape[0], device=x.device)[:, None]
        y = y.scatter(1, torch.zeros_like(y[:, :1], dtype=torch.int64), 1.0)
        return (torch.where(y > 0, y, torch.tensor(0.5, device=x.device)) + self.steps.exp()).mean()


class Elsewhere(nn.Module):
    """An input, sizes and tensors of the host in a module of the device."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, lengths: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        held = x.new_zeros(x.shape[0], 4, device="cpu") + torch.ones_like(x, device="cpu") + lengths[:, None]
        held = held + torch.full_like(held, 2.0) + torch.zeros_like(held).fill_(1.0)
        return (self.linear(x) * held.to(x.device) + torch.ones_like(x)).mean()


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: F.dropout(self.linear(y).relu(), 0.3), x, use_reentrant=False).sum()


class Classified(nn.Module):
    """A table tied to the projection, ignored labels and weights of classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        scores = F.linear(self.embedding(tokens), self.embedding.weight).flatten(0, 1)
        return F.cross_entropy(scores, labels.flatten(), weight, label_smoothing=0.1)


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
        return dy * 3


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Tripled.apply(self.linear(x)).sum()


def rows(step: int) -> list[torch.Tensor]:
    return [torch.randn(3 + step, 4) + (1 if step % 2 else -1)]


def lengths_and_rows(step: int) -> list[torch.Tensor]:
    return [torch.arange(3.0 + step), *rows(step)]


def tokens_and_mask(step: int) -> list[torch.Tensor]:
    n = 5 + step
    return [torch.randint(0, 10, (3, n)), torch.arange(n)[None] > torch.tensor([[3], [2], [4]])]


def labelled(step: int) -> list[torch.Tensor]:
    labels = torch.randint(0, 50, (3, 7 + step))
    return [
        torch.randint(0, 50, labels.shape),
        labels.masked_fill(torch.rand(labels.shape) < 0.6, -100),
        torch.rand(50),
    ]


CASES: list[tuple[Callable[[], nn.Module], Inputs]] = [
    (Branch, rows),
    (Chosen, lambda step: [torch.randn(8 + step, 4)]),
    (Masked, tokens_and_mask),
    (Numbers, rows),
    (Elsewhere, lengths_and_rows),
    (Recomputed, rows),
    (Classified, labelled),
    (Custom, rows),
]


def compare(make: Callable[[], nn.Module], inputs: Inputs, where: str) -> None:
    """Four steps of two sizes and more; every other step adds to the gradients of the one before."""
    theirs = make().to(where)
    module = copy.deepcopy(theirs)
    ours = ortmodule.ORTModule(module, options=ortmodule.Options(dropout="torch"))
    for step in range(4):
        given = [x if make is Elsewhere and i == 0 else x.to(where) for i, x in enumerate(inputs(step))]
        if step % 2 == 0:
            theirs.zero_grad()
            ours.zero_grad()
        torch.manual_seed(step)
        want = theirs(*given)
        torch.manual_seed(step)
        got = ours(*given)
        want.backward()
        got.backward()
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        for (name, p), q in zip(theirs.named_parameters(), module.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None), f"the gradient of {name} exists in one only"
            if p.grad is not None:
                torch.testing.assert_close(q.grad, p.grad, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
    assert ours.report().fallback == "none", ours.report().fallback_reason


def moves(where: str) -> None:
    """A module that changes devices is captured for each, and its gradients follow."""
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    ours = ortmodule.ORTModule(module)
    for device in ("cpu", where, "cpu", where):
        ours.to(device).zero_grad()
        ours(torch.randn(3, 4, device=device)).sum().backward()
        assert {p.grad.device.type for p in module.parameters() if p.grad is not None} == {device}
    assert len(ours.report().exports) == len({"cpu", where})


def trains_from_artifacts(where: str) -> None:
    """A training session on the device and one on the host: steps, clipping, a checkpoint of one in the other."""
    module = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))
    batch = torch.randn(12, 8), torch.randint(4, (12,))
    for make in (torch.optim.SGD, torch.optim.AdamW):
        with tempfile.TemporaryDirectory() as folder:
            optimizer = make(module[2:].parameters(), lr=0.1)
            ortmodule.export_training_artifacts(module, nn.CrossEntropyLoss(), optimizer, batch, folder)
            here = ortmodule.TrainingSession(folder)
            there = ortmodule.TrainingSession(folder, device=where)
            for _ in range(4):
                for session in (here, there):
                    loss = session.train_step(*batch)
                    assert loss.device.type == session.get_tensor("0.weight").device.type
                    session.clip_grad_norm(1.0)
                    session.optimizer_step()
                    session.zero_grad()
            there.save_checkpoint(f"{folder}/there")
            own = here.state_dict()
            here.load_checkpoint(f"{folder}/there")
            for name, tensor in here.state_dict().items():
                torch.testing.assert_close(tensor, own[name], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(there.eval_step(*batch)[1].cpu(), here.eval_step(*batch)[1])


def recorded(where: str) -> None:
    """What a step on the device is recorded as is what one on the CPU is, but for rounding; equal steps are equal."""
    with tempfile.TemporaryDirectory() as folder:
        for name, device in (("host", "cpu"), ("a", where), ("b", where)):
            torch.manual_seed(0)
            ours = ortmodule.ORTModule(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(device))
            with ortmodule.debug.record(ours, f"{folder}/{name}"):
                for _ in range(2):
                    ours(torch.randn(5, 4).to(device)).square().sum().backward()
        assert (same := ortmodule.debug.diff(f"{folder}/a", f"{folder}/b")).equal, str(same)
        close = ortmodule.debug.diff(f"{folder}/host", f"{folder}/a", rtol=1e-4, atol=1e-5)
        assert close.equal and close.compared > 8, str(close)


class Labelled(nn.Module):
    """A causal model whose last rows have no label where a batch is padded."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding, self.mixed = nn.Embedding(vocabulary, width), nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        q, k, v = self.mixed(x)[:, :, None].chunk(3, -1)
        x = x + F.scaled_dot_product_attention(q.mT, k.mT, v.mT, is_causal=True).mT.flatten(2)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def busy(where: str) -> torch.Event:
    """The device has something to do that takes it longer than the host takes for a step."""
    if where == "cuda":
        torch.cuda._sleep(300_000_000)
    else:
        _busy_for(300_000)
        torch.ones(4, device=where).add_(1)
        _busy_for(0)
    event = torch.Event(where)
    event.record()
    return event


def _busy_for(microseconds: int) -> None:
    from .__main__ import library

    library().guarded_set_delay(-1, -1, microseconds, 1000)


def labelled(where: str) -> None:
    """Where all rows have labels the host runs ahead of the device; where some have none it waits to learn which."""
    torch.manual_seed(0)
    theirs = Labelled(*((50_000, 256) if where == "cuda" else (512, 64))).to(where)
    module = copy.deepcopy(theirs)
    ours = ortmodule.ORTModule(module)
    waited = []
    for padding in (0, 0, 0, 0, 0, 13, 13, 13, 13, 0, 0, 0, 0, 0):
        tokens = torch.randint(0, 512, (16, 64))
        labels = torch.where(torch.arange(64) < 64 - padding, tokens, -100)
        given = tokens.to(where), labels.to(where)
        torch.accelerator.synchronize()
        event = busy(where)
        got = ours(*given)
        waited.append(event.query())
        got.backward()
        want = theirs(*given)
        want.backward()
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        for p, q in zip(theirs.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-3, atol=1e-4)
        theirs.zero_grad()
        ours.zero_grad()
    assert ours.report().fallback == "none", ours.report().fallback_reason
    # By the time of the second padded batch the first one's labels are there.
    assert waited == [True] * 3 + [False] * 3 + [True] * 6 + [False] * 2, waited


def checks(where: str) -> list[tuple[str, Callable[[], None]]]:
    """All of them by name, on the device `where`."""
    found: list[tuple[str, Callable[[], None]]] = [
        (make.__name__, lambda m=make, i=inputs: compare(m, i, where)) for make, inputs in CASES
    ]
    return found + [
        (check.__name__, lambda c=check: c(where)) for check in (moves, trains_from_artifacts, recorded, labelled)
    ]


def main() -> int:
    """Appends a line of JSON per feature to --out, as gpu_units.py does per unit."""
    parser = argparse.ArgumentParser(description="What a step needs beside kernels, on the guarded device.")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    with open(args.out, "a") as out:
        for index, (name, check) in enumerate(checks(DEVICE)):
            print(json.dumps({"begins": index, "unit": name}), file=out, flush=True)
            torch.manual_seed(0)
            failures = {}
            try:
                check()
            except Exception:
                failures["check"] = traceback.format_exc()[-1500:]
            print(json.dumps({"index": index, "unit": name, "failures": failures}), file=out, flush=True)
    time.sleep(0.5)  # for autograd's thread of the device; why, says gpu_units.py
    return 0
