"""The training loop: the same for every example, with one engine or with two side by side.

What: batches in a fixed order, progress, TensorBoard, checkpoints, an orderly stop on Ctrl-C, the report at the end.
Not here: models and data (each example), what a step does (engine.py).
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import math
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from common import checkpoint, report
from common.arguments import fail
from common.data import ShuffledOrder
from common.engine import Batch, Engine
from ortmodule.distributed import is_rank_zero

# Arguments that change what is computed: a run may only be resumed under the same ones.
_FIXED = "compare engine seed batch_size accumulation lr warmup weight_decay clip bf16 dropout dropout_mode".split()


@dataclasses.dataclass
class Task:
    """What one example trains.

    examples: number of training examples. batch: indices int64[n] -> the model's inputs on the CPU. loss: scalar tensor
    of one batch. units_per_example: tokens or images per example, for the speed. data: digest of the data.
    accuracy: correct share on held-out examples, in [0, 1]. sample: text to show at the end. extra: kept in the
    checkpoint.
    """

    model: Callable[[], nn.Module]
    examples: int
    batch: Callable[[torch.Tensor], Batch]
    loss: Callable[[nn.Module, Batch], torch.Tensor]
    unit: str
    units_per_example: float
    data: str
    accuracy: Callable[[nn.Module], float] | None = None
    sample: Callable[[nn.Module], str] | None = None
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)


def load_resumed(args: argparse.Namespace) -> dict[str, Any] | None:
    """The checkpoint that --resume names, checked against the arguments; sets --out and the schedule from it."""
    if args.resume is None:
        if checkpoint.exists_in(args.out):
            fail(f"--out {args.out} already holds checkpoints; add --resume {args.out}, or name another folder")
        return None
    in_out = not args.resume and args.out and checkpoint.exists_in(args.out)
    path = checkpoint.find(str(args.out) if in_out else args.resume, args.name)
    state = checkpoint.read(path)
    saved = state["arguments"]
    if saved["name"] != args.name:
        fail(f"{path} is a checkpoint of the example {saved['name']}")
    changed = [name for name in (*_FIXED, *state["fixed"]) if saved[name] != getattr(args, name)]
    if changed:
        name = changed[0]
        option = "--" + name.replace("_", "-")
        if isinstance(saved[name], bool):
            fail(f"{path} was made {'with' if saved[name] else 'without'} {option}; resume it the same way")
        fail(f"{path} was made with {option} {saved[name]}, not {getattr(args, name)}; resume under the same {option}")
    if args.schedule_steps not in (None, saved["schedule_steps"]):
        fail(f"{path} was made with --schedule-steps {saved['schedule_steps']}")
    if args.steps < state["step"]:
        fail(f"{path} is at step {state['step']} already; --steps {args.steps} ends before it")
    args.schedule_steps = saved["schedule_steps"]
    args.out = args.out or path.resolve().parent.parent
    print(f"resuming {path} at step {state['step']}")
    return state


class OrderlyStop:
    """Ctrl-C or SIGTERM lets the step finish and be saved; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __enter__(self) -> OrderlyStop:
        self._old = {kind: signal.signal(kind, self._ask) for kind in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for kind, old in self._old.items():
            signal.signal(kind, old)

    def _ask(self, kind: int, _frame: object) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = kind


@contextlib.contextmanager
def _progress(args: argparse.Namespace, done: int) -> Iterator[Callable[[int, dict[str, str]], None]]:
    """A bar on a terminal; elsewhere (a log file) a line every tenth of the run."""
    if sys.stderr.isatty():
        with tqdm(total=args.steps, initial=done, unit="step", dynamic_ncols=True) as bar:

            def show(step: int, facts: dict[str, str]) -> None:
                bar.set_postfix(facts, refresh=False)
                bar.update(1)

            yield show
    else:
        every = max(1, args.steps // 10)

        def show(step: int, facts: dict[str, str]) -> None:
            if step % every == 0 or step in (1, args.steps):
                print(f"step {step}/{args.steps}  " + "  ".join(f"{k} {v}" for k, v in facts.items()), flush=True)

        yield show


def _engines(task: Task, args: argparse.Namespace) -> list[Engine]:
    torch.manual_seed(args.seed)
    module = task.model()
    names = [args.engine] + (["eager"] if args.compare and args.engine != "eager" else [])
    modules = [module] + [copy.deepcopy(module) for _ in names[1:]]
    return [Engine(name, each, task.loss, args) for name, each in zip(names, modules, strict=True)]


def train(task: Task, args: argparse.Namespace, resumed: dict[str, Any] | None, fixed: tuple[str, ...] = ()) -> None:
    """Runs the example to --steps and reports; exits with 130 after Ctrl-C.

    fixed: arguments of this example that a resumed run must share.
    """
    per_step = args.batch_size * args.accumulation
    units = per_step * task.units_per_example
    engines = _engines(task, args)
    step, order = 0, ShuffledOrder(task.examples, args.seed)
    if resumed is not None:
        if resumed["data"] != task.data:
            fail("the checkpoint was made with other data (another --text or another Python)")
        step, order.taken = resumed["step"], resumed["examples_taken"]
        for engine in engines:
            engine.load_state_dict(resumed["engines"][engine.name])
    args.out.mkdir(parents=True, exist_ok=True)
    _announce(task, args, engines)

    def save() -> Path:
        kept = {name: getattr(args, name) for name in ("name", "schedule_steps", *_FIXED, *fixed)}
        state = {
            "step": step,
            "examples_taken": order.taken,
            "data": task.data,
            "arguments": kept,
            "fixed": list(fixed),
            "extra": task.extra,
            "engines": {engine.name: engine.state_dict() for engine in engines},
        }
        return checkpoint.write(args.out, step, state, args.keep)

    from torch.utils.tensorboard import SummaryWriter

    saved_at = step
    with SummaryWriter(args.out / "tensorboard", purge_step=step + 1) as board, OrderlyStop() as stop:
        with _progress(args, step) as show:
            while step < args.steps and stop.signal is None:
                batches = [_to_device(task.batch(order.take(args.batch_size)), args) for _ in range(args.accumulation)]
                facts = {}
                for engine in engines:
                    rate = engine.learning_rate
                    result = engine.step(batches)
                    if not math.isfinite(result.loss):
                        fail(f"the loss of {engine.name} is {result.loss} at step {step + 1}; try a smaller --lr")
                    prefix = f"{engine.name} " if len(engines) > 1 else ""
                    facts[f"{prefix}loss"] = f"{result.loss:.4f}"
                    facts[f"{prefix}{task.unit}/s"] = f"{units / result.seconds:,.0f}"
                    board.add_scalar(f"loss/{engine.name}", result.loss, step + 1)
                    board.add_scalar(f"{task.unit}_per_second/{engine.name}", units / result.seconds, step + 1)
                    board.add_scalar(f"gradient_norm/{engine.name}", result.gradient_norm, step + 1)
                    board.add_scalar("learning_rate", rate, step + 1)
                step += 1
                show(step, facts)
                if step % args.save_every == 0:
                    save()
                    saved_at = step
        if saved_at != step:
            path = save()
            if stop.signal is not None:
                print(f"stopped at step {step}, saved; continue with --resume {path}")
    if stop.signal is not None:
        raise SystemExit(128 + stop.signal)
    _report(task, args, engines, units)


def _to_device(batch: Batch, args: argparse.Namespace) -> Batch:
    return {name: tensor.to(args.device) for name, tensor in batch.items()}


def _announce(task: Task, args: argparse.Namespace, engines: list[Engine]) -> None:
    if not is_rank_zero():
        return
    parameters = sum(p.numel() for p in engines[0].module.parameters())
    print(
        f"{args.name}: {parameters / 1e6:.2f} M parameters, {task.examples:,} examples, {args.steps} steps of "
        f"{args.batch_size} x {args.accumulation}, {'bf16' if args.bf16 else 'fp32'}, dropout {args.dropout:g}, "
        f"on {' and '.join(engine.name for engine in engines)} ({args.device}, {torch.get_num_threads()} threads)"
    )


def _report(task: Task, args: argparse.Namespace, engines: list[Engine], units: float) -> None:
    metrics = {}
    if task.accuracy is not None:
        metrics = {engine.name: task.accuracy(engine.model.eval()) for engine in engines}
    rows = report.summary(engines, units, metrics)
    print()
    if task.sample is not None:
        # The plain module: a sequence that grows by one token per call is not what a training engine is for.
        print(task.sample(engines[0].module.eval()) + "\n")
    report.print_table(rows, task.unit)
    gap = report.difference(engines)
    if gap is not None:
        print(
            f"\nmax |loss difference| {gap['max_abs']:.3g} (step {gap['at_step']} of {args.steps}), "
            f"{gap['end_abs']:.3g} between the means of the last {report.LAST} steps"
        )
    picture = args.out / "loss.png"
    report.draw_losses(engines, picture, f"{args.name}, {'bf16' if args.bf16 else 'fp32'}, dropout {args.dropout:g}")
    more = {} if gap is None else {"loss_difference": gap}
    for path in filter(None, [args.out / "result.json", args.json]):
        report.write_json(path, rows, task.unit, args, **more)
    print(f"\nloss curves {picture}   checkpoints {args.out / 'checkpoints'}   tensorboard --logdir {args.out}")
