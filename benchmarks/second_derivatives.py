"""Training that differentiates gradients: ORTModule beside eager PyTorch, in turns.

    python benchmarks/second_derivatives.py --threads 2 --rounds 30 --json out.json

- penalty: a critic of convolutions, whose loss has the norm of the gradient of its input (WGAN-GP).
- residual: the residual of a heat equation, a network of tanh layers differentiated twice by its inputs.
- maml: two steps of gradient descent within the loss, through `torch.func.functional_call`.
- hvp: a Hessian-vector product of a small transformer's loss.

Each step is checked first: its loss and every gradient are eager's (`difference`, relative). torch.compile is no runner
here: it refuses to differentiate again what it has compiled.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from common import facts, rounds, settings, table, write_json

Step = Callable[[nn.Module], torch.Tensor]


class Critic(nn.Module):
    """Scores of images [batch, 3, 32, 32]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = (3, width, 2 * width, 4 * width)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, 4, stride=2, padding=1) for before, after in zip(sizes, sizes[1:])
        )
        self.score = nn.Linear(4 * width * 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for convolution in self.convolutions:
            x = nn.functional.leaky_relu(convolution(x), 0.2)
        return self.score(x.flatten(1))


class Block(nn.Module):
    """A layer of a transformer; its attention is written out, as eager's kernels of it have no second derivative."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.heads, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.heads(self.norms[0](x)).view(batch, length, 3, 4, width // 4)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) * (width // 4) ** -0.5).softmax(-1)
        x = x + self.mixed((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(nn.functional.gelu(self.wide(self.norms[1](x))))


class Loss(nn.Module):
    """A network's mean squared error."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (self.net(x) - y).square().mean()


def layers(first: int, width: int, depth: int, last: int) -> nn.Sequential:
    parts: list[nn.Module] = [nn.Linear(first, width), nn.Tanh()]
    for _ in range(depth):
        parts += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*parts, nn.Linear(width, last))


def penalty(small: bool) -> tuple[nn.Module, Step]:
    model = Critic(8 if small else 64)
    x = torch.randn(4 if small else 32, 3, 32, 32)

    def step(module: nn.Module) -> torch.Tensor:
        mixed = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(module(mixed).sum(), mixed, create_graph=True)
        return module(x).mean() + 10 * (slope.flatten(1).norm(dim=1) - 1).square().mean()

    return model, step


def residual(small: bool) -> tuple[nn.Module, Step]:
    model = layers(2, 16 if small else 128, 3, 1)
    points = torch.rand(64 if small else 4096, 2)

    def step(module: nn.Module) -> torch.Tensor:
        at = points.clone().requires_grad_()
        (first,) = torch.autograd.grad(module(at).sum(), at, create_graph=True)
        (second,) = torch.autograd.grad(first[:, 0].sum(), at, create_graph=True)
        return (first[:, 1] - 0.1 * second[:, 0]).square().mean()

    return model, step


def maml(small: bool) -> tuple[nn.Module, Step]:
    model = Loss(layers(1, 16 if small else 256, 2, 1))
    support, query = ((torch.rand(32, 1), torch.rand(32, 1)) for _ in range(2))

    def step(module: nn.Module) -> torch.Tensor:
        fast = dict(module.named_parameters())
        for _ in range(2):
            loss = torch.func.functional_call(module, fast, support)
            slopes = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            fast = {name: p - 0.05 * slope for (name, p), slope in zip(fast.items(), slopes)}
        return torch.func.functional_call(module, fast, query)

    return model, step


def hvp(small: bool) -> tuple[nn.Module, Step]:
    width = 32 if small else 256
    model = Loss(nn.Sequential(Block(width), Block(width)))
    x, y = torch.randn(2, 4, 16 if small else 64, width)
    directions = [torch.randn_like(p) for p in model.parameters()]

    def step(module: nn.Module) -> torch.Tensor:
        slopes = torch.autograd.grad(module(x, y), list(module.parameters()), create_graph=True)
        return torch.stack([(slope * v).sum() for slope, v in zip(slopes, directions)]).sum()

    return model, step


TASKS: dict[str, Callable[[bool], tuple[nn.Module, Step]]] = {
    "penalty": penalty,
    "residual": residual,
    "maml": maml,
    "hvp": hvp,
}


def gradients(module: nn.Module, step: Step) -> list[torch.Tensor]:
    """The loss and every parameter's gradient."""
    module.zero_grad()
    loss = step(module)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]


def difference(mine: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> float:
    """The largest of all tensors', relative to the tensor's norm."""
    sizes = [(m - t).norm() / t.norm().clamp(min=1e-12) for m, t in zip(mine, theirs, strict=True)]
    return float(max(sizes))


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    from ortmodule import ORTModule

    torch.manual_seed(0)
    eager, step = TASKS[name](args.small)
    model = ORTModule(copy.deepcopy(eager))
    start = time.perf_counter()
    first = gradients(model, step)
    first_s = time.perf_counter() - start
    worst = difference(first, gradients(eager, step))
    taken: dict[str, list[float]] = {"eager": [], "ortmodule": []}
    for i in rounds(args.rounds + 3):
        for runner, module in (("eager", eager), ("ortmodule", model)):
            start = time.perf_counter()
            module.zero_grad()
            step(module).backward()
            if i >= 3:
                taken[runner].append(time.perf_counter() - start)
    worst = max(worst, difference(gradients(model, step), gradients(eager, step)))
    medians = {f"{runner}_ms": 1e3 * statistics.median(times) for runner, times in taken.items()}
    ratio = medians["ortmodule_ms"] / medians["eager_ms"]
    report = model.report()
    return {"task": name, **medians, "ratio": ratio, "first_s": first_s, "difference": worst,
            "fallback": report.fallback, "fallback_reason": report.fallback_reason,
            "exports": [e.reason for e in report.exports]}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=lambda s: s.split(","), default=list(TASKS), help=f"of {', '.join(TASKS)}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--small", action="store_true", help="narrow networks, to try the harness")
    parser.add_argument("--json", metavar="OUT")
    args = parser.parse_args()
    if unknown := set(args.tasks) - TASKS.keys():
        parser.error(f"unknown: {', '.join(unknown)}")
    torch.set_num_threads(args.threads)
    rows = [measure(name, args) for name in args.tasks]
    header = ("task", "eager ms", "ortmodule ms", "ratio", "first s", "difference", "fallback")
    cells = [
        (row["task"], *(f"{row[k]:.2f}" for k in ("eager_ms", "ortmodule_ms", "ratio", "first_s")),
         f"{row['difference']:.1e}", row["fallback"])
        for row in rows
    ]  # fmt: skip
    print(table(header, cells))
    if args.json:
        write_json(args.json, {"environment": facts(threads=args.threads), "arguments": settings(args), "rows": rows})
    return int(any(row["fallback"] != "none" or row["difference"] > 1e-3 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
