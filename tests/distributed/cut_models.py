"""Models of transformers, and some of our own, that are cut into stages from their graphs, and their training on ranks.

One process trains the same model on the same micro-batches, one after another. Not here: what is asserted
(test_cut_pipeline.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from ortmodule import Options, ORTModule
from ortmodule.distributed import ZeroPolicy, gathered, zero
from ortmodule.distributed.parallel import clip_grad_norm_, parallelize, whole_state_dict
from ortmodule.distributed.pipeline import Pipeline
from tests.distributed.models import batch
from tests.distributed.parallel import GPT, TENSOR, optimizer_of, trained_alone
from tests.distributed.training import distance

VOCABULARY = 61


def gpt2(layers: int = 4) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=layers, n_head=2, n_embd=32, vocab_size=VOCABULARY, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


def bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    return BertForMaskedLM(
        BertConfig(
            num_hidden_layers=4, num_attention_heads=2, hidden_size=32, intermediate_size=64, vocab_size=VOCABULARY,
            max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    return T5ForConditionalGeneration(
        T5Config(
            num_layers=2, num_decoder_layers=2, num_heads=2, d_model=32, d_kv=16, d_ff=64, vocab_size=VOCABULARY,
            dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0,
        )
    )  # fmt: skip


def divided() -> nn.Module:
    """One that `parallelize` divides, with the plan `TENSOR`."""
    return GPT(layers=3)


BUILDERS: dict[str, Callable[[], nn.Module]] = {"gpt2": gpt2, "bert": bert, "t5": t5, "divided": divided}


def batch_of(model: str, step: int, rank: int, rows: int) -> dict[str, torch.Tensor]:
    """What transformers' models are given: tokens, a mask that pads the last rows, and labels."""
    ids = batch(step, 0, rank, rows).remainder(VOCABULARY - 1) + 1
    if model == "divided":
        return {"ids": ids}
    mask = torch.ones_like(ids)
    mask[1::2, -3:] = 0
    given = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    if model == "t5":
        given["labels"] = ids.roll(1, 1)[:, :12].contiguous()
    return given


@dataclasses.dataclass(frozen=True)
class Case:
    """`data` x `pipe` x `tensor` ranks, `stages` in all; `zero`: its stage, 0: without."""

    model: str
    stages: int | tuple[str, ...] = 2
    data: int = 1
    pipe: int = 2
    tensor: int = 1
    micro_batches: int = 4
    zero: int = 0
    steps: int = 3
    clip: float = 0.5

    @property
    def world(self) -> int:
        return self.data * self.pipe * self.tensor


def loss_of(result: Any) -> torch.Tensor:
    return result if isinstance(result, torch.Tensor) else result.loss


def one_process(case: Case) -> tuple[list[float], dict[str, torch.Tensor]]:
    model = BUILDERS[case.model]()
    run = ORTModule(model, options=Options(fallback="error"))
    count = case.data * case.micro_batches

    def parts(step: int) -> Iterator[torch.Tensor]:
        for rank in range(case.data):
            given = batch_of(case.model, step, rank, 2 * case.micro_batches)
            for i in range(case.micro_batches):
                yield loss_of(run(**{k: v.chunk(case.micro_batches)[i] for k, v in given.items()})) / count

    return trained_alone(model, parts, case.steps, case.clip)


def on_rank(rank: int, case: Case) -> dict[str, Any]:
    """The same on this rank; "losses" are means over the data ranks, "state" is all ranks' together."""
    del rank
    shape = (case.data, case.pipe, case.tensor)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "pipe", "tensor"))
    data, rows = mesh.get_local_rank("data"), 2 * case.micro_batches
    built: nn.Module = ORTModule(BUILDERS[case.model](), options=Options(fallback="error"))
    if case.tensor > 1:
        built = parallelize(built, TENSOR, mesh["tensor"])
    pipeline = Pipeline(
        built, case.stages, None, case.micro_batches, mesh["pipe"], example=batch_of(case.model, 0, data, rows)
    )
    model, optimizer = pipeline.model, optimizer_of(pipeline.model)
    sharded: Any = None
    if case.zero:
        policy = ZeroPolicy(bucket_bytes=8 << 10, mesh=mesh["data"])
        model, sharded = zero(model, optimizer, stage=case.zero, policy=policy)
    losses = []
    for step in range(case.steps):
        (sharded or optimizer).zero_grad()
        loss = pipeline.step(batch_of(case.model, step, data, rows), optimizer=sharded)
        if case.clip:
            sharded.clip_grad_norm_(case.clip) if sharded else clip_grad_norm_(model, case.clip)
        (sharded or optimizer).step()
        mean = loss.double()
        dist.all_reduce(mean, group=mesh.get_group("data"))
        losses.append(mean.item() / case.data)
    with gathered(sharded) if sharded else contextlib.nullcontext():
        state = whole_state_dict(model) if case.tensor > 1 else {n: v.clone() for n, v in model.state_dict().items()}
    everyone: list[Any] = [None] * case.world
    dist.all_gather_object(everyone, state)
    return {
        "losses": losses,
        "states": everyone,
        "held": sum(p.numel() for p in pipeline.model.parameters()),
        "text": str(pipeline),
    }


def all_on_rank(rank: int, cases: list[Case]) -> list[dict[str, Any]]:
    return [on_rank(rank, case) for case in cases]


def distances(found: dict[str, Any], case: Case) -> tuple[float, float]:
    """Of a run's losses, and of its parameters, from those of one process: the largest relative ones. Copies on several
    ranks must be equal, bit by bit.
    """
    losses, state = one_process(case)
    whole: dict[str, torch.Tensor] = {}
    for one in found["states"]:
        for name, value in (one or {}).items():
            assert name not in whole or torch.equal(whole[name], value), f"copies of {name} differ"
            whole[name] = value
    names = [name for name, _ in BUILDERS[case.model]().named_parameters()]
    assert set(names) <= set(whole) <= set(state)
    by_loss = max(abs(a - b) / b for a, b in zip(found["losses"], losses, strict=True))
    return by_loss, distance(*(torch.cat([one[name].flatten() for name in names]) for one in (whole, state)))


def matrix(steps: int) -> dict[str, Case]:
    """Cases of the full matrix, by name."""
    out = {}
    for model in ("gpt2", "bert", "t5"):
        out |= {
            f"{model}, two stages": Case(model, 2, steps=steps),
            f"{model}, four stages": Case(model, 4, pipe=4, steps=steps),
            f"{model}, interleaved": Case(model, 4, steps=steps),
            **{f"{model} x zero {s}": Case(model, 2, data=2, zero=s, steps=steps) for s in (1, 2, 3)},
            f"{model}, interleaved x zero 2": Case(model, 4, data=2, zero=2, steps=steps),
        }
    out["tensor x pipeline"] = Case("divided", 2, tensor=2, steps=steps)
    out["tensor x interleaved"] = Case("divided", 4, tensor=2, steps=steps)
    out |= {f"tensor x pipeline x zero {s}": Case("divided", 2, 2, tensor=2, zero=s, steps=steps) for s in (1, 2, 3)}
    return out
