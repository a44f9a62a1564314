"""How many operators of a captured model are left to the generic ATen node, per model.

    python benchmarks/aten_nodes.py [--match TEXT]

Tiny models of the families that train natively: the 13 families of the test suite, and DeBERTa-v2, Swin, ConvNeXt,
Mixtral, Mamba, Whisper, Wav2Vec2, CLIP and a U-Net with group normalization. Each is captured in training mode; the
table says how many nodes its graph has, and which of them are ATen nodes. The exit status is 1 when there is one.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for tests/zoo.py

Model = tuple[nn.Module, dict[str, torch.Tensor]]


class UNet(nn.Module):
    """Two levels down and up with skip connections, GroupNorm and SiLU; the loss is the mean squared error."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.inner, self.down = self._block(3, width), nn.Conv2d(width, width, 3, 2, 1)
        self.deep = self._block(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.outer, self.head = self._block(2 * width, width), nn.Conv2d(width, 3, 1)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, 1, 1), nn.GroupNorm(4, outputs), nn.SiLU())

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        skip = self.inner(x)
        deep = self.deep(self.down(skip))
        around = torch.cat([self.up(deep), F.interpolate(self.down(skip), scale_factor=2.0) + skip], dim=1)
        return F.mse_loss(self.head(self.outer(around)), target)


def _unet() -> Model:
    return UNet(), {"x": torch.randn(3, 3, 16, 16), "target": torch.randn(3, 3, 16, 16)}


def _of_task(task: str, name: str) -> Callable[[], Model]:
    def make() -> Model:
        import zoo_configs

        module, batches = zoo_configs.build(task, name, [(3, 24)], [3])
        return module, batches[0]

    return make


def _wav2vec2() -> Model:
    import transformers

    config = transformers.Wav2Vec2Config(
        vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2,
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, apply_spec_augment=False, layerdrop=0.0,
        classifier_proj_size=16,
    )  # fmt: skip
    # Not the one for CTC: that one branches on the largest label, which no graph can hold.
    module = transformers.Wav2Vec2ForSequenceClassification(config)
    return module, {"input_values": torch.randn(3, 400), "labels": torch.randint(0, 2, (3,))}


def _clip() -> Model:
    import transformers

    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    text = {**sizes, "vocab_size": 99, "max_position_embeddings": 32, "eos_token_id": 98}
    vision = {**sizes, "image_size": 32, "patch_size": 8}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    batch: dict[str, Any] = {"input_ids": torch.randint(3, 98, (3, 12)), "pixel_values": torch.randn(3, 3, 32, 32)}
    return transformers.CLIPModel(config), {**batch, "return_loss": True}


def _family(name: str) -> Callable[[], Model]:
    def make() -> Model:
        from tests import zoo

        sample = zoo.build(name)
        return sample.module, sample.inputs

    return make


def models() -> dict[str, Callable[[], Model]]:
    """What makes each model and a batch for it, by name."""
    from tests import zoo

    return {
        **{name: _family(name) for name in zoo.ALL},
        "deberta-v2": _of_task("masked", "deberta-v2"),
        "swin": _of_task("image", "swin"),
        "convnext": _of_task("image", "convnext"),
        "wav2vec2": _wav2vec2,
        "clip": _clip,
        "u-net": _unet,
    }


def aten_nodes(make: Callable[[], Model]) -> tuple[int, dict[str, int]]:
    """The number of nodes of a model's graph, and its ATen nodes by operator."""
    from ortmodule.capture import capture

    torch.manual_seed(0)
    module, batch = make()
    graph = capture(module.train(), (), batch).model.graph
    names = [a.s.decode() for n in graph.node if n.op_type == "ATen" for a in n.attribute if a.name == "operator"]
    return len(graph.node), dict(collections.Counter(names))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--match", default="", help="only models whose name holds one of these, separated by commas")
    args = parser.parse_args(argv)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.simplefilter("ignore")
    total = 0
    for name, make in models().items():
        if not any(text in name for text in args.match.split(",")):
            continue
        nodes, aten = aten_nodes(make)
        total += sum(aten.values())
        which = ", ".join(f"{operator} x{count}" for operator, count in sorted(aten.items()))
        print(f"{name:12}{nodes:6} nodes{sum(aten.values()):5} ATen  {which}", flush=True)
    print(f"{total} ATen nodes")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
