"""Models that are divided among ranks train as one process does; plans are checked, proposed and printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from ortmodule import Options, ORTModule
from ortmodule.distributed import CheckpointError, ZeroPolicy, consolidate, load_checkpoint, save_checkpoint, zero
from ortmodule.distributed.parallel import (
    Column,
    Divide,
    Experts,
    GroupRanks,
    Plan,
    Row,
    Sequence,
    Vocabulary,
    VocabularyLoss,
    load_whole_state_dict,
    parallelize,
    propose_plan,
    vocabulary_cross_entropy,
    whole_state_dict,
)
from ortmodule.distributed.parallel.division import Division
from ortmodule.errors import InvalidArgumentError, ORTModuleError
from tests.distributed import models
from tests.distributed.models import batch
from tests.distributed.parallel import (
    EXPERT,
    EXPERT_SEQUENCE,
    GPT,
    SEQUENCE,
    TENSOR,
    WHOLE,
    Case,
    all_on_rank,
    distances,
    one_process,
    optimizer_of,
)
from tests.distributed.spawn import of_cases, of_checks, on_ranks, once

ON_TWO = {
    "tensor": Case(TENSOR, steps=3),
    "tensor in PyTorch": Case(TENSOR, steps=3, engine="eager"),
    "sequence": Case(SEQUENCE, steps=3),
    "experts": Case(EXPERT, steps=3, experts=True),
    "experts and sequence": Case(EXPERT_SEQUENCE, steps=3, experts=True),
}
ON_FOUR = {
    "tensor x zero 2": Case(TENSOR, data=2, stage=2, steps=3),
    "sequence x zero 3": Case(SEQUENCE, data=2, stage=3, steps=3),
    "whole in between, four ways": Case(WHOLE, tensor=4, steps=3),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return of_cases(tmp_path_factory, "parallel", all_on_rank, {2: ON_TWO, 4: ON_FOUR})


@pytest.mark.parametrize("name", [*ON_TWO, *ON_FOUR])
def test_training_is_that_of_one_process(found: dict[str, Any], name: str) -> None:
    case = {**ON_TWO, **ON_FOUR}[name]
    by_loss, by_parameter = distances(found[name][0], one_process(case))
    assert by_loss <= 1e-6
    assert by_parameter <= 1e-6
    assert all(one["losses"] == found[name][0]["losses"] for one in found[name]), "every rank has the same loss"


def test_each_rank_holds_its_part(found: dict[str, Any]) -> None:
    whole = sum(p.numel() for p in GPT().parameters())
    assert found["tensor"][0]["held"] < 0.56 * whole
    assert found["whole in between, four ways"][3]["held"] < 0.33 * whole


# -- plans -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("styles", "world", "words"),
    [
        ({"block.*.fc": Column()}, 2, "'block.*.fc' matches no module of GPT: did you mean blocks.*.fc"),
        ({"blocks.*.fc": Column(), "blocks.0.*": Row()}, 2, "'blocks.*.fc' and 'blocks.0.*' both match blocks.0.fc"),
        ({"blocks.*.fc": Column()}, 3, "blocks.0.fc (Column): 128 outputs cannot be divided among 3 ranks"),
        ({"blocks.*.qkv": Column(parts=5)}, 2, "96 outputs of 5 blocks cannot be divided among 2 ranks"),
        ({"blocks.*.out": Row()}, 3, "blocks.0.out (Row): 128 inputs cannot be divided among 3 ranks"),
        ({"ln_f": Column()}, 2, "ln_f (Column): expected an nn.Linear, got LayerNorm"),
        ({"ln_f": Vocabulary()}, 2, "expected an nn.Embedding or nn.Linear, got LayerNorm"),
        ({"blocks.*": Divide(("experts",))}, 2, "Block has no number 'experts'"),
        ({"blocks.*": Divide(("heads",))}, 2, "blocks.0 (Divide): Block has no number 'heads'"),
        ({"blocks.*": Experts()}, 2, "expected a MixtureOfExperts, got Block"),
    ],
    ids=range(10),
)
def test_a_plan_that_does_not_fit_is_refused(styles: Any, world: int, words: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        Plan(styles).check(GPT(), world)
    assert words in str(error.value)


def test_a_plan_is_data() -> None:
    plan = Plan({**SEQUENCE, "blocks.*": (Divide(("heads",)), Sequence())})
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == Plan(
        {name: style if isinstance(style, tuple) else (style,) for name, style in plan.styles.items()}
    )
    text = Plan(TENSOR).describe(GPT(), 2)
    assert "blocks.1.qkv   Column(parts=3)  3,168 -> 1,584" in text
    with pytest.raises(InvalidArgumentError, match="no style"):
        Plan.from_dict({"a": [{"style": "Diagonal"}]})
    with pytest.raises(InvalidArgumentError, match="no style"):
        Plan({"a": "Column"})  # type: ignore[dict-item]


@pytest.mark.parametrize("shape", [(12, 5), (13, 2), (12,)])
@pytest.mark.parametrize("world", [2, 4])
def test_parts_are_of_the_whole(shape: tuple[int, ...], world: int) -> None:
    whole = torch.randn(shape)
    for parts in (1, 3):
        if shape[0] % (world * parts) == 0:
            division = Division(0, shape[0], parts)
            assert torch.equal(division.whole([division.part(whole, world, r) for r in range(world)]), whole)
    division = Division(0, shape[0], fill=True)
    assert torch.equal(division.whole([division.part(whole, world, r) for r in range(world)]), whole)


def test_a_proposal_pairs_linears_by_the_dataflow_and_prices_what_moves() -> None:
    ids = batch(0, 0, 0)
    size = sum(p.nbytes for p in GPT().parameters())
    proposal = propose_plan(GPT(), (ids,), ranks=4, memory=1.6 * size, bandwidth=1e9, tokens=64)
    assert proposal.choice.fits
    assert {c.tensor for c in proposal.others} == {1, 2, 4}
    alone = propose_plan(GPT(), (ids,), ranks=4, memory=1e9, bandwidth=1e9, tokens=1 << 20)
    assert alone.choice.tensor == 1, "activations cost more than gradients"
    assert "no module is divided" in str(alone)
    small = propose_plan(GPT(), (ids,), ranks=4, memory=1e9, bandwidth=1e9, tokens=1)
    assert small.choice.tensor == 4
    assert small.plan.styles["blocks.*.qkv"] == Column(parts=3)
    assert small.plan.styles["blocks.*.proj"] == Row()
    assert small.plan.styles["blocks.*.fc"] == Column()
    with pytest.raises(InvalidArgumentError, match="does not fit"):
        propose_plan(GPT(), (ids,), ranks=4, memory=1e3, bandwidth=1e9, tokens=64)


def test_code_that_asks_for_all_heads_is_not_divided() -> None:
    proposal = propose_plan(models.GPT(1), (batch(0, 0, 0),), ranks=2, memory=1e9, bandwidth=1e9, tokens=1)
    assert "blocks.*.fc" in proposal.plan.styles
    assert "blocks.*.qkv" not in proposal.plan.styles
    assert any("blocks.*.qkv and blocks.*.proj" in note for note in proposal.notes)


# -- on ranks ----------------------------------------------------------------------------------------------------------


def check_the_graph_has_the_collectives(rank: int, folder: str) -> None:
    del rank, folder
    model = parallelize(ORTModule(GPT(1), options=Options(fallback="error")), TENSOR)
    model(batch(0, 0, 0)).backward()
    (transition,) = model._manager.transitions()
    forward, backward = ([s["op"].split("::")[-1] for s in plan["steps"]] for plan in transition.session.plans())
    assert forward.count("AllReduce") == 5, "the words, two layers, the largest score and the sums"
    assert backward.count("AllReduce") == 3, "two layers and the head"
    assert not any("ATen" in op for op in forward + backward)


def check_vocabulary_loss(rank: int, folder: str) -> None:
    del folder
    torch.manual_seed(0)
    scores, target = torch.randn(10, 12), torch.randint(12, (10,))
    target[3] = -100
    ranks = GroupRanks.of(dist.group.WORLD)
    for reduction in ("mean", "sum", "none"):
        whole = scores.clone().requires_grad_()
        own = scores.chunk(2, 1)[rank].clone().requires_grad_()
        expected = nn.functional.cross_entropy(whole, target, reduction=reduction)
        got = vocabulary_cross_entropy(own, target, ranks, reduction=reduction)
        torch.testing.assert_close(got, expected)
        (expected.sum() * 3).backward()
        (got.sum() * 3).backward()
        torch.testing.assert_close(own.grad, whole.grad.chunk(2, 1)[rank])


def check_what_is_no_word_is_refused_on_every_rank(rank: int, folder: str) -> None:
    del folder
    for wrapped in (False, True):
        words = parallelize(nn.Sequential(nn.Embedding(5, 3)), {"0": Vocabulary()})
        model = ORTModule(words, options=Options(fallback="error")) if wrapped else words
        model(torch.tensor([0, 4])).sum().backward()
        for none in (-1, 5):
            with pytest.raises((IndexError, RuntimeError), match="range|bounds|index"):
                model(torch.tensor([0, none])).sum().backward()
            dist.barrier()
    ranks = GroupRanks.of(dist.group.WORLD)
    for none in (-1, 6):
        with pytest.raises((IndexError, RuntimeError), match="range|bounds|index"):
            vocabulary_cross_entropy(torch.randn(2, 3), torch.tensor([0, none]), ranks)


def check_state_goes_there_and_back(rank: int, folder: str) -> None:
    del folder
    model = parallelize(GPT(), TENSOR)
    whole = whole_state_dict(model)
    assert (whole is None) == (rank == 1)
    expected = GPT().state_dict()
    if whole is not None:
        assert all(torch.equal(whole[name], value) for name, value in expected.items())
    other = {name: torch.randn_like(value) for name, value in expected.items()}
    other["head.weight"] = other["wte.weight"]
    for value in other.values():
        dist.broadcast(value, 0)
    load_whole_state_dict(model, other)
    again = whole_state_dict(model)
    assert again is None or all(torch.equal(again[name], value) for name, value in other.items())
    with pytest.raises(InvalidArgumentError, match="another model"):
        load_whole_state_dict(model, {})


def check_what_does_not_fit_is_said_on_every_rank(rank: int, folder: str) -> None:
    del folder
    with pytest.raises(InvalidArgumentError, match="matches no module"):
        parallelize(GPT(), {"nowhere": Column()})
    with pytest.raises(InvalidArgumentError, match="wte.weight whole, head.weight divided"):
        parallelize(GPT(), {"head": Vocabulary()})
    with pytest.raises(ORTModuleError, match="ranks disagree on the set-up of parallelize"):
        parallelize(GPT(), TENSOR if rank else WHOLE)
    with pytest.raises(InvalidArgumentError, match="parallelized already"):
        parallelize(parallelize(GPT(), TENSOR), TENSOR)
    loss = nn.Sequential(nn.CrossEntropyLoss(label_smoothing=0.1))
    with pytest.raises(InvalidArgumentError, match="label_smoothing"):
        parallelize(loss, {"0": VocabularyLoss()})
    model = parallelize(GPT(), TENSOR)
    with pytest.raises(InvalidArgumentError, match="one ORTModule at stage 3"):
        zero(model, optimizer_of(model), stage=3)


def check_folders_of_a_checkpoint_are_compared(rank: int, folder: str) -> None:
    model = nn.Linear(4, 4)
    _, optimizer = zero(model, torch.optim.SGD(model.parameters(), 0.1), stage=1)
    with pytest.raises(CheckpointError, match=r"rank 1 .*step-1, rank 0 .*step-0"):
        save_checkpoint(f"{folder}/step-{rank}", model, optimizer)


CHECKS = [
    check_the_graph_has_the_collectives,
    check_vocabulary_loss,
    check_what_is_no_word_is_refused_on_every_rank,
    check_state_goes_there_and_back,
    check_what_does_not_fit_is_said_on_every_rank,
    check_folders_of_a_checkpoint_are_compared,
]


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    folder = str(tmp_path_factory.mktemp("checks"))
    return once(tmp_path_factory, "parallel-checks", lambda: on_ranks(2, of_checks, CHECKS, folder))


@pytest.mark.parametrize("i", range(len(CHECKS)), ids=[check.__name__[6:] for check in CHECKS])
def test_on_ranks(checked: list[list[str]], i: int) -> None:
    assert [one[i] for one in checked] == ["", ""]


def save_and_load(rank: int, folder: str) -> tuple[list[float], list[float], Any]:
    """Two steps, a checkpoint, two more; then these two again from it, in another stage."""

    def set_up(stage: int) -> tuple[Any, Any, int]:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        model = parallelize(ORTModule(GPT(1), options=Options(fallback="error")), TENSOR, mesh["tensor"])
        policy = ZeroPolicy(bucket_bytes=8 << 10, mesh=mesh["data"])
        model, optimizer = zero(model, optimizer_of(model), stage=stage, policy=policy)
        return model, optimizer, mesh.get_local_rank("data")

    def train(model: Any, optimizer: Any, data: int, steps: range) -> list[float]:
        losses = []
        for step in steps:
            optimizer.zero_grad()
            loss = model(batch(step, 0, data))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    model, optimizer, data = set_up(2)
    train(model, optimizer, data, range(2))
    save_checkpoint(f"{folder}/step-2", model, optimizer, step=2)
    state = whole_state_dict(model)
    expected = train(model, optimizer, data, range(2, 4))
    model, optimizer, data = set_up(1)
    load_checkpoint(f"{folder}/step-2", model, optimizer)
    return expected, train(model, optimizer, data, range(2, 4)), state if rank == 0 else None


def test_a_checkpoint_of_a_parallelized_model(tmp_path: Path) -> None:
    found = on_ranks(4, save_and_load, str(tmp_path))
    for expected, again, _ in found:
        assert again == pytest.approx(expected, rel=1e-6)
    consolidate(tmp_path / "step-2", tmp_path / "whole.safetensors")
    whole, state = load_file(tmp_path / "whole.safetensors"), found[0][2]
    state.pop("head.weight")  # tied: once
    assert whole.keys() == state.keys()
    assert all(torch.equal(whole[name], value) for name, value in state.items())
