"""Sizes of tiny models that have names of their own, or have to fit together, by model type.

What goes by a usual name is in zoo_configs.py.
"""

from __future__ import annotations

from typing import Any

__all__ = ["BY_TYPE"]

_STAGES: dict[str, Any] = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
_WINDOWS: dict[str, Any] = {
    "image_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
    "num_layers": 2, "hidden_size": 32,
}  # fmt: skip
_PYRAMID: dict[str, Any] = {
    "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4], "image_size": 64,
}  # fmt: skip

_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}

BY_TYPE: dict[str, dict[str, Any]] = {
    # images
    "bit": {**_STAGES, "embedding_size": 8, "num_groups": 4, "image_size": 64},
    "convnext": {**_STAGES, "num_hidden_layers": 4, "patch_size": 4, "image_size": 64},
    "convnextv2": {**_STAGES, "num_hidden_layers": 4, "patch_size": 4, "image_size": 64},
    "cvt": {"embed_dim": [8, 16, 32], "num_heads": [1, 2, 4], "depth": [1, 2, 3], "image_size": 64},
    "donut-swin": _WINDOWS,
    "efficientnet": {
        "image_size": 32, "in_channels": [32, 8, 16], "out_channels": [8, 16, 24], "kernel_sizes": [3, 3, 5],
        "strides": [1, 2, 2], "num_block_repeats": [1, 1, 2], "expand_ratios": [1, 2, 2], "hidden_dim": 1280,
        "width_coefficient": 1.0, "depth_coefficient": 1.0,
    },
    "focalnet": {
        "image_size": 32, "patch_size": 4, "embed_dim": 16, "hidden_sizes": [16, 32], "depths": [1, 2],
        "focal_levels": [2, 2], "focal_windows": [3, 3],
    },
    "hgnet_v2": {
        "embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "stem_channels": [3, 8, 8],
        "stage_in_channels": [8, 8, 16, 24], "stage_mid_channels": [8, 8, 8, 8], "stage_out_channels": [8, 16, 24, 32],
        "stage_num_blocks": [1, 1, 1, 1], "stage_numb_of_layers": [2, 2, 2, 2], "image_size": 64,
    },
    "hiera": {
        "embed_dim": 8, "image_size": [64, 64], "depths": [1, 1, 2, 1], "num_heads": [1, 2, 2, 4], "hidden_size": 64,
    },
    "levit": {
        "image_size": 64, "hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 2, 4], "depths": [1, 1, 1],
        "key_dim": [8, 8, 8], "patch_size": 16,
        "down_ops": [["Subsample", 8, 2, 4, 2, 2], ["Subsample", 8, 3, 4, 2, 2]],
    },
    "mobilenet_v1": {"depth_multiplier": 0.125, "image_size": 64},
    "mobilenet_v2": {"depth_multiplier": 0.125, "image_size": 64, "finegrained_output": False},
    "mobilevit": {
        "image_size": 64, "patch_size": 2, "hidden_sizes": [16, 24, 32],
        "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32],
    },
    "mobilevitv2": {"image_size": 64, "patch_size": 2, "base_attn_unit_dims": [16, 24, 32], "width_multiplier": 0.25,
                    "n_attn_blocks": [1, 1, 1]},
    "perceiver": {"num_self_attention_heads": 4, "num_cross_attention_heads": 1, "image_size": 32, "d_model": 32},
    "poolformer": {**_STAGES, "image_size": 64},
    "pp_lcnet": {
        "block_configs": [
            [[3, 16, 16, 1, False]], [[3, 16, 16, 2, False]], [[3, 16, 24, 2, False]], [[3, 24, 24, 2, False]],
            [[5, 24, 32, 2, True]],
        ],
        "class_expand": 32, "image_size": 64,
    },
    "pvt": {**_PYRAMID, "patch_sizes": [4, 2, 2, 2], "strides": [4, 2, 2, 2]},
    "pvt_v2": _PYRAMID,
    "regnet": {**_STAGES, "embedding_size": 8, "groups_width": 8, "image_size": 64},
    "resnet": {**_STAGES, "embedding_size": 8, "image_size": 64},
    "segformer": _PYRAMID,
    "swiftformer": {"image_size": 64, "depths": [1, 1, 2, 1], "embed_dims": [8, 16, 24, 32], "mlp_ratio": 2},
    "swin": _WINDOWS,
    "swinv2": {**_WINDOWS, "pretrained_window_sizes": [0, 0]},
    "textnet": {
        "image_size": [64, 64], "stem_out_channels": 8, "hidden_sizes": [8, 8, 16, 24, 32],
        "conv_layer_kernel_sizes": [[[3, 3]], [[3, 3], [1, 3]], [[3, 3], [3, 1]], [[3, 3]]],
        "conv_layer_strides": [[1], [2, 1], [2, 1], [2]],
    },
    # text
    "blt": {"encoder_hash_byte_group_vocab": 50, "encoder_hash_byte_group_size": [3, 4]},
    "blt_patcher": {"hidden_size": 32},
    "blt_local_encoder": {"hidden_size_global": 32},
    "blt_local_decoder": {"hidden_size_global": 32},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE},
    },
    "cpmant": {"prompt_length": 8, "position_bias_num_buckets": 32},
    "dbrx": {"ffn_config": {"hidden_size": 32, "ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
             "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_v4": {"num_key_value_heads": 1, "qk_rope_head_dim": 8, "head_dim": 16},
    "dots3_note_audio_encoder": {"adapter_input_size": 32, "adapter_out_dim": 32},
    "dots3_note_vision_encoder": {"adapter_in_dim": 32, "adapter_out_dim": 32},
    "dots3_note_text": {"num_key_value_heads": 4, "head_dim": 16},
    "encoder-decoder": {"decoder_start_token_id": 1, "pad_token_id": 0},
    "esmc": {"num_key_value_heads": 4},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8},
    "funnel": {"block_sizes": [1, 1], "block_repeats": [1, 1], "num_decoder_layers": 1},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 16},
    "inkling2_text": {"rel_extent": 64, "sliding_window_size": 16},
    "inkling_text": {"rel_extent": 64, "sliding_window_size": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 16},
    "musicgen_decoder": {"num_codebooks": 1},
    "musicgen_melody_decoder": {"num_codebooks": 1},
    "nemo_speechlm": {"chunk_length": 500},
    "neomme": {"head_dim": 16},
    "nemotron_h": {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"], "n_groups": 2},
    "prophetnet": {"num_buckets": 8, "relative_max_distance": 32},
    "qwen4_exp_text": {
        "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8,
        "indexer_compress_ratio": 2, "ngram_vocab_size_base": 100, "split_ngram_parts": 4, "ple_embed_dim": 16,
    },
    "qwen3_asr_encoder": {"downsample_hidden_size": 16, "output_dim": 32},
    "reformer": {
        "axial_pos_embds": False,
        "axial_pos_shape": [8, 16], "axial_pos_embds_dim": [16, 16], "local_attn_chunk_length": 3,
        "lsh_attn_chunk_length": 3, "attn_layers": ["local", "lsh"], "feed_forward_size": 64, "hash_seed": 0,
        "num_buckets": 4,
    },
    "roc_bert": {
        "pronunciation_embed_dim": 16, "pronunciation_vocab_size": 99, "shape_embed_dim": 16, "shape_vocab_size": 99,
    },
    "vibevoice_acoustic_tokenizer_encoder": {"num_filters": 4, "depths": [1, 1], "downsampling_ratios": [2]},
    "xlnet": {"mem_len": None},
    "xmod": {"default_language": "en_XX"},
    "xlstm": {"num_heads": 4, "chunk_size": 16, "max_inference_chunksize": 16, "qk_dim_factor": 0.5},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2, "num_hidden_layers": 4, "attention_hidden_size": 64,
        "attention_head_dim": 16, "mamba_dt_rank": 4, "n_mamba_heads": 2, "num_key_value_heads": 4,
    },
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"], "attention_hidden_size": 64, "attention_head_dim": 16,
        "kv_channels": 8, "adapter_rank": 8, "mamba_headdim": 8, "n_mamba_heads": 8, "num_query_groups": 4,
        "mamba_ngroups": 1, "num_key_value_heads": 4, "hybrid_layer_ids": [1],
    },
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
