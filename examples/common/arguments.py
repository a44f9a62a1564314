"""The command line that every example has, and errors that read as sentences.

Not here: arguments of one example (its own file).
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

RUNS = Path("runs")


def fail(sentence: str) -> NoReturn:
    """Ends the program with one sentence on stderr and exit status 2, as argparse does for a bad argument."""
    print(f"{Path(sys.argv[0]).name}: error: {sentence}", file=sys.stderr)
    raise SystemExit(2)


def run(main: Callable[[], None]) -> None:
    """Calls `main`; Ctrl-C where nothing is left to save ends the program quietly with status 130."""
    try:
        main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None


def at_least(minimum: int) -> Any:
    """An argparse type: an integer of `minimum` or more."""

    def number(text: str) -> int:
        value = int(text)
        if value < minimum:
            raise argparse.ArgumentTypeError(f"{value} is below {minimum}")
        return value

    return number


def between(low: float, high: float) -> Any:
    """An argparse type: a number in [low, high)."""

    def number(text: str) -> float:
        value = float(text)
        if not low <= value < high:
            raise argparse.ArgumentTypeError(f"{value:g} is not in [{low:g}, {high:g})")
        return value

    return number


def parser(name: str, description: str, **defaults: Any) -> argparse.ArgumentParser:
    """A parser with the shared arguments; `defaults` gives steps, batch_size, accumulation, lr, dropout and so on."""
    top = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)

    run = top.add_argument_group("run")
    run.add_argument("--engine", choices=["ortmodule", "eager"], default="ortmodule", help="what trains the model")
    run.add_argument("--compare", action="store_true", help="train eager PyTorch beside it, same weights and data")
    run.add_argument("--steps", type=at_least(1), help="optimizer steps of the whole run")
    run.add_argument("--seed", type=at_least(0), default=0, help="of weights, data order and dropout")
    run.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where to train")
    run.add_argument("--out", type=Path, help=f"folder for everything written (default: {RUNS}/{name}-<time>)")
    run.add_argument("--json", type=Path, metavar="OUT", help="also write losses and speeds to this file")

    training = top.add_argument_group("training")
    training.add_argument("--batch-size", type=at_least(1), help="examples per micro-batch")
    training.add_argument("--accumulation", type=at_least(1), default=1, help="micro-batches per optimizer step")
    training.add_argument("--lr", type=float, help="peak learning rate of AdamW")
    training.add_argument("--warmup", type=at_least(0), default=20, help="steps of linear warm-up")
    training.add_argument(
        "--schedule-steps", type=at_least(1), help="length of the cosine (default: --steps, at least the default run's)"
    )
    training.add_argument("--weight-decay", type=float, default=0.1, help="of AdamW, on matrices")
    training.add_argument("--clip", type=float, default=1.0, help="largest gradient norm; 0 leaves gradients alone")
    training.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    training.add_argument("--dropout", type=between(0, 1), metavar="P", help="dropout probability")
    training.add_argument(
        "--dropout-mode",
        choices=["fast", "torch"],
        default="fast",
        help="ortmodule's masks: its own, or eager's bit for bit",
    )

    files = top.add_argument_group("checkpoints")
    files.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="PATH",
        help="continue from a checkpoint file, or the newest in a folder; without PATH: --out, or the newest run",
    )
    files.add_argument("--save-every", type=at_least(1), default=100, metavar="N", help="steps between checkpoints")
    files.add_argument("--keep", type=at_least(1), default=3, metavar="N", help="newest checkpoints to keep")
    top.set_defaults(name=name, default_steps=defaults["steps"], **defaults)
    return top


def parse(top: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    """Parses and completes: schedule length and output folder."""
    args = top.parse_args(argv)
    if args.lr <= 0:
        top.error("--lr must be positive")
    if args.clip < 0:
        top.error("--clip must not be negative")
    if args.schedule_steps is None and args.resume is None:
        args.schedule_steps = max(args.steps, args.default_steps)
    if args.schedule_steps is not None and args.warmup > args.schedule_steps:
        top.error(f"--warmup {args.warmup} is longer than the schedule of {args.schedule_steps} steps")
    if args.out is None and args.resume is None:
        args.out = RUNS / f"{args.name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    return args
