"""Cases of batch norm's sums. Not here: the maps behind them, which are programs (composed_cases.py), other kernels."""

from __future__ import annotations

import torch

from .cases import Case, Operands, normal

OWN = "ai.ortmodule"


def batch_numbers(channels: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [normal(channels, dtype=dtype), normal(channels, dtype=dtype)]


def batch_norms() -> list[Case]:
    """Rows of 8, 16 and 32 vectors of 4 or 8 channels, or of 32; chunks of 64 rows, of which 32 are joined at once."""
    cases = []
    for rows, channels in ((2, 1), (3, 7), (5, 8), (63, 16), (64, 32), (65, 33), (130, 64), (70, 128), (300, 24),
                           (67, 256), (40, 264), (2100, 8), (3, 1030), (4200, 4)):  # fmt: skip
        wide = torch.float32 if channels % 3 else None  # numbers per channel as autocast leaves them

        def statistics(d: torch.dtype, r: int = rows, c: int = channels, w: torch.dtype | None = wide) -> Operands:
            scale, bias, mean, var = *batch_numbers(c, w or d), *batch_numbers(c, w or d)
            return [normal(r, c, dtype=d, scale=2) + 1, scale, bias, mean, var.abs()]

        def means(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, m: torch.Tensor, v: torch.Tensor):
            mean, var, n = x.mean(0), x.var(0, correction=0), x.shape[0]
            invstd = (var + 1e-5).rsqrt()
            moved = (0.9 * m + 0.1 * mean, 0.9 * v + 0.1 * var * n / (n - 1))
            return mean, invstd, w * invstd, b - mean * w * invstd, *moved

        cases.append(Case(
            f"BatchNormStatistics {rows}x{channels}", "BatchNormStatistics", statistics, means,
            ("batch_statistics", "batch_statistics_total"), OWN, {"epsilon": 1e-5, "momentum": 0.1}, wrt=(), outputs=6,
            aligned=False, loose=4e-5,
        ))  # fmt: skip
        for relu in (False, True):

            def gradient(
                d: torch.dtype, r: int = rows, c: int = channels, w: torch.dtype | None = wide, masked: bool = relu
            ) -> Operands:
                stats = [normal(c, dtype=torch.float32), normal(c, dtype=torch.float32).abs() + 0.5]
                more = batch_numbers(c, torch.float32) if masked else []
                for numbers in more:
                    numbers[0] = 0  # results of 0, through which ReLU lets nothing
                return [normal(r, c, dtype=d), normal(r, c, dtype=d), normal(c, dtype=w or d), *stats, *more]

            def sums(dy, x, w, mean, invstd, factor=None, shift=None):  # type: ignore[no-untyped-def]
                if factor is not None:
                    dy = dy * (x.float() * factor.float() + shift.float() > 0)
                plain, along, n = dy.sum(0), (dy * (x - mean)).sum(0) * invstd, x.shape[0]
                x_factor = -w * invstd**2 * along / n
                return along, plain, w * invstd, x_factor, -w * invstd * plain / n - x_factor * mean

            cases.append(Case(
                f"BatchNormSums {rows}x{channels} {'of ReLU' * relu}", "BatchNormSums", gradient, sums,
                ("batch_sums", "batch_sums_total"), OWN, wrt=(), outputs=5, aligned=False, loose=4e-5,
            ))  # fmt: skip
    return cases
