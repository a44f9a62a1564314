"""A small GPT-2 with everything that sharding meets: tied, frozen, unused and one-element parameters; its data."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, CONTEXT, WIDTH, HEADS = 61, 16, 24, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, c = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(n, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(n, t, c))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Returns the loss of predicting each next token."""

    def __init__(self, layers: int = 2, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.wpe.weight.requires_grad_(False)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.wte.weight
        self.scale = nn.Parameter(torch.ones(1))
        self.unused = nn.Linear(5, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln_f(x) * self.scale).float()
        return F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))


def groups(model: nn.Module) -> list[dict[str, object]]:
    """Matrices with weight decay, the rest without and at another rate; frozen ones among them."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.05, "lr": 2e-3}]


def batch(step: int, micro: int, rank: int, rows: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7919 * step + 101 * micro + rank)
    start = torch.randint(VOCABULARY, (rows, 1), generator=generator)
    return (start + 7 * torch.arange(CONTEXT)) % VOCABULARY
