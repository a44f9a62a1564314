"""Small training models of every family that the tests cover, each with its loss inside forward.

`build(name, batch, seq)` gives a fresh model with fixed random weights in training mode, a batch of inputs as keyword
arguments, and the axes of each input that may change from call to call. No model or data is downloaded: transformers'
classes are built from tiny configurations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCABULARY, CLASSES = 120, 10


@dataclasses.dataclass
class Sample:
    """A model and one batch for it."""

    module: nn.Module
    inputs: dict[str, torch.Tensor]
    dynamic_axes: dict[str, tuple[int, ...]]

    def dynamic_dims(self) -> set[tuple[int, int]]:
        """(flat leaf index, axis) pairs as `capture` wants them, for a call with `inputs` as keywords."""
        return {(i, axis) for i, name in enumerate(self.inputs) for axis in self.dynamic_axes[name]}

    def loss(self) -> torch.Tensor:
        """The training loss of one call."""
        return loss_of(self.module(**self.inputs))


def loss_of(result: Any) -> torch.Tensor:
    """The loss in a model's result."""
    return result if isinstance(result, torch.Tensor) else result.loss


class MLP(nn.Module):
    def __init__(self, width: int = 32, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, 2 * width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.LayerNorm(2 * width),
            nn.Linear(2 * width, CLASSES),
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.layers(x), y)


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.body(x)
        out += self.shortcut(x)
        return F.relu(out, inplace=True)


class ResNet18(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        stages: list[nn.Module] = []
        channels = width
        for i in range(4):
            stages += [Residual(channels, width << i, 1 if i == 0 else 2), Residual(width << i, width << i, 1)]
            channels = width << i
        self.stages, self.pool, self.head = (
            nn.Sequential(*stages),
            nn.AdaptiveAvgPool2d(1),
            nn.Linear(channels, CLASSES),
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.pool(self.stages(self.stem(x))).flatten(1)), y)


class Tagger(nn.Module):
    def __init__(self, layer: type[nn.Module], dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.rnn = layer(16, 24, 2, batch_first=True, dropout=dropout)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        states, _ = self.rnn(self.embedding(x))
        return F.cross_entropy(self.head(states).flatten(0, 1), y.flatten())


def ids(batch: int, seq: int, high: int = VOCABULARY) -> torch.Tensor:
    return torch.randint(4, high, (batch, seq))


def _vectors(batch: int, seq: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch, 32), "y": torch.randint(0, CLASSES, (batch,))}


def _images(batch: int, seq: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch, 3, 64, 64), "y": torch.randint(0, CLASSES, (batch,))}


def _tags(batch: int, seq: int) -> dict[str, torch.Tensor]:
    return {"x": ids(batch, seq), "y": torch.randint(0, CLASSES, (batch, seq))}


def _text(batch: int, seq: int) -> dict[str, torch.Tensor]:
    return {
        "input_ids": ids(batch, seq),
        "attention_mask": torch.ones(batch, seq, dtype=torch.long),
        "labels": ids(batch, seq),
    }


def _classified(batch: int, seq: int) -> dict[str, torch.Tensor]:
    return {**_text(batch, seq), "labels": torch.randint(0, 2, (batch,))}


def _tokens(batch: int, seq: int) -> dict[str, torch.Tensor]:
    return {"input_ids": ids(batch, seq), "labels": ids(batch, seq)}


def _pixels(batch: int, seq: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(batch, 3, 32, 32), "labels": torch.randint(0, 2, (batch,))}


def _audio(batch: int, seq: int) -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(batch, 16, 64), "labels": ids(batch, seq)}


def _bert(layers: int) -> Callable[[float], nn.Module]:
    def make(p: float) -> nn.Module:
        import transformers as t

        return t.BertForSequenceClassification(
            t.BertConfig(
                vocab_size=VOCABULARY,
                hidden_size=48,
                num_hidden_layers=layers,
                num_attention_heads=4,
                intermediate_size=96,
                max_position_embeddings=128,
                hidden_dropout_prob=p,
                attention_probs_dropout_prob=p,
            )
        )

    return make


def _gpt2(p: float) -> nn.Module:
    import transformers as t

    return t.GPT2LMHeadModel(
        t.GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=48,
            n_layer=2,
            n_head=4,
            n_positions=128,
            use_cache=False,
            resid_pdrop=p,
            embd_pdrop=p,
            attn_pdrop=p,
        )
    )


_DECODER = dict(
    vocab_size=VOCABULARY,
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    use_cache=False,
    max_position_embeddings=128,
)


def _llama(p: float) -> nn.Module:
    import transformers as t

    return t.LlamaForCausalLM(t.LlamaConfig(**_DECODER, attention_dropout=p))


def _mixtral(p: float) -> nn.Module:
    import transformers as t

    return t.MixtralForCausalLM(t.MixtralConfig(**_DECODER, num_local_experts=4, attention_dropout=p))


def _t5(p: float) -> nn.Module:
    import transformers as t

    return t.T5ForConditionalGeneration(
        t.T5Config(
            vocab_size=VOCABULARY,
            d_model=48,
            d_kv=12,
            d_ff=96,
            num_layers=2,
            num_heads=4,
            use_cache=False,
            dropout_rate=p,
            decoder_start_token_id=0,
            pad_token_id=0,
        )
    )


def _vit(p: float) -> nn.Module:
    import transformers as t

    return t.ViTForImageClassification(
        t.ViTConfig(
            num_hidden_layers=2,
            hidden_size=48,
            intermediate_size=96,
            num_attention_heads=4,
            image_size=32,
            patch_size=8,
            hidden_dropout_prob=p,
            attention_probs_dropout_prob=p,
        )
    )


def _mamba(p: float) -> nn.Module:
    import transformers as t

    return t.MambaForCausalLM(
        t.MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4, use_cache=False)
    )


def _whisper(p: float) -> nn.Module:
    import transformers as t

    return t.WhisperForConditionalGeneration(
        t.WhisperConfig(
            vocab_size=VOCABULARY,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            num_mel_bins=16,
            max_source_positions=32,
            max_target_positions=64,
            use_cache=False,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=3,
            begin_suppress_tokens=None,
            dropout=p,
        )
    )


_BATCH, _BATCH_SEQ = (0,), (0, 1)
_FAMILIES: dict[
    str, tuple[Callable[[float], nn.Module], Callable[[int, int], dict[str, torch.Tensor]], dict[str, tuple[int, ...]]]
] = {
    "mlp": (lambda p: MLP(dropout=p), _vectors, {}),
    "resnet18": (lambda p: ResNet18(), _images, {}),
    "lstm": (lambda p: Tagger(nn.LSTM, p), _tags, {"x": _BATCH_SEQ, "y": _BATCH_SEQ}),
    "gru": (lambda p: Tagger(nn.GRU, p), _tags, {"x": _BATCH_SEQ, "y": _BATCH_SEQ}),
    "bert": (_bert(2), _classified, {"input_ids": _BATCH_SEQ, "attention_mask": _BATCH_SEQ}),
    "bert12": (_bert(12), _classified, {"input_ids": _BATCH_SEQ, "attention_mask": _BATCH_SEQ}),
    "gpt2": (_gpt2, _text, {"input_ids": _BATCH_SEQ, "attention_mask": _BATCH_SEQ, "labels": _BATCH_SEQ}),
    "llama": (_llama, _text, {"input_ids": _BATCH_SEQ, "attention_mask": _BATCH_SEQ, "labels": _BATCH_SEQ}),
    "t5": (_t5, _text, {"input_ids": _BATCH_SEQ, "attention_mask": _BATCH_SEQ, "labels": _BATCH_SEQ}),
    "vit": (_vit, _pixels, {}),
    "mixtral": (_mixtral, _text, {"input_ids": _BATCH_SEQ, "attention_mask": _BATCH_SEQ, "labels": _BATCH_SEQ}),
    "mamba": (_mamba, _tokens, {"input_ids": _BATCH_SEQ, "labels": _BATCH_SEQ}),
    "whisper": (_whisper, _audio, {"labels": _BATCH_SEQ}),
}

ALL = list(_FAMILIES)
STATIC_SEQUENCE = {"mamba"}  # the module's own Python loops over the sequence, so PyTorch's export fixes its length


def build(name: str, batch: int = 3, seq: int = 16, dropout: float = 0.0) -> Sample:
    """The model of family `name` with a batch of `batch` samples of `seq` tokens (images ignore `seq`).

    Weights depend on the name alone, so two calls with other sizes give the same model.
    """
    make, inputs, axes = _FAMILIES[name]
    torch.manual_seed(0)
    module = make(dropout).train()
    torch.manual_seed(batch * 1000 + seq)
    given = inputs(batch, seq)
    return Sample(module, given, {n: axes.get(n, _BATCH) for n in given})
