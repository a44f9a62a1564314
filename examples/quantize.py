"""Quantises a ResNet-18 for digits and a BERT classifier of passages after training them, with ortmodule.

They are trained as in train_resnet.py and finetune_bert.py, exported by torch (which needs `pip install onnxscript`),
calibrated by each method and written in QDQ form; the table has what each form scores on what was held out.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import finetune_bert
import numpy as np
import sklearn.datasets
import torch
import train_resnet
from torch import nn

from common import data
from ortmodule import InferenceSession, ORTModule
from ortmodule.quantization import CalibrationMethod, quantize_static

Feeds = dict[str, np.ndarray[Any, Any]]
METHODS: dict[str, dict[str, Any]] = {
    "MinMax": {},
    "Entropy": {"bins": 2048},
    "Percentile": {"percentile": 99.99},
}


def trained(
    model: nn.Module, batch: Callable[[torch.Tensor], dict[str, torch.Tensor]], count: int, args: Any
) -> nn.Module:
    """The model after some steps on random batches of `count` examples."""
    engine = ORTModule(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(args.steps):
        inputs = batch(torch.randint(0, count, (args.batch,)))
        labels = inputs.pop("labels")
        out = engine(*inputs.values()) if "images" in inputs else engine(**inputs).logits
        nn.functional.cross_entropy(out, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


class Logits(nn.Module):
    """A classifier of transformers that returns its logits alone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=input_ids, attention_mask=attention_mask).logits


def resnet(args: Any) -> tuple[nn.Module, list[Feeds], list[Feeds], np.ndarray[Any, Any]]:
    """The trained model, feeds for calibration, feeds that were held out, and their labels."""
    digits = sklearn.datasets.load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    labels = torch.tensor(digits.target)
    out = torch.arange(len(labels)) % 5 == 4
    seen, wanted = images[~out], labels[~out]
    model = trained(train_resnet.ResNet18(32, 0.0), lambda i: {"images": seen[i], "labels": wanted[i]}, len(seen), args)
    feeds = [{"images": part.numpy()} for part in seen[:256].split(32)]
    return model, feeds, [{"images": images[out].numpy()}], labels[out].numpy()


def bert(args: Any) -> tuple[nn.Module, list[Feeds], list[Feeds], np.ndarray[Any, Any]]:
    """The same for the classifier of passages; all are padded to one length."""
    longest = sorted(data.python_topics().items(), key=lambda item: (-len(item[1]), item[0]))[: finetune_bert.CLASSES]
    tokenizer = data.train_tokenizer(data.END.join(text for _, text in longest), 2048)
    seen, out = finetune_bert.cut(dict(longest), tokenizer, 0)
    sizes = argparse.Namespace(width=128, layers=3, heads=4, dropout=0.1)
    model = finetune_bert.build_model(sizes, tokenizer.get_vocab_size())
    model = trained(model, seen.batch, len(seen.tokens), args)

    def feeds_of(passages: Any, indices: torch.Tensor) -> Feeds:
        batch = passages.batch(indices)
        room = finetune_bert.LONGEST + 1 - batch["input_ids"].shape[1]
        return {
            name: nn.functional.pad(batch[name], (0, room)).numpy() for name in ("input_ids", "attention_mask")
        }  # fmt: skip

    calibration = [feeds_of(seen, part) for part in torch.arange(256).split(32)]
    held_out = [feeds_of(out, part) for part in torch.arange(len(out.tokens)).split(64)]
    return Logits(model), calibration, held_out, np.array(out.labels)


def accuracy(path: Path, feeds: list[Feeds], labels: np.ndarray[Any, Any]) -> float:
    session = InferenceSession(path)
    scores = np.concatenate([session.run(None, one)[0] for one in feeds])
    return float((scores.argmax(-1) == labels).mean())


def measure(name: str, args: Any) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    model, calibration, held_out, labels = {"resnet": resnet, "bert": bert}[name](args)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        inputs = {key: torch.from_numpy(value) for key, value in calibration[0].items()}
        batch = torch.export.Dim("batch", min=1, max=4096)
        torch.onnx.export(
            model, tuple(inputs.values()), path, input_names=list(inputs), dynamo=True, opset_version=20,
            dynamic_shapes=[{0: batch} for _ in inputs], verbose=False,
        )  # fmt: skip
        whole = accuracy(path, held_out, labels)
        rows.append({"model": name, "form": "float", "accuracy": whole, "lost_points": 0.0, "held_out": len(labels)})
        for method, settings in METHODS.items():
            for per_channel in (False, True):
                quantised = Path(folder, "quantised.onnx")
                quantize_static(
                    path, quantised, calibration, calibrate_method=CalibrationMethod[method], per_channel=per_channel,
                    calibration_settings=settings,
                )  # fmt: skip
                found = accuracy(quantised, held_out, labels)
                form = f"QDQ, {method}{', per channel' if per_channel else ''}"
                rows.append({"model": name, "form": form, "accuracy": found, "lost_points": 100 * (whole - found)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=lambda s: s.split(","), default=["resnet", "bert"], help="of resnet, bert")
    parser.add_argument("--steps", type=int, default=300, help="of training")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--json", type=Path, help="where the rows are written")
    args = parser.parse_args()
    rows = []
    for name in args.models:
        rows += measure(name, args)
        for row in rows[-1 - 2 * len(METHODS) :]:
            print(
                f"{row['model']:8} {row['form']:30} {row['accuracy']:.3f} right, {row['lost_points']:5.2f} points lost"
            )
    if args.json:
        args.json.write_text(
            json.dumps({"torch": torch.__version__, "steps": args.steps, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
