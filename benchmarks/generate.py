"""Decoding with a cache: `generate` of an ORTModule beside eager PyTorch's, in turns.

    python benchmarks/generate.py --threads 2 --rounds 5 --json out.json

GPT-2 small and a Llama-like model of 0.8 billion parameters with random weights, greedy, with transformers' own
`generate` and its growing cache. Both runners have the same module. Seconds are of all tokens, the prompt included;
`first_s` is the first call of all, with the captures. The tokens are compared (`equal`).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from common import facts, rounds, settings, table, write_json


def gpt2(small: bool) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    narrow = {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 100} if small else {}
    return GPT2LMHeadModel(GPT2Config(**narrow, bos_token_id=1, eos_token_id=2))


def llama(small: bool) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    wide = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 16, "num_attention_heads": 32,
            "num_key_value_heads": 4, "vocab_size": 32000}  # fmt: skip
    narrow = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "vocab_size": 100}  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**(narrow if small else wide)))


MODELS: dict[str, Callable[[bool], Any]] = {"gpt2": gpt2, "llama": llama}


def measure(name: str, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    from ortmodule import ORTModule

    torch.manual_seed(0)
    eager = MODELS[name](args.small).eval()
    model = ORTModule(eager)
    ids = torch.randint(3, eager.config.vocab_size, (batch, args.prompt))

    def seconds(runner: Any) -> tuple[float, torch.Tensor]:
        start = time.perf_counter()
        tokens = runner.generate(
            ids, max_new_tokens=args.tokens, min_new_tokens=args.tokens, do_sample=False, pad_token_id=0
        )
        return time.perf_counter() - start, tokens

    eager_first_s, expected = seconds(eager)
    first_s, found = seconds(model)
    equal = torch.equal(expected, found)
    for _ in range(args.warm):
        seconds(model)
    taken: dict[str, list[float]] = {"eager": [], "ortmodule": []}
    for _ in rounds(args.rounds):
        for runner, module in (("eager", eager), ("ortmodule", model)):
            time_s, tokens = seconds(module)
            equal = equal and torch.equal(expected, tokens)
            taken[runner].append(time_s)
    medians = {f"{runner}_s": statistics.median(times) for runner, times in taken.items()}
    report = model.report()
    return {"model": name, "parameters": sum(p.numel() for p in eager.parameters()), "batch": batch, **medians,
            "speedup": medians["eager_s"] / medians["ortmodule_s"], "eager_first_s": eager_first_s, "first_s": first_s,
            "equal": equal, "runs": sum(session.runs for session in report.sessions), "fallback": report.fallback,
            "exports": [e.reason for e in report.exports]}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=lambda s: s.split(","), default=list(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--batches", type=lambda s: [int(b) for b in s.split(",")], default=[1, 8])
    parser.add_argument("--prompt", type=int, default=32, help="tokens given")
    parser.add_argument("--tokens", type=int, default=64, help="tokens made")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=int, default=1, help="further calls before the first round")
    parser.add_argument("--small", action="store_true", help="narrow networks, to try the harness")
    parser.add_argument("--json", metavar="OUT")
    args = parser.parse_args()
    if unknown := set(args.models) - MODELS.keys():
        parser.error(f"unknown: {', '.join(unknown)}")
    torch.set_num_threads(args.threads)
    rows = [measure(name, batch, args) for name in args.models for batch in args.batches]
    header = ("model", "batch", "eager s", "ortmodule s", "eager / ortmodule", "first s", "equal")
    cells = [
        (row["model"], str(row["batch"]), *(f"{row[k]:.2f}" for k in ("eager_s", "ortmodule_s", "speedup", "first_s")),
         str(row["equal"]))
        for row in rows
    ]  # fmt: skip
    print(table(header, cells))
    if args.json:
        write_json(args.json, {"environment": facts(threads=args.threads), "arguments": settings(args), "rows": rows})
    return int(not all(row["equal"] and row["runs"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
