"""Steps of Hugging Face's Trainer with nothing set, and the memory of a causal model's step: the three runners.

    python benchmarks/trainer.py --threads 2 --rounds 3 --json out.json

`masked`: BertForMaskedLM, 15 % of the words labelled, 40 % of the batch padding, trained by Trainer (AdamW, clipping);
milliseconds from one step's beginning to the next one's. `causal`: a Llama-like model with 128,256 words, every label
counts; `step_mib` is what a forward and backward take at their peak beyond what stays, which is parameters and
gradients. Models return loss and scores, as transformers' do. Each runner has a process of its own; rounds go through
all of them. Not here: models one by one (step_time.py), first steps (cold_start.py).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from worker import reset_peak, status, trim

from common import facts, rounds, settings, table, write_json

RUNNERS = ("eager", "compile", "ortmodule")
CASES = ("masked", "causal")
LABELLED, PADDED = 0.15, 0.4


def masked_model(small: bool) -> tuple[Any, int]:
    from transformers import BertConfig, BertForMaskedLM

    tiny = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 1}
    config = BertConfig(**(tiny if small else {"num_hidden_layers": 4}))
    return BertForMaskedLM(config), config.vocab_size


def causal_model(small: bool) -> tuple[Any, int]:
    from transformers import LlamaConfig, LlamaForCausalLM

    width = 32 if small else 512
    config = LlamaConfig(
        vocab_size=1024 if small else 128256,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        use_cache=False,
    )
    return LlamaForCausalLM(config), config.vocab_size


def texts(words: int, count: int, length: int) -> list[dict[str, Any]]:
    """Rows of words of which `LABELLED` have a label; their lengths leave `PADDED` of a batch empty."""
    import torch

    rows = []
    for i in range(count):
        ids = torch.randint(5, words, (length,))
        full = round(length * (1 - 2 * PADDED * ((i % 8) / 7)))  # batches of 8 have every length
        mask = (torch.arange(length) < full).long()
        labels = ids.masked_fill((torch.rand(length) >= LABELLED) | (mask == 0), -100)
        rows.append({"input_ids": ids * mask, "attention_mask": mask, "labels": labels})
    return rows


def masked(runner: str, args: argparse.Namespace) -> dict[str, Any]:
    import transformers

    transformers.logging.set_verbosity_error()
    model, words = masked_model(args.small)
    begun: list[float] = []

    class Clock(transformers.TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            begun.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        how = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=8,
            max_steps=args.warm + args.steps + 1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            torch_compile=runner == "compile",
        )
        trainer = transformers.Trainer(
            model=wrapped(runner, model),
            args=how,
            train_dataset=texts(words, 8 * (args.warm + args.steps + 1), args.length),
            callbacks=[Clock()],
        )
        result = trainer.train()
    times = [b - a for a, b in zip(begun, begun[1:])]
    return {"step_ms": 1e3 * statistics.median(times[args.warm :]), "loss": result.training_loss}


def causal(runner: str, args: argparse.Namespace) -> dict[str, Any]:
    import torch

    model, words = causal_model(args.small)
    run = torch.compile(model) if runner == "compile" else wrapped(runner, model)
    ids = torch.randint(0, words, (4, args.length))
    times, mib = [], []
    for _ in range(args.warm + args.steps):
        model.zero_grad(set_to_none=False)
        trim()
        reset_peak("cpu")
        before, start = status("VmRSS"), time.perf_counter()
        loss = run(input_ids=ids, labels=ids).loss
        loss.backward()
        times.append(time.perf_counter() - start)
        mib.append(status("VmHWM") - before)
    return {
        "step_ms": 1e3 * statistics.median(times[args.warm :]),
        "loss": loss.item(),
        "step_mib": max(mib[args.warm :]),
    }


def wrapped(runner: str, model: Any) -> Any:
    if runner != "ortmodule":
        return model
    from ortmodule import ORTModule

    return ORTModule(model)


def measure(case: str, runner: str, args: argparse.Namespace) -> dict[str, Any]:
    """One process."""
    command = [sys.executable, __file__, "--worker", runner, "--cases", case, "--threads", str(args.threads)]
    command += ["--warm", str(args.warm), "--steps", str(args.steps), "--length", str(args.length)]
    done = subprocess.run(
        command + ["--small"] * args.small,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(args.threads), "TOKENIZERS_PARALLELISM": "false"},
        cwd=Path(__file__).parent,
    )
    if done.returncode:
        raise SystemExit(f"{case} by {runner}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=lambda text: text.split(","), default=list(CASES))
    parser.add_argument("--runners", type=lambda text: text.split(","), default=list(RUNNERS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", type=int, default=3, help="steps that are not counted")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--length", type=int, default=128, help="words of a row, padding included")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        import torch

        torch.set_num_threads(args.threads)
        torch.manual_seed(0)
        answer = sys.stdout
        with contextlib.redirect_stdout(sys.stderr):
            row = {"masked": masked, "causal": causal}[args.cases[0]](args.worker, args)
        print(json.dumps(row), file=answer)
        return
    results: dict[str, dict[str, list[dict[str, Any]]]] = {c: {r: [] for r in args.runners} for c in args.cases}
    for _ in rounds(args.rounds):
        for case, by_runner in results.items():
            for runner, rows in by_runner.items():
                rows.append(measure(case, runner, args))
    lines = []
    for case, by_runner in results.items():
        for runner, rows in by_runner.items():
            figures = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
            mib = figures.get("step_mib")
            size = "" if mib is None else f"{mib:.0f}"
            lines.append([f"{case} {runner}", f"{figures['step_ms']:.0f}", size, f"{figures['loss']:.4f}"])
    print(table(("", "step ms", "step MiB", "loss"), lines))
    if args.json:
        environment = facts("cpu", args.threads)
        write_json(args.json, {"environment": environment, "settings": settings(args), "results": results})


if __name__ == "__main__":
    main()
