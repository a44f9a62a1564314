"""Models of `transformers` as people train them (step_time.py --as-used): its code, its initialisation, its results.

Each returns its loss and its scores; the loop keeps the loss alone. Causal models have a label at every place, the
masked one at 15 % of them; no padding. Four layers of width 768, or as near as the family comes. Not here: models
written by hand, whose weights and sizes do not change with a library (models.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

LABELLED = 0.15
Batch = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Used:
    """A model: what it is called, the names of its config and of itself, its sizes, and its batch."""

    title: str
    config: str
    model: str
    sizes: dict[str, Any]
    small: dict[str, Any]
    batch: Callable[[Any, bool], Batch]


def _ids(words: int, rows: int, length: int) -> torch.Tensor:
    return torch.randint(5, words, (rows, length))


def _causal(config: Any, small: bool) -> Batch:
    ids = _ids(config.vocab_size, 2, 8 if small else 256)
    return {"input_ids": ids, "labels": ids}


def _masked(config: Any, small: bool) -> Batch:
    ids = _ids(config.vocab_size, 4, 8 if small else 128)
    return {"input_ids": ids, "labels": ids.masked_fill(torch.rand(ids.shape) >= LABELLED, -100)}


def _translated(config: Any, small: bool) -> Batch:
    length = 8 if small else 128
    return {"input_ids": _ids(config.vocab_size, 4, length), "labels": _ids(config.vocab_size, 4, length)}


def _heard(config: Any, small: bool) -> Batch:
    sound = torch.randn(1, config.num_mel_bins, 2 * config.max_source_positions)
    return {"input_features": sound, "labels": _ids(config.vocab_size, 1, 8 if small else 128)}


def _pictures(config: Any, small: bool) -> Batch:
    size = getattr(config, "image_size", 64)
    rows = 2 if small else 8 if size == 224 else 32
    return {"pixel_values": torch.randn(rows, 3, size, size), "labels": torch.randint(0, config.num_labels, (rows,))}


_TEXT = {"hidden_size": 768, "num_hidden_layers": 4, "num_attention_heads": 12, "use_cache": False}
_TINY = {"vocab_size": 100, "hidden_size": 16, "intermediate_size": 32} | {
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
_LLAMA = _TEXT | {"vocab_size": 32000, "intermediate_size": 2048, "num_key_value_heads": 4}
_T5 = {"decoder_start_token_id": 0, "use_cache": False}
_WHISPER = {"d_model": 768, "encoder_layers": 4, "decoder_layers": 4, "use_cache": False}

MODELS = {
    "bert": Used(
        "BERT 768x4, 4x128, 15 % labels", "BertConfig", "BertForMaskedLM", {"num_hidden_layers": 4}, _TINY, _masked,
    ),
    "gpt2": Used(
        "GPT-2 768x4, 2x256", "GPT2Config", "GPT2LMHeadModel", {"n_layer": 4, "use_cache": False},
        {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 100, "use_cache": False}, _causal,
    ),
    "llama": Used(
        "Llama 768x4, 2x256", "LlamaConfig", "LlamaForCausalLM", _LLAMA,
        _TINY | {"num_key_value_heads": 1, "use_cache": False}, _causal,
    ),
    "mixtral": Used(
        "Mixtral 768x4, 8 experts of 1024, 2x256", "MixtralConfig", "MixtralForCausalLM",
        _LLAMA | {"intermediate_size": 1024}, _TINY | {"num_key_value_heads": 1, "use_cache": False}, _causal,
    ),
    "t5": Used(
        "T5 768x(4+4), 4x128 to 128", "T5Config", "T5ForConditionalGeneration",
        _T5 | {"d_model": 768, "d_ff": 3072, "num_layers": 4, "num_heads": 12},
        _T5 | {"vocab_size": 100, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2},
        _translated,
    ),
    "whisper": Used(
        "Whisper 768x(4+4), 1x1500 to 128", "WhisperConfig", "WhisperForConditionalGeneration",
        _WHISPER | {"encoder_attention_heads": 12, "decoder_attention_heads": 12}
        | {"encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072},
        {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "use_cache": False}
        | {"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_source_positions": 20},
        _heard,
    ),
    "vit": Used(
        "ViT 768x4, 8x224x224", "ViTConfig", "ViTForImageClassification", {"num_hidden_layers": 4, "num_labels": 1000},
        _TINY | {"image_size": 32}, _pictures,
    ),
    "resnet": Used(
        "ResNet-18, 32x64x64", "ResNetConfig", "ResNetForImageClassification",
        {"depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512], "layer_type": "basic", "num_labels": 1000},
        {"depths": [1, 1], "hidden_sizes": [8, 16], "embedding_size": 8, "layer_type": "basic"}, _pictures,
    ),
}  # fmt: skip


def build(name: str, *, small: bool = False) -> tuple[nn.Module, Batch]:
    """The model `name` in training mode and one batch for it by argument, on the CPU in fp32; the same each time.

    Raises:
        KeyError: no such model.
    """
    import transformers

    used = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = getattr(transformers, used.config)(**(used.small if small else used.sizes))
        model = getattr(transformers, used.model)(config).train()
        torch.manual_seed(1)
        return model, used.batch(config, small)
