"""What a run leaves behind: a table on the terminal, the loss curves as a picture, the numbers as JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from common.engine import Engine

LAST = 10  # steps whose mean loss the table shows


def speed(engine: Engine, units_per_step: float) -> float | None:
    """Units (tokens, images) per second over all steps of this process but the first, which includes the capture."""
    later = engine.seconds[1:] or engine.seconds
    return units_per_step * len(later) / sum(later) if later else None


def difference(engines: list[Engine]) -> dict[str, float] | None:
    """Largest |loss difference| of two engines, the step (from 1) where it is, and that of the last steps' means."""
    if len(engines) < 2:
        return None
    gaps = [abs(a - b) for a, b in zip(engines[0].losses, engines[1].losses, strict=True)]
    worst = max(range(len(gaps)), key=gaps.__getitem__)
    ends = [sum(engine.losses[-LAST:]) / len(engine.losses[-LAST:]) for engine in engines]
    return {"max_abs": gaps[worst], "at_step": worst + 1, "end_abs": abs(ends[0] - ends[1])}


def summary(engines: list[Engine], units_per_step: float, metrics: dict[str, float]) -> list[dict[str, Any]]:
    rows = []
    for engine in engines:
        rows.append(
            {
                "engine": engine.name,
                "losses": engine.losses,
                "final_loss": sum(engine.losses[-LAST:]) / len(engine.losses[-LAST:]),
                "per_second": speed(engine, units_per_step),
                "seconds_to_first_step": engine.seconds_to_first_step,
                "peak_bytes": engine.memory.bytes,
                **({"accuracy": metrics[engine.name]} if engine.name in metrics else {}),
            }
        )
    return rows


def print_table(rows: list[dict[str, Any]], unit: str) -> None:
    heads = ["engine", f"loss (last {LAST})", f"{unit}/s", "first step", "peak memory"]
    cells = [
        [
            row["engine"],
            f"{row['final_loss']:.4f}",
            f"{row['per_second']:,.0f}" if row["per_second"] else "-",
            f"{row['seconds_to_first_step']:.2f} s" if row["seconds_to_first_step"] is not None else "-",
            f"{row['peak_bytes'] / 2**20:,.0f} MiB",
        ]
        for row in rows
    ]
    if all("accuracy" in row for row in rows):
        heads.append("accuracy")
        for cell, row in zip(cells, rows, strict=True):
            cell.append(f"{row['accuracy']:.1%}")
    widths = [max(len(line[i]) for line in [heads, *cells]) for i in range(len(heads))]
    for line in [heads, ["-" * width for width in widths], *cells]:
        first, *rest = (cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths)))
        print("  ".join([first, *rest]))


def draw_losses(engines: list[Engine], path: Path, title: str) -> None:
    """Loss by step of every engine; with two, their difference below on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    gap = difference(engines)
    figure, axes = pyplot.subplots(
        2 if gap else 1,
        1,
        figsize=(8, 6 if gap else 4.5),
        sharex=True,
        squeeze=False,
        height_ratios=[3, 1] if gap else None,
    )
    top = axes[0][0]
    for engine, style in zip(engines, ["-", "--"]):
        steps = range(1, len(engine.losses) + 1)
        top.plot(steps, engine.losses, style, label=engine.name, linewidth=1.5)
    top.set(ylabel="training loss", title=title)
    top.legend()
    top.grid(alpha=0.3)
    if gap:
        gaps = [abs(a - b) for a, b in zip(engines[0].losses, engines[1].losses, strict=True)]
        axes[1][0].plot(range(1, len(gaps) + 1), gaps, color="black", linewidth=1)
        axes[1][0].set(ylabel="|difference|")
        if any(gaps):
            axes[1][0].set_yscale("log")
        axes[1][0].grid(alpha=0.3)
    axes[-1][0].set_xlabel("optimizer step")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def write_json(path: Path, rows: list[dict[str, Any]], unit: str, args: argparse.Namespace, **more: Any) -> None:
    """The first engine's figures at the top level, every engine's under `engines`."""
    head = rows[0]
    content = {
        "example": args.name,
        "engine": head["engine"],
        "losses": head["losses"],
        f"{unit}_per_second": head["per_second"],
        "seconds_to_first_step": head["seconds_to_first_step"],
        "engines": {row["engine"]: {key: value for key, value in row.items() if key != "engine"} for row in rows},
        **more,
        "arguments": {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
