"""`generate` of transformers' models on a wrapper: eager's tokens, from graphs that take a cache of any size."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from ortmodule import ORTModule

SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
IDS = {"vocab_size": 100, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def gpt2() -> Any:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2, n_embd=32, n_head=4, **IDS))


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))


def mistral() -> Any:
    return transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, sliding_window=8))


def mixtral() -> Any:
    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**SIZES, num_local_experts=4, sliding_window=None)
    )


def t5() -> Any:
    sizes = {"d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 4, "d_kv": 8, "decoder_start_token_id": 0}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **IDS))


def bart() -> Any:
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
             "encoder_attention_heads": 4, "decoder_attention_heads": 4}  # fmt: skip
    return transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes, **IDS))


FAMILIES: dict[str, Callable[[], Any]] = {
    "gpt2": gpt2, "llama": llama, "mistral": mistral, "mixtral": mixtral, "t5": t5, "bart": bart,
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"do_sample": True},
    "beams": {"num_beams": 3},
    "static cache": {"cache_implementation": "static"},
    "without a cache": {"use_cache": False},
    "scores": {"return_dict_in_generate": True, "output_scores": True},
}


def made(family: str) -> tuple[Any, ORTModule]:
    torch.manual_seed(0)
    model = FAMILIES[family]().eval()
    with torch.no_grad():  # apart enough that rounding never decides
        for parameter in model.parameters():
            parameter.mul_(4)
    return model, ORTModule(copy.deepcopy(model))


def generated(model: Any, ids: torch.Tensor, **how: Any) -> Any:
    torch.manual_seed(1)
    settings = {"max_new_tokens": 10, "min_new_tokens": 10, "do_sample": False, **how}
    return model.generate(ids, attention_mask=(ids != 0).long(), **settings)


def prompt(length: int, rows: int = 2) -> torch.Tensor:
    ids = torch.randint(3, 100, (rows, length))
    ids[0, :2] = 0  # padded on the left
    return ids


def runs(wrapped: ORTModule) -> int:
    return sum(session.runs for session in wrapped.report().sessions)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_generate_gives_eagers_tokens(family: str, way: str) -> None:
    model, wrapped = made(family)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="calls without gradients")
        for length in (5, 5, 8, 9):
            ids = prompt(length)
            expected, found = generated(model, ids, **WAYS[way]), generated(wrapped, ids, **WAYS[way])
            tokens = [getattr(result, "sequences", result) for result in (expected, found)]
            assert torch.equal(*tokens)
            if way == "scores":
                torch.testing.assert_close(
                    torch.stack(found.scores), torch.stack(expected.scores), rtol=5e-3, atol=1e-3
                )


@pytest.mark.parametrize("family", FAMILIES)
def test_decoding_runs_in_the_engine(family: str) -> None:
    _, wrapped = made(family)
    ids = prompt(5)
    generated(wrapped, ids)
    assert not wrapped.report().exports, "a short text is done before its graphs would be"
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(4):
            before = runs(wrapped)
            generated(wrapped, ids)
    assert runs(wrapped) - before == 10  # a call a token
    assert sum(fast.runs for fast in wrapped._manager.fast_calls) >= 10


def test_training_goes_on_after_decoding() -> None:
    model, wrapped = made("llama")
    ids = prompt(6)
    for _ in range(3):
        generated(wrapped, ids)
        for one in (model, wrapped):
            one.train()
            one.zero_grad()
            one(input_ids=ids, labels=ids).loss.backward()
            one.eval()
        for expected, found in zip(model.parameters(), wrapped.parameters(), strict=True):
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-3, atol=1e-4)
    assert wrapped.report().fallback == "none"


@pytest.mark.parametrize("around", ["inference mode", "autocast"])
def test_generate_within(around: str) -> None:
    model, wrapped = made("llama")
    ids = prompt(5)
    inside = torch.inference_mode() if around == "inference mode" else torch.autocast("cpu", torch.bfloat16)
    for _ in range(4):
        with inside:
            expected = generated(model, ids, return_dict_in_generate=True, output_logits=True)
            found = generated(wrapped, ids, return_dict_in_generate=True, output_logits=True)
        if around == "inference mode":
            assert torch.equal(found.sequences, expected.sequences)
        else:  # tokens of equal scores in bfloat16 may change places
            torch.testing.assert_close(found.logits[0], expected.logits[0], rtol=0.1, atol=0.3)


@torch.no_grad()
def test_a_cache_goes_from_eager_to_the_engine_and_back() -> None:
    model, wrapped = made("llama")
    ids = prompt(7)
    caches = [transformers.DynamicCache(config=model.config) for _ in range(2)]
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    for begin, end in ((0, 3), (3, 5), (5, 6), (6, 7)):
        part = ids[:, begin:end]
        expected = model(input_ids=part, use_cache=True, **{name: caches[0]}).logits
        runner = wrapped if begin in (3, 6) else model
        found = runner(input_ids=part, use_cache=True, **{name: caches[1]})
        torch.testing.assert_close(found.logits, expected, rtol=1e-3, atol=1e-3)
        assert getattr(found, name) is caches[1]
    assert caches[1].get_seq_length() == 7
