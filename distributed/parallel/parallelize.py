"""`parallelize`: a model whose modules are divided among ranks as a plan says.

Modules stay where they are, with their names and those of their parameters; their classes become those that compute
with a part, and parameters keep their identity and hold this rank's part. What all ranks have whole keeps equal values,
since its gradients are whole on all of them.
Not here: the division of training among ranks with other data (zero.py).
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from ortmodule import ORTModule
from ortmodule.distributed import collectives
from ortmodule.distributed.agreement import Agreement
from ortmodule.distributed.collectives import ModelParts, Ranks
from ortmodule.distributed.errors import DistributedError
from ortmodule.distributed.parallel import styles as kinds
from ortmodule.distributed.parallel.collectives import GroupRanks
from ortmodule.distributed.parallel.division import Division, divisions_of
from ortmodule.distributed.parallel.linear import ColumnLinear, RowLinear
from ortmodule.distributed.parallel.plan import Plan
from ortmodule.distributed.parallel.sequence import gather_input, read_for_a_part, split_output
from ortmodule.distributed.parallel.styles import Style
from ortmodule.distributed.parallel.vocabulary import VocabularyCrossEntropy, VocabularyEmbedding, VocabularyLinear
from ortmodule.distributed.sharded_graph import collectives_of
from ortmodule.errors import InvalidArgumentError

__all__ = ["ParallelLayout", "compare_graphs", "layout_of", "parallelize", "set_layout"]


@dataclasses.dataclass(frozen=True)
class ParallelLayout:
    """What a parallelized model consists of on this rank.

    Attributes:
        group: the ranks that have parts of the same modules.
        divisions: of each divided parameter, by every name that it has.
    """

    group: dist.ProcessGroup
    divisions: Mapping[str, Division]


_LAYOUTS: weakref.WeakKeyDictionary[nn.Module, ParallelLayout] = weakref.WeakKeyDictionary()


def layout_of(model: nn.Module) -> ParallelLayout | None:
    """That of a model that `parallelize` has divided, or of the one in an ORTModule; else None."""
    return _LAYOUTS.get(model.module if isinstance(model, ORTModule) else model)


def set_layout(model: nn.Module, layout: ParallelLayout) -> None:
    """Says of a part of a parallelized model, which has its names, what it consists of."""
    _LAYOUTS[model.module if isinstance(model, ORTModule) else model] = layout


def parallelize(
    model: nn.Module,
    plan: Plan | Mapping[str, Style | tuple[Style, ...]],
    group: DeviceMesh | dist.ProcessGroup | None = None,
    *,
    broadcast: bool = True,
    agree_seconds: float = 10.0,
    hang_seconds: float = 60.0,
) -> nn.Module:
    """Divides a model's modules among the ranks of a group, in place; to be called on all of them.

    Args:
        model: an ORTModule, whose graphs the ranks then compare, or any module. All ranks of the group give it the same
            inputs, and get the same results.
        plan: what is divided how.
        group: a mesh of one dimension, or a process group; None: all ranks.
        broadcast: parameters and buffers become those of the group's first rank before they are divided.
        agree_seconds, hang_seconds: as in `ZeroPolicy`.

    Returns:
        The model. `zero` divides its training further among ranks with other data: give it the mesh's other dimension.

    Raises:
        InvalidArgumentError: the plan is not one for this model and number of ranks.
        RankDisagreementError: ranks have different models or plans.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise DistributedError("no process group: start with torchrun and call torch.distributed.init_process_group")
    plan = plan if isinstance(plan, Plan) else Plan(plan)
    group = _group(group)
    ranks = GroupRanks.of(group)
    agreement = Agreement(dist.get_process_group_ranks(group), agree_seconds, hang_seconds)
    inner = model.module if isinstance(model, ORTModule) else model
    problem, found = None, {}
    try:
        if inner in _LAYOUTS:
            raise InvalidArgumentError(f"{type(inner).__name__} is parallelized already")
        found = plan.check(inner, ranks.world)
        divisions = _divisions(inner, found)
    except InvalidArgumentError as error:
        problem = error
    text = plan.describe(inner, ranks.world) if problem is None else str(problem)
    agreement.compare("the set-up of parallelize()", f"{text}\n{_facts(inner)}")
    if problem is not None:
        raise problem
    if broadcast:
        collectives.broadcast_all([*inner.parameters(), *inner.buffers()], Ranks(group))
    by_parameter = {inner.get_parameter(name): division for name, division in divisions.items()}
    for p, division in by_parameter.items():
        p.data = division.part(p.detach(), ranks.world, ranks.rank)
    for name, given in found.items():
        for style in given:
            _become(inner.get_submodule(name), style, ranks)
    _LAYOUTS[inner] = ParallelLayout(group, divisions)
    label = f"{ranks.rank}/{ranks.world}"
    collectives.set_model_parts(inner, ModelParts((group,), divisions, label, ranks.rank == 0))
    if isinstance(model, ORTModule):
        compare_graphs(model, agreement)
    return model


def _group(given: DeviceMesh | dist.ProcessGroup | None) -> dist.ProcessGroup:
    if given is None:
        return dist.group.WORLD  # type: ignore[return-value]
    if isinstance(given, DeviceMesh):
        if given.ndim != 1:
            raise InvalidArgumentError(f"parallelize() takes a mesh of one dimension, got {given.ndim}: mesh['tensor']")
        return given.get_group()
    return given


def _facts(model: nn.Module) -> str:
    return "\n".join(f"{name} {p.dtype} {[*p.shape]}" for name, p in model.named_parameters())


def _divisions(model: nn.Module, found: Mapping[str, tuple[Style, ...]]) -> dict[str, Division]:
    """Of the parameters that are divided, by every name that they have."""
    out: dict[str, Division] = {}
    for name, given in found.items():
        for style in given:
            for own, division in divisions_of(model.get_submodule(name), style).items():
                out[f"{name}.{own}"] = division
    names: dict[nn.Parameter, list[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(p, []).append(name)
    for same in names.values():
        how = {out.get(name) for name in same}
        if len(how) > 1:
            said = ", ".join(f"{name} {'divided' if name in out else 'whole'}" for name in same)
            raise InvalidArgumentError(f"one parameter under several names is divided in several ways: {said}")
    return out


def _become(module: Any, style: Style, ranks: GroupRanks) -> None:
    """Makes a module, whose parameters are divided, compute with its part."""
    module.ranks = ranks
    if isinstance(style, kinds.Column):
        module.parts, module.gather, module.sequence = style.parts, style.gather, style.sequence
        module.out_features //= ranks.world
        module.__class__ = ColumnLinear
    elif isinstance(style, kinds.Row):
        module.split, module.sequence = style.split, style.sequence
        module.in_features //= ranks.world
        module.__class__ = RowLinear
    elif isinstance(style, kinds.Vocabulary):
        module.sequence = style.sequence
        if isinstance(module, nn.Embedding):
            module.__class__ = VocabularyEmbedding
        else:
            module.words, module.gather = module.out_features, style.gather
            module.out_features = module.weight.shape[0]
            module.__class__ = VocabularyLinear
    elif isinstance(style, kinds.VocabularyLoss):
        module.__class__ = VocabularyCrossEntropy
    elif isinstance(style, kinds.Sequence):
        read_for_a_part(module)
    elif isinstance(style, kinds.GatherInput):
        gather_input(module, style.dim)
    elif isinstance(style, kinds.SplitOutput):
        split_output(module, style.dim)
    elif isinstance(style, kinds.Divide):
        for name in style.attributes:
            setattr(module, name, getattr(module, name) // ranks.world)
    elif isinstance(style, kinds.Experts):
        module.divided = style.divided
        module.router.ranks = ranks
        read_for_a_part(module.router)


def compare_graphs(model: ORTModule, agreement: Agreement) -> None:
    """Ranks compare the collectives of each new graph, once per sequence of them."""
    agreed: set[str] = set()

    def agree(session: Any, reason: str) -> None:
        text = "\n".join(what for what, _ in collectives_of(session.plans()).values())
        if text not in agreed:
            agreement.compare("the collectives of a graph", text, f"its graph was made because of {reason}")
            agreed.add(text)

    model._engine_call.manager.process_graphs(lambda info: info, agree)
