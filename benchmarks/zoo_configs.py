"""Tiny random models of the transformers package, made from each architecture's own configuration class.

A configuration's sizes are recognized by their usual names (`_SIZES`); what goes by other names, or has to fit together
in another way, is listed per model type in zoo_sizes.py. Where the result does not build or run, further attempts also
fill sizes that the configuration leaves open, and at last change only the number of layers and the vocabulary.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from transformers.models.auto import configuration_auto, modeling_auto
from zoo_sizes import BY_TYPE

TASKS = {
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "image": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
}
VOCABULARY = 99
LARGEST = 20_000_000  # parameters; a "tiny" model beyond has sizes that were not recognized

_LAYERS = dict.fromkeys(
    ("num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers num_encoder_layers "
     "num_decoder_layers num_hidden_groups num_blocks").split(), 2,
)  # fmt: skip
_LAYERS["num_hidden_groups"] = 1
_WORDS = {
    **dict.fromkeys("vocab_size src_vocab_size tgt_vocab_size vocab_size_per_layer_input".split(), VOCABULARY),
    "entity_vocab_size": 7,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
_SIZES: dict[str, int] = {
    **dict.fromkeys(
        "hidden_size d_model n_embd dim embedding_size emb_dim d_embed embedding_dim input_embedding_size "
        "output_embedding_size entity_emb_size d_latents".split(), 32,
    ),
    **dict.fromkeys(
        ("num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads "
         "num_encoder_attention_heads num_decoder_attention_heads attention_heads "
         "num_self_attention_heads num_cross_attention_heads swa_num_attention_heads linear_num_heads "
         "linear_num_value_heads index_n_heads").split(), 4,
    ),
    **dict.fromkeys("num_key_value_heads num_kv_heads swa_num_key_value_heads linear_num_key_heads".split(), 2),
    **dict.fromkeys(
        ("intermediate_size d_ff ffn_dim encoder_ffn_dim decoder_ffn_dim n_inner d_inner hidden_dim dff dim_ff "
         "ffn_hidden_size feed_forward_size dense_intermediate_size intermediate_size_mlp").split(), 64,
    ),
    **dict.fromkeys(
        ("d_kv head_dim d_head qk_rope_head_dim qk_nope_head_dim v_head_dim attention_head_size dim_head swa_head_dim "
         "linear_head_dim linear_key_head_dim linear_value_head_dim index_head_dim rotary_dim").split(), 8,
    ),
    **dict.fromkeys("q_lora_rank kv_lora_rank o_lora_rank".split(), 16),
    **dict.fromkeys(
        ("max_position_embeddings n_positions n_ctx max_target_positions max_source_positions "
         "max_encoder_position_embeddings max_decoder_position_embeddings").split(), 128,
    ),
    **dict.fromkeys("num_experts num_local_experts n_routed_experts moe_num_experts".split(), 4),
    **dict.fromkeys("num_experts_per_tok num_experts_per_token moe_k moe_topk".split(), 2),
    **dict.fromkeys(
        ("moe_intermediate_size shared_expert_intermediate_size shared_experts_intermediate_size "
         "shared_intermediate_size moe_shared_expert_intermediate_size expert_ffn_hidden_size").split(), 32,
    ),
    **dict.fromkeys(
        "n_group topk_group first_k_dense_replace n_shared_experts num_expert_group zero_expert_num".split(), 1,
    ),
    **dict.fromkeys("hidden_size_per_layer_input laurel_rank embedding_rank d_rel bottleneck_size".split(), 16),
    "image_size": 32, "patch_size": 8, "num_labels": 5, "state_size": 8, "conv_kernel": 4, "lru_width": 32,
    "attention_window": 8, "block_size": 8, "chunk_length": 8, "mamba_d_state": 8, "mamba_n_heads": 8,
    "mamba_d_head": 8, "mamba_n_groups": 1, "sliding_window": 16, "index_topk": 8, "o_groups": 2, "n_groups": 2,
    "ssm_state_size": 8, "mamba_num_heads": 8, "mamba_head_dim": 8, "mamba_chunk_size": 16, "chunk_size": 16,
    "num_latents": 16, "num_self_attends_per_block": 2, "attention_chunk_size": 16, "router_hidden_size": 32,
}  # fmt: skip
# What a default configuration may leave to the checkpoint; filled in by the second attempt.
_OFTEN_OPEN = ("vocab_size", "num_key_value_heads", "head_dim", "num_experts", "n_routed_experts", "n_shared_experts",
               "num_experts_per_tok", "pad_token_id", "bos_token_id", "eos_token_id",
               "decoder_start_token_id")  # fmt: skip
_PER_LAYER = ("layer_types", "mlp_layer_types", "intermediate_size", "activation_sparsity_pattern", "layers_block_type")


def names(task: str) -> list[str]:
    """Model types that have a class for the task."""
    mapping = getattr(modeling_auto, TASKS[task])
    return sorted(name for name in mapping if name in configuration_auto.CONFIG_MAPPING_NAMES)


def build(
    task: str, name: str, text_sizes: Sequence[tuple[int, int]], image_batches: Sequence[int]
) -> tuple[torch.nn.Module, list[dict[str, torch.Tensor]]]:
    """A model in training mode without dropout, and one batch per size.

    Raises:
        Exception: what the architecture raises when the likeliest tiny model is built or run.
    """
    first: Exception | None = None
    everything = {**_LAYERS, **_WORDS, **_SIZES}
    for overrides, fill in ((everything, ()), (everything, _OFTEN_OPEN), ({**_LAYERS, **_WORDS}, ())):
        try:
            _refuse_large(task, name, overrides, fill)
            module = _model(task, name, overrides, fill)
            batches = _batches(task, module, text_sizes, image_batches)
            for batch in batches:
                module(**batch).loss.backward()
            return _model(task, name, overrides, fill), batches  # fresh: some keep a state of the step before
        except Exception as error:
            first = first or error
    assert first is not None
    raise first


def _refuse_large(task: str, name: str, overrides: dict[str, int], fill: Sequence[str]) -> None:
    """Counts the parameters without making them."""
    try:
        with torch.device("meta"):
            parameters = sum(p.numel() for p in _model(task, name, overrides, fill).parameters())
    except Exception:
        return  # some models compute with numbers as they are built; a real attempt says what is wrong
    if parameters > LARGEST:
        raise ValueError(f"the smallest model that could be made has {parameters / 1e6:.0f} million parameters")


def _model(task: str, name: str, overrides: dict[str, int], fill: Sequence[str]) -> torch.nn.Module:
    config_class = configuration_auto.CONFIG_MAPPING[name]
    class_name = getattr(modeling_auto, TASKS[task])[name]
    if isinstance(class_name, tuple):
        class_name = class_name[0]
    package = importlib.import_module(f"transformers.models.{configuration_auto.model_type_to_module_name(name)}")
    model_class = getattr(package, class_name, None) or getattr(transformers, class_name)
    config = _tiny(config_class, overrides, fill)
    if not isinstance(config, model_class.config_class):  # the text part of a model for several media
        parts = [getattr(config, key, None) for key in config.sub_configs]
        config = next((part for part in parts if isinstance(part, model_class.config_class)), config)
    if task == "causal" and hasattr(config, "is_decoder") and not config.is_encoder_decoder:
        config.is_decoder = True
    torch.manual_seed(0)
    return model_class(config).float().train()


def _tiny(config_class: Any, overrides: dict[str, int], fill: Sequence[str]) -> Any:
    default = config_class()
    values = default.to_dict()
    changed: dict[str, Any] = {}
    sizes = {**overrides, **(BY_TYPE.get(default.model_type, {}) if "hidden_size" in overrides else {})}
    for key, value in overrides.items():
        if isinstance(getattr(config_class, key, None), property):
            continue  # derived from other sizes
        given = values[key] if key in values else getattr(default, key, None)
        if isinstance(given, int) and not isinstance(given, bool) or (key in fill and given is None):
            changed[key] = value
    for key, value in values.items():
        if "drop" in key and "keep" not in key:
            if isinstance(value, float):
                changed[key] = 0.0
            elif isinstance(value, list) and value and isinstance(value[0], float):
                changed[key] = [0.0] * len(value)
    if "kv_lora_rank" in changed:  # heads that share one latent are not grouped
        changed["num_key_value_heads"] = changed["num_attention_heads"]
    changed.update(_kept_layers(values, changed))
    for key in default.sub_configs if "hidden_size" in overrides else ():
        part = getattr(default, key, None)
        if part is not None and hasattr(part, "to_dict"):
            changed[key] = _tiny(type(part), overrides, fill).to_dict()
    changed.update({key: value for key, value in sizes.items() if key not in overrides or overrides[key] != value})
    config = config_class(**changed)
    config.use_cache = False
    return config


def _kept_layers(values: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    """Lists with one element per layer, cut to two layers of different kinds where there are several."""
    total = values.get("num_hidden_layers")
    lists = {k: values[k] for k in _PER_LAYER if isinstance(values.get(k), list) and len(values[k]) == total}
    if not lists or changed.get("num_hidden_layers") != 2:
        return {}
    kinds = next((lists[k] for k in ("layer_types", "layers_block_type", "mlp_layer_types") if k in lists), None)
    second = next((i for i, kind in enumerate(kinds or ()) if kind != kinds[0]), 1)
    cut: dict[str, Any] = {k: [v[0], v[second]] for k, v in lists.items()}
    if "intermediate_size" in cut:
        cut["intermediate_size"] = [64, 64]
    if values.get("per_layer_config"):
        cut["per_layer_config"] = {}
    return cut


def _batches(
    task: str, module: Any, text_sizes: Sequence[tuple[int, int]], image_batches: Sequence[int]
) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    config = module.config
    if task == "image":
        vision = getattr(config, "vision_config", config)
        size = getattr(vision, "image_size", None) or 64
        height, width = (size, size) if isinstance(size, int) else size
        channels = getattr(vision, "num_channels", 3)
        if getattr(config, "model_type", "") == "imagegpt":  # pixels are words there
            return [
                {
                    "input_ids": torch.randint(config.vocab_size - 1, (n, 64)),
                    "labels": torch.arange(n) % config.num_labels,
                }
                for n in image_batches
            ]
        return [
            {"pixel_values": torch.randn(n, channels, height, width), "labels": torch.arange(n) % config.num_labels}
            for n in image_batches
        ]
    batches = []
    for batch, length in text_sizes:
        if config.model_type == "perceiver":  # as many logits as there are positions, however long the text
            length = config.max_position_embeddings
        ids = torch.randint(3, VOCABULARY, (batch, length))
        mask = torch.ones_like(ids)
        mask[0, -3:] = 0
        labels = ids.masked_fill(mask == 0, -100)
        if hasattr(config, "num_codebooks") and "musicgen" in config.model_type:  # one label per codebook
            labels = labels.unsqueeze(-1)
        batches.append({"input_ids": ids, "attention_mask": mask, "labels": labels})
        if config.model_type == "git":  # a language model that counts its image's tokens even where it is given none
            batches[-1]["pixel_values"] = torch.randn(batch, 3, *[config.vision_config.image_size] * 2)
    return batches
