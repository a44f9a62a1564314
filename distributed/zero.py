"""`zero`: from a model and an optimizer of one process to sharded training.

Not here: stage 3 of an ORTModule (stage3.py) and of a plain module (torch's fully_shard; fully_sharded.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ortmodule import ORTModule
from ortmodule.distributed import collectives
from ortmodule.distributed.agreement import Agreement
from ortmodule.distributed.bucket import whole_buckets
from ortmodule.distributed.collectives import Ranks
from ortmodule.distributed.elementwise import is_elementwise
from ortmodule.distributed.errors import DistributedError
from ortmodule.distributed.optimizer import ZeroOptimizer
from ortmodule.distributed.policy import Stage, ZeroPolicy
from ortmodule.errors import InvalidArgumentError

__all__ = ["zero"]


def zero(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    stage: int,
    policy: ZeroPolicy | None = None,
    initialize: Callable[[nn.Module], None] | None = None,
) -> tuple[nn.Module, Any]:
    """Divides training among the ranks of a process group; to be called on all of them.

    Args:
        model: an ORTModule, or any module. Its parameters stay its own and keep their names and shapes.
        optimizer: any of torch's kind that updates elements one by one, over the model's parameters. It is used, not
            copied, and its parameters become this rank's pieces.
        stage: 1 divides the optimizer's states, 2 gradients as well, 3 parameters as well.
        policy: how.
        initialize: at stage 3 gives values to the own parameters of a module that was made on the meta device; None:
            the module's `reset_parameters`.

    Returns:
        The model and a ZeroOptimizer to step with. Gradients are means over the ranks. (A plain module at stage 3 is
        torch's `fully_shard`, with the given optimizer over its parameters.)

    Raises:
        InvalidArgumentError: the two do not go together, or cannot be sharded.
        RankDisagreementError: ranks have different models, optimizers or policies.
        LostRankError: a rank does not come.
    """
    policy = policy or ZeroPolicy()
    if not (dist.is_available() and dist.is_initialized()):
        raise DistributedError("no process group: start with torchrun and call torch.distributed.init_process_group")
    ranks, agreement = _ranks(policy)
    ranks.parts = collectives.model_parts(model)
    problem = _problem(model, optimizer, stage, policy)
    agreement.compare("the set-up of zero()", _facts(model, optimizer, stage, policy) if problem is None else problem)
    if problem is not None:
        raise InvalidArgumentError(problem)
    names: dict[nn.Parameter, str] = {p: name for name, p in model.named_parameters()}
    if stage == Stage.PARAMETERS:
        from ortmodule.distributed import stage3  # which imports what stages 1 and 2 do without

        return stage3.shard(model, optimizer, policy, ranks, agreement, names, initialize)
    if policy.broadcast:
        trained = {p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
        rest = [t for t in (*model.parameters(), *model.buffers()) if t not in trained]
        collectives.broadcast_all(rest, ranks)

    def make_buckets(params: Sequence[nn.Parameter]) -> list[Any]:
        return whole_buckets(params, names, ranks, policy, keeps=stage == Stage.OPTIMIZER)

    sharded = ZeroOptimizer(optimizer, Stage(stage), policy, ranks, agreement, names, make_buckets)
    if policy.overlap_gather:
        _overlap_gather(model, sharded)
    return model, sharded


def _overlap_gather(model: nn.Module, sharded: ZeroOptimizer) -> None:
    """Whoever reads parameters waits for them: a graph layer by layer, PyTorch for all."""
    model.register_state_dict_pre_hook(lambda *_: sharded.wait())
    if not isinstance(model, ORTModule):
        model.register_forward_pre_hook(lambda *_: sharded.wait())
        return
    from ortmodule.distributed.awaited_graph import wait_in_graph

    trained = {p for bucket in sharded.buckets for p in bucket.params}
    names = {name for name, p in model.module.named_parameters(remove_duplicate=False) if p in trained}
    call = model._engine_call
    eager = call.eager

    def after_waiting(*args: Any, **kwargs: Any) -> Any:
        sharded.wait()
        return eager(*args, **kwargs)

    call.eager = after_waiting
    call.manager.process_graphs(lambda info: wait_in_graph(info, names))


def _ranks(policy: ZeroPolicy) -> tuple[Ranks, Agreement]:
    mesh = policy.mesh
    if mesh is None:
        ranks, everybody = Ranks(dist.group.WORLD), list(range(dist.get_world_size()))  # type: ignore[arg-type]
    else:
        everybody = mesh.mesh.flatten().tolist()
        if dist.get_rank() not in everybody:
            raise DistributedError(f"rank {dist.get_rank()} is not in the mesh of the policy")
        ranks = Ranks(mesh.get_group(mesh.ndim - 1), mesh.get_group(0) if mesh.ndim == 2 else None)
    return ranks, Agreement(everybody, policy.agree_seconds, policy.hang_seconds)


def _problem(model: nn.Module, optimizer: torch.optim.Optimizer, stage: int, policy: ZeroPolicy) -> str | None:
    """Why these cannot be sharded; the same text on every rank that has the problem."""
    if stage not in tuple(Stage):
        return f"stage is 1, 2 or 3, got {stage!r}"
    if isinstance(optimizer, ZeroOptimizer):
        return "the optimizer is sharded already"
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return "the model is in DistributedDataParallel, which sums gradients itself: give zero() model.module"
    own = set(model.parameters())
    foreign = sum(p not in own for group in optimizer.param_groups for p in group["params"])
    if foreign:
        return f"the optimizer has {foreign} parameters that are not the model's"
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if not trained:
        return "the optimizer has no parameter that is trained"
    if any(not p.is_floating_point() or p.layout != torch.strided for p in trained):
        return "a trained parameter is not dense or not of a real floating type"
    if stage != Stage.PARAMETERS and any(p.is_meta for p in model.parameters()):
        return "parameters are on the meta device: stage 3 materializes them, stages 1 and 2 need them to be there"
    if stage == Stage.PARAMETERS and collectives.model_parts(model) is not None and not isinstance(model, ORTModule):
        return "a part of a model (of parallelize, or of a pipeline) has to be one ORTModule at stage 3"
    elementwise = policy.elementwise if policy.elementwise is not None else is_elementwise(optimizer)
    if not elementwise and (stage != Stage.PARAMETERS or isinstance(model, ORTModule)):
        return (
            f"{type(optimizer).__name__} does not update each element by itself (or cannot be made for a trial), so "
            "that it cannot work on shards: use one that does, as AdamW, or ZeroPolicy(elementwise=True) to insist"
        )
    return None


def _facts(model: nn.Module, optimizer: torch.optim.Optimizer, stage: int, policy: ZeroPolicy) -> str:
    """What ranks must have alike, a line each."""
    mesh = None if policy.mesh is None else policy.mesh.mesh.tolist()
    lines = [
        f"stage {stage} of {type(getattr(model, 'module', model)).__name__} with {type(optimizer).__name__}",
        *(f"{k}={v!r}" for k, v in sorted(vars(policy).items()) if k != "mesh"),
        f"mesh={mesh}",
    ]
    names = {}
    for name, p in model.named_parameters():
        names[p] = name
        lines.append(f"{name} {p.dtype} {list(p.shape)}{'' if p.requires_grad else ' frozen'}")
    lines += [f"{name} {b.dtype} {list(b.shape)}" for name, b in model.named_buffers()]
    for i, group in enumerate(optimizer.param_groups):
        lines.append(f"group {i}: " + ", ".join(names[p] for p in group["params"]))
        lines += [f"group {i}: {k}={v!r}" for k, v in sorted(group.items()) if k != "params"]
    return "\n".join(lines)
