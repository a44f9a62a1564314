"""Exported models beside the stock onnxruntime package and eager PyTorch: one run of each in turns, in one process.

    python benchmarks/inference.py --models bert gpt2 resnet18 --threads 1 --json out.json

The models are exported by torch's own exporter (`torch.onnx.export`) with random weights, their optimizer untouched.
Each round runs every engine once; medians and fastest runs are told, and ratios of this project's to the others'. With
`--memory` each engine loads and runs the model in a process of its own instead, whose largest resident memory is told.
Not here: training steps (step_time.py).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch

from common import facts, table, write_json

ENGINES = ("ortmodule", "onnxruntime", "eager")


class Logits(torch.nn.Module):
    """A model of transformers as a function of tensors."""

    def __init__(self, model: torch.nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.model(*inputs)[self.name]
        return result


def bert() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """BERT-base: 12 layers of 768 features, 128 tokens."""
    import transformers

    model = transformers.BertModel(transformers.BertConfig(attn_implementation="sdpa"))
    tokens = torch.randint(0, 30000, (1, 128))
    return Logits(model, "last_hidden_state"), (tokens, torch.ones_like(tokens))


def gpt2() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """GPT-2 small: 12 layers of 768 features, 128 tokens, logits of 50,257 words."""
    import transformers

    config = transformers.GPT2Config(use_cache=False, attn_implementation="sdpa")
    return Logits(transformers.GPT2LMHeadModel(config), "logits"), (torch.randint(0, 50000, (1, 128)),)


def resnet18() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """ResNet-18: one picture of 224 x 224."""
    import transformers

    config = transformers.ResNetConfig(
        hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic", num_labels=1000
    )
    return Logits(transformers.ResNetForImageClassification(config), "logits"), (torch.randn(1, 3, 224, 224),)


MODELS = {"bert": bert, "gpt2": gpt2, "resnet18": resnet18}


def exported(name: str, folder: Path) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], Path]:
    """The model, its inputs, and the file that torch's exporter writes of it."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    path = folder / f"{name}.onnx"
    torch.onnx.export(model.eval(), inputs, path, dynamo=True, external_data=True, verbose=False)
    return model, inputs, path


def engine(kind: str, model: torch.nn.Module | None, path: Path, threads: int) -> Callable[[list[Any]], Any]:
    """What runs the model on a list of arrays."""
    if kind == "eager":
        assert model is not None

        def eager(arrays: list[Any]) -> Any:
            with torch.inference_mode():
                return model(*map(torch.from_numpy, arrays)).numpy()

        return eager
    if kind == "onnxruntime":
        import onnxruntime

        theirs = onnxruntime.SessionOptions()
        theirs.intra_op_num_threads = threads
        stock = onnxruntime.InferenceSession(str(path), theirs, providers=["CPUExecutionProvider"])
        names = [one.name for one in stock.get_inputs()]
        return lambda arrays: stock.run(None, dict(zip(names, arrays, strict=True)))[0]
    import ortmodule

    options = ortmodule.SessionOptions()
    options.intra_op_num_threads = threads
    own = ortmodule.InferenceSession(str(path), options)
    own_names = [one.name for one in own.get_inputs()]
    return lambda arrays: own.run(None, dict(zip(own_names, arrays, strict=True)))[0]


def times(name: str, folder: Path, rounds: int, threads: int) -> dict[str, Any]:
    """Milliseconds of a run by engine, and the largest difference of results from eager's."""
    model, inputs, path = exported(name, folder)
    arrays = [x.numpy() for x in inputs]
    engines = {kind: engine(kind, model, path, threads) for kind in ENGINES}
    results = {kind: numpy.asarray(run(arrays)) for kind, run in engines.items()}
    samples: dict[str, list[float]] = {kind: [] for kind in ENGINES}
    for i in range(rounds + 3):
        for kind, run in engines.items():
            start = time.perf_counter()
            run(arrays)
            if i >= 3:
                samples[kind].append((time.perf_counter() - start) * 1e3)
    row: dict[str, Any] = {"model": name}
    for kind in ENGINES:
        row[f"{kind} ms"] = statistics.median(samples[kind])
        row[f"{kind} fastest"] = min(samples[kind])
    row["of onnxruntime"] = row["ortmodule ms"] / row["onnxruntime ms"]
    row["fastest of onnxruntime"] = row["ortmodule fastest"] / row["onnxruntime fastest"]
    row["of eager"] = row["ortmodule ms"] / row["eager ms"]
    row["difference"] = float(abs(results["ortmodule"] - results["eager"]).max())
    return row


def memory(name: str, folder: Path, threads: int) -> dict[str, Any]:
    """MiB that a process of each engine has resident at most, beyond one that has only imported the packages."""
    _, inputs, path = exported(name, folder)
    numpy.savez(folder / f"{name}.npz", *[x.numpy() for x in inputs])
    row: dict[str, Any] = {"model": name}
    for kind in ENGINES[:2]:
        found = [
            int(subprocess.check_output([sys.executable, __file__, "--child", one, str(path), str(threads)]))
            for one in (kind, f"{kind} alone")
        ]
        row[f"{kind} MiB"] = (found[0] - found[1]) / 1024
    row["of onnxruntime"] = row["ortmodule MiB"] / row["onnxruntime MiB"]
    return row


def child(kind: str, path: Path, threads: int) -> None:
    """Prints the KiB that this process has had resident at most, once the model has run ten times."""
    kind, _, alone = kind.partition(" ")
    __import__(kind)
    torch.set_num_threads(threads)
    if not alone:
        arrays = list(numpy.load(path.with_suffix(".npz")).values())
        run = engine(kind, None, path, threads)
        for _ in range(10):
            run(arrays)
    status = Path("/proc/self/status").read_text()  # ru_maxrss counts what the parent had
    print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def main() -> None:
    """Prints a table; writes JSON."""
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=sorted(MODELS))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory", action="store_true", help="measure memory instead of time")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models:
            measure = memory(name, Path(folder), args.threads) if args.memory else times(
                name, Path(folder), args.rounds, args.threads
            )  # fmt: skip
            rows.append(measure)
    cells = [[f"{v:.3f}" if isinstance(v, float) else v for v in row.values()] for row in rows]
    print(table(list(rows[0]), cells))
    if args.json:
        write_json(args.json, {"facts": facts(threads=args.threads), "rows": rows})


if __name__ == "__main__":
    main()
