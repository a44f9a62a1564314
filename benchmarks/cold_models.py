"""The models whose first steps cold_start.py times: whole ones, deep and narrow ones, tiny ones of the zoo.

A name such as `bamba` that is none of `MODELS` is a causal architecture of transformers, tiny and random
(zoo_configs.py). Not here: the timing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import zoo_configs

__all__ = ["MODELS", "build"]

Batch = dict[str, torch.Tensor]
_NARROW = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}


def _bert(small: bool) -> Any:
    from transformers import BertConfig, BertForMaskedLM

    tiny = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return BertForMaskedLM(BertConfig(**tiny if small else {}))


def _gpt2(small: bool) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(**{"n_embd": 16, "n_layer": 1, "n_head": 2} if small else {}, use_cache=False))


def _llama(small: bool, use_cache: bool = True) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    layers = {"num_hidden_layers": 1 if small else 32, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**_NARROW, **layers, use_cache=use_cache))


def _llama_without_cache(small: bool) -> Any:
    return _llama(small, False)


def _qwen3_next(small: bool) -> Any:
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    linear |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
    experts = {**_EXPERTS, "num_experts": 8, "shared_expert_intermediate_size": 32}
    layers = {"num_hidden_layers": 4 if small else 48, "num_key_value_heads": 2, "head_dim": 16}
    return Qwen3NextForCausalLM(Qwen3NextConfig(**_NARROW, **layers, **linear, **experts))


def _deepseek(small: bool) -> Any:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    heads = {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
    experts = {**_EXPERTS, "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
    layers = {"num_hidden_layers": 2 if small else 61, "num_key_value_heads": 4}
    return DeepseekV3ForCausalLM(DeepseekV3Config(**_NARROW, **layers, **heads, **experts))


MODELS: dict[str, Callable[[bool], Any]] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "llama-32-layers": _llama,
    "llama-32-layers-no-cache": _llama_without_cache,
    "qwen3-next-48-layers": _qwen3_next,
    "deepseek-v3-61-layers": _deepseek,
}


def build(name: str, batch: int, length: int, small: bool) -> tuple[torch.nn.Module, list[Batch]]:
    """A model in training mode with random weights, and batches of this size and of another.

    Args:
        name: one of `MODELS`, or a causal architecture of transformers.
        batch, length: of the first batch; the other has one text more, of one and a half times the length.
        small: a layer or two of it, to try the harness.

    Raises:
        KeyError: there is no such architecture.
    """
    sizes = ((batch, length), (batch + 1, length * 3 // 2))
    if name not in MODELS:
        return zoo_configs.build("causal", name, sizes, ())
    model = MODELS[name](small).train()
    ids = [torch.randint(0, model.config.vocab_size, size) for size in sizes]
    return model, [{"input_ids": one, "labels": one} for one in ids]
