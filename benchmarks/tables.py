"""Writes the tables of README.md and docs/ from committed results, so that no figure is typed by hand.

    python benchmarks/tables.py            # writes them
    python benchmarks/tables.py --check    # says which differ; ends with 1 if one does

A table stands between two comments that no reader sees; the first names its kind and its result:

    <!-- table steps 2026-11-27_cpu_intel_fp32_step_time.json -->
    <!-- end of table -->

A name with a `*` is of several results, which `trust` takes together.

Under `steps` and `steps_short` comes the run they are of: date, commit, processor, threads, torch. Ratios are
ORTModule's by the other's, of medians; "padded texts" are step_time.py's realistic batches (40 % padding, BERT with
15 % of the labels). Not here: measuring (step_time.py, trainer.py, inference.py), nor whether the commit of a
result is this one: the line under a table says which it is.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

from common import ROOT

RESULTS = ROOT / "benchmarks" / "results"
_PLACE = re.compile(r"(<!-- table (\w+) (\S+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)
_TITLES = {
    "mlp": "MLP 64-64-64, batch 32",
    "tiny": "transformer 64x2, 8x32",
    "bert": "BERT 768x4, 4x128, dropout 0.1",
    "gpt2": "GPT-2 768x4, 2x256",
    "llama": "Llama-like 768x4, 2x256",
    "vit": "ViT 384x6, 8x224x224",
    "resnet18": "ResNet-18, 32x3x64x64",
}
_PADDED = ", padded texts"
_STARTS = ("first_s", "other_s")  # of cold_start.py
_REAL_TITLES = {
    "gpt2-small": "GPT-2 small, 8x1024",
    "gpt2-medium": "GPT-2 medium, 8x1024",
    "llama-1b": "Llama-like 1.26B, 4x2048",
    "bert-large": "BERT-large, 16x512, dropout 0.1",
    "vit-large": "ViT-L, 64x224x224",
    "resnet50": "ResNet-50, 128x224x224",
}
Result = dict[str, Any]


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def _steps_by_model(result: Result) -> Iterator[tuple[str, dict[str, Any]]]:
    """A model's title and its rows by runner, in the order of the result.

    Raises:
        SystemExit: a model has no title, or misses one of the three runners.
    """
    by_model: dict[str, dict[str, Any]] = {}
    for row in result["rows"]:
        by_model.setdefault(row["model"], {})[row["runner"]] = row
    for model, runners in by_model.items():
        name = model.removesuffix("*")
        title = next(iter(runners.values())).get("title") or _TITLES.get(name)
        if title is None or not {"eager", "compile", "ortmodule"} <= set(runners):
            raise SystemExit(f"model {model!r}: its title is not known, or one of the three runners was not measured")
        yield title + _PADDED * (name != model), runners


def _run_of(result: Result) -> str:
    where = result["environment"]
    return (
        f"\n{where['date'][:10]}, commit {where['commit'][:9]}, {where['cpu']}, {where['threads']} threads, "
        f"torch {where['torch']}, {result['settings']['rounds']} rounds.\n"
    )


def steps(result: Result, *, short: bool = False) -> str:
    """Steps of models: milliseconds of the three runners, and what ORTModule takes of the others' time and memory."""
    header = ["model", "eager ms", "torch.compile ms", "ORTModule ms"] * (not short) or ["model"]
    rows = []
    for title, row in _steps_by_model(result):
        if short and title.endswith(_PADDED):
            continue
        ms = {name: row[name]["fb_ms"]["median"] for name in ("eager", "compile", "ortmodule")}
        ratios = [ms["ortmodule"] / ms["eager"], ms["ortmodule"] / ms["compile"]]
        ratios.append(row["ortmodule"]["step_memory_mib"] / row["eager"]["step_memory_mib"])
        times = [f"{value:.3g}" if value < 1000 else f"{value:.0f}" for value in ms.values()]
        rows.append([title, *times * (not short), *(f"{ratio:.2f}" for ratio in ratios)])
    header += ["time / eager", "time / torch.compile", "step memory / eager"]
    return _markdown(header, rows) + _run_of(result)


def steps_short(result: Result) -> str:
    """The ratios alone, of whole texts."""
    return steps(result, short=True)


def trainer(result: Result) -> str:
    """Hugging Face's Trainer and a causal model's step (trainer.py): medians, and ORTModule's by the others'."""
    header = ["", "eager", "torch.compile", "ORTModule", "ORTModule / eager", "ORTModule / torch.compile"]
    rows = []
    for title, case, key in (
        ("Trainer, masked, ms a step", "masked", "step_ms"),
        ("causal, ms a step", "causal", "step_ms"),
        ("causal, MiB a step", "causal", "step_mib"),
    ):
        runs = result["results"][case]
        taken = {name: statistics.median(run[key] for run in runs[name]) for name in ("eager", "compile", "ortmodule")}
        ratios = [taken["ortmodule"] / taken["eager"], taken["ortmodule"] / taken["compile"]]
        rows.append([title, *(f"{value:.0f}" for value in taken.values()), *(f"{ratio:.2f}" for ratio in ratios)])
    where = result["environment"]
    return _markdown(header, rows) + (
        f"\n{where['date'][:10]}, commit {where['commit'][:9]}, {where['cpu']}, {where['threads']} threads, "
        f"torch {where['torch']}, {result['settings']['rounds']} rounds of {result['settings']['steps']} steps.\n"
    )


def gpu_steps(result: Result) -> str:
    """Steps of the real models on a GPU (gpu_steps.py): eager, ORTModule and torch.compile, where it was measured."""
    by_model: dict[str, dict[str, Any]] = {}
    for row in result["rows"]:
        by_model.setdefault(row["model"], {})[row["runner"]] = row
    header = ["model", "eager ms", "ORTModule ms", "time / eager", "with AdamW", "step memory / eager", "first step s"]
    titles = {model: title for model, title in _REAL_TITLES.items() if model in by_model}
    compiled = all("compile" in by_model[model] for model in titles)
    header += ["torch.compile ms", "ORTModule / torch.compile", "memory / its", "its first step s"] * compiled
    rows = []
    for model, title in titles.items():
        eager, ours = by_model[model]["eager"], by_model[model]["ortmodule"]
        ratio = [ours[key]["median"] / eager[key]["median"] for key in ("fb_ms", "step_ms")]
        ratio.append(ours["step_memory_mib"] / eager["step_memory_mib"])
        times = [f"{row['fb_ms']['median']:.3g}" for row in (eager, ours)]
        line = [title, *times, *(f"{value:.2f}" for value in ratio), f"{ours['first_step_s']:.1f}"]
        if compiled:
            other = by_model[model]["compile"]
            took, held = (
                ours["fb_ms"]["median"] / other["fb_ms"]["median"],
                ours["step_memory_mib"] / other["step_memory_mib"],
            )
            line += [f"{other['fb_ms']['median']:.3g}", f"{took:.2f}", f"{held:.2f}", f"{other['first_step_s']:.1f}"]
        rows.append(line)
    where, dtype = result["environment"], result["settings"]["dtype"]
    return _markdown(header, rows) + (
        f"\n{where['date'][:10]}, commit {where['commit'][:9]}, {where['gpu']}, torch {where['torch']}, autocast to "
        f"{dtype}, {result['settings']['rounds'] * result['settings']['samples']} samples of at least 5 steps.\n"
    )


def first_steps(result: Result) -> str:
    """Seconds of a first step at a first size and at another (cold_start.py), by model and runner."""
    by_model: dict[str, dict[str, Any]] = {}
    for row in result["rows"]:
        by_model.setdefault(row["model"], {})[row["runner"]] = row
    titles = {"compile": "torch.compile", "compile warm": "with its caches", "tracing": "its tracing alone",
              "ortmodule": "ORTModule", "ortmodule warm": "with its cache"}  # fmt: skip
    runners = [name for name in titles if any(name in rows for rows in by_model.values())]
    rows = [
        [model, *(f"{of[name][key]:.1f}" if key in of.get(name, {}) else "-" for name in runners for key in _STARTS)]
        for model, of in by_model.items()
    ]
    header = ["seconds", *(f"{titles[name]}{of_size}" for name in runners for of_size in ("", ", other size"))]
    where, how = result["environment"], result["arguments"]
    return _markdown(header, rows) + (
        f"\n{where['date'][:10]}, commit {where['commit'][:9]}, {where['cpu']}, {where['threads']} threads, torch "
        f"{where['torch']}, {how['batch']} texts of {how['length']}, then one more of half as long again, "
        f"{how['rounds']} rounds.\n"
    )


def decoding(result: Result) -> str:
    """Seconds that `generate` takes (generate.py), by model and batch."""
    titles = {"gpt2": "GPT-2 small", "llama": "Llama-like"}
    rows = [
        [f"{titles[row['model']]}, {row['parameters'] / 1e6:.0f} million", str(row["batch"]),
         *(f"{row[key]:.2f}" for key in ("eager_s", "ortmodule_s", "speedup", "eager_first_s", "first_s")),
         "yes" if row["equal"] else "no"]
        for row in result["rows"]
    ]  # fmt: skip
    header = ["model", "batch", "eager s", "ORTModule s", "eager / ORTModule", "first call: eager s", "ORTModule s",
              "tokens equal"]  # fmt: skip
    where, how = result["environment"], result["arguments"]
    return _markdown(header, rows) + (
        f"\n{where['date'][:10]}, commit {where['commit'][:9]}, {where['cpu']}, {where['threads']} threads, torch "
        f"{where['torch']}, {how['prompt']} tokens given, {how['tokens']} made, {how['rounds']} rounds.\n"
    )


def trust(result: Result) -> str:
    """Runs of the generator of programs (`python -m tests.trust`), the newest first."""
    rows = []
    runs = [run for run in result["results"] if "seeds" in run]
    for run in sorted(runs, key=lambda r: (r["date"], max(map(int, r["seeds"]))), reverse=True):
        seeds, counts = run["seeds"], collections.Counter[str]()
        for one in seeds.values():
            counts.update(one["verdicts"])
        before, of = (sum(one["engine before and after"][i] for one in seeds.values()) for i in (0, 1))
        right, wrong = counts["right"], counts["silently wrong"]
        numbers = sorted(map(int, seeds))
        in_a_row = len(numbers) > 1 and numbers == [*range(numbers[0], numbers[-1] + 1)]
        named = f"{numbers[0]} to {numbers[-1]}" if in_a_row else ", ".join(map(str, numbers))
        named += f", {run['depth']} deep" if "depth" in run else ""
        figures = [f"{counts.total():,}", f"{right:,}", str(wrong), str(counts.total() - right - wrong)]
        rows.append([run["date"], run["commit"][:7], run["python"], named, *figures, f"{100 * before / of:.0f} %"])
    figures = ["programs", "right", "silently wrong", "errors on one side", "engine"]
    return _markdown(["date", "commit", "Python", "seeds", *figures], rows)


KINDS: dict[str, Callable[[Result], str]] = {
    f.__name__: f for f in (steps, steps_short, trainer, gpu_steps, first_steps, decoding, trust)
}


def written(text: str, name: str) -> str:
    """A page with its tables as the results have them.

    Raises:
        SystemExit: a table's kind or result is not there.
    """

    def table(place: re.Match[str]) -> str:
        begin, kind, file, _, end = place.groups()
        results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob(file))]
        if kind not in KINDS or not results:
            raise SystemExit(f"{name}: no table {kind} of {file}; kinds: {', '.join(KINDS)}, results: {RESULTS}")
        return begin + KINDS[kind]({"results": results} if "*" in file else results[0]) + end

    return _PLACE.sub(table, text)


def main() -> int:
    parser = argparse.ArgumentParser(description="Tables of README.md and docs/ from committed results.")
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if a table differs")
    args = parser.parse_args()
    wrong = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text()
        new = written(text, page.name)
        if new == text:
            continue
        wrong.append(str(page.relative_to(ROOT)))
        if not args.check:
            page.write_text(new)
    for name in wrong:
        print(f"{name}: {'differs from its results' if args.check else 'written'}")
    return int(args.check and bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
