"""Tiny random models of the transformers package, made from each architecture's own configuration class.

A configuration's sizes are recognized by their usual names; whatever is not among them keeps its default. Where the
result does not build or run, a second attempt changes only the number of layers and the vocabulary.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from transformers.models.auto import configuration_auto, modeling_auto

TASKS = {
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "image": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
}
VOCABULARY = 99

_LAYERS = dict.fromkeys(
    ("num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers num_encoder_layers "
     "num_decoder_layers num_hidden_groups num_blocks").split(), 2,
)  # fmt: skip
_LAYERS["num_hidden_groups"] = 1
_WORDS = {
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
_SIZES: dict[str, int] = {
    **dict.fromkeys("hidden_size d_model n_embd dim embedding_size emb_dim d_embed".split(), 32),
    **dict.fromkeys(
        ("num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads "
         "num_encoder_attention_heads num_decoder_attention_heads attention_heads").split(), 4,
    ),
    **dict.fromkeys("num_key_value_heads num_kv_heads".split(), 2),
    **dict.fromkeys(
        ("intermediate_size d_ff ffn_dim encoder_ffn_dim decoder_ffn_dim n_inner d_inner hidden_dim "
         "ffn_hidden_size feed_forward_size").split(), 64,
    ),
    **dict.fromkeys("d_kv head_dim d_head qk_rope_head_dim qk_nope_head_dim v_head_dim".split(), 8),
    **dict.fromkeys("q_lora_rank kv_lora_rank".split(), 16),
    **dict.fromkeys("max_position_embeddings n_positions n_ctx max_target_positions max_source_positions".split(), 128),
    **dict.fromkeys("num_experts num_local_experts n_routed_experts moe_num_experts".split(), 4),
    **dict.fromkeys("num_experts_per_tok moe_k".split(), 2),
    **dict.fromkeys("moe_intermediate_size shared_expert_intermediate_size".split(), 32),
    **dict.fromkeys("n_group topk_group first_k_dense_replace n_shared_experts".split(), 1),
    "image_size": 32, "patch_size": 8, "num_labels": 5, "state_size": 8, "conv_kernel": 4,
    "attention_window": 8, "block_size": 8, "chunk_length": 8, "mamba_d_state": 8, "mamba_n_heads": 8,
    "mamba_d_head": 8, "mamba_n_groups": 1, "lru_width": 32, "sliding_window": 16, "bottleneck_size": 16,
}  # fmt: skip


def names(task: str) -> list[str]:
    """Model types that have a class for the task."""
    mapping = getattr(modeling_auto, TASKS[task])
    return sorted(name for name in mapping if name in configuration_auto.CONFIG_MAPPING_NAMES)


def build(
    task: str, name: str, text_sizes: Sequence[tuple[int, int]], image_batches: Sequence[int]
) -> tuple[torch.nn.Module, list[dict[str, torch.Tensor]]]:
    """A model in training mode without dropout, and one batch per size.

    Raises:
        Exception: whatever the architecture raises when its tiny model is built or run.
    """
    last: Exception | None = None
    for overrides in ({**_LAYERS, **_WORDS, **_SIZES}, {**_LAYERS, **_WORDS}):
        try:
            module = _model(task, name, overrides)
            batches = _batches(task, module, text_sizes, image_batches)
            module(**batches[0]).loss.backward()
            module.zero_grad(set_to_none=True)
            return module, batches
        except Exception as error:
            last = error
    assert last is not None
    raise last


def _model(task: str, name: str, overrides: dict[str, int]) -> torch.nn.Module:
    config_class = configuration_auto.CONFIG_MAPPING[name]
    class_name = getattr(modeling_auto, TASKS[task])[name]
    if isinstance(class_name, tuple):
        class_name = class_name[0]
    package = configuration_auto.model_type_to_module_name(name)
    library = importlib.import_module(f"transformers.models.{package}")
    config = _tiny(config_class, overrides)
    if task == "causal" and hasattr(config, "is_decoder") and not config.is_encoder_decoder:
        config.is_decoder = True
    torch.manual_seed(0)
    return getattr(library, class_name)(config).float().train()


def _tiny(config_class: Any, overrides: dict[str, int]) -> Any:
    default = config_class()
    changed: dict[str, Any] = {}
    for key, value in overrides.items():
        if isinstance(getattr(default, key, None), int) and not isinstance(getattr(default, key), bool):
            changed[key] = value
    for key, value in default.to_dict().items():
        if isinstance(value, float) and ("drop" in key and "keep" not in key):
            changed[key] = 0.0
    for key in default.sub_configs if overrides.get("hidden_size") else ():
        part = getattr(default, key, None)
        if part is not None and hasattr(part, "to_dict"):
            changed[key] = _tiny(type(part), overrides).to_dict()
    config = config_class(**changed)
    config.use_cache = False
    return config


def _batches(
    task: str, module: Any, text_sizes: Sequence[tuple[int, int]], image_batches: Sequence[int]
) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    config = module.config
    if task == "image":
        size = getattr(config, "image_size", None) or 64
        height, width = (size, size) if isinstance(size, int) else size
        channels = getattr(config, "num_channels", 3)
        return [
            {"pixel_values": torch.randn(n, channels, height, width), "labels": torch.arange(n) % config.num_labels}
            for n in image_batches
        ]
    batches = []
    for batch, length in text_sizes:
        ids = torch.randint(3, VOCABULARY, (batch, length))
        mask = torch.ones_like(ids)
        mask[0, -3:] = 0
        labels = ids.masked_fill(mask == 0, -100)
        batches.append({"input_ids": ids, "attention_mask": mask, "labels": labels})
    return batches
