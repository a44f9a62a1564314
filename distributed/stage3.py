"""Stage 3: parameters divided among the ranks, gathered by the graph where it reads them.

An ORTModule's calls go on as before: the module's parameters have their shapes and types, which is all that a capture
looks at; the session reads shards. What needs values without a graph asks for them with `gathered`.
Not here: the engine of a plain module, which is torch's `fully_shard` (fully_sharded.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ortmodule import ORTModule
from ortmodule.capture.containers.nodes import leaves_of
from ortmodule.distributed import collectives
from ortmodule.distributed.agreement import Agreement
from ortmodule.distributed.bucket import packed, whole_buckets
from ortmodule.distributed.collectives import Ranks
from ortmodule.distributed.errors import DistributedError
from ortmodule.distributed.gathered_bucket import GatheredBucket
from ortmodule.distributed.optimizer import ZeroOptimizer
from ortmodule.distributed.policy import Stage, ZeroPolicy
from ortmodule.distributed.sharded_graph import collectives_of, gather_in_graph
from ortmodule.errors import InvalidArgumentError
from ortmodule.graph_transition import PostExportProcessedModelInfo

__all__ = ["gathered", "shard"]


def shard(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    policy: ZeroPolicy,
    ranks: Ranks,
    agreement: Agreement,
    names: Mapping[nn.Parameter, str],
    initialize: Callable[[nn.Module], None] | None,
) -> tuple[nn.Module, Any]:
    """Stage 3 of `zero`, whose arguments these are."""
    if not isinstance(model, ORTModule):
        from ortmodule.distributed.fully_sharded import fully_sharded  # which imports DTensor

        return fully_sharded(model, optimizer, policy, initialize)
    materialize = _Materialize(model, initialize)

    def make_buckets(params: Sequence[nn.Parameter]) -> list[Any]:
        shared = ranks.parts.shared if ranks.parts is not None else {}
        small = [p for p in params if p.nbytes < policy.persistence_bytes or names[p] in shared]
        few = set(small)
        materialize(small)
        buckets: list[Any] = whole_buckets(small, names, ranks, policy, keeps=False)
        for layout, some in packed([p for p in params if p not in few], names, policy, ranks.world):
            materialize(some)
            buckets.append(GatheredBucket(layout, some, ranks, policy))
        return buckets

    trained = {p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    sharded = ZeroOptimizer(optimizer, Stage.PARAMETERS, policy, ranks, agreement, names, make_buckets)
    materialize([p for p in model.parameters() if p not in trained])
    if policy.broadcast:
        rest = [t for t in (*model.parameters(), *model.buffers()) if t not in trained]
        collectives.broadcast_all(rest, ranks)
    _Sharding(model, sharded, policy, ranks, agreement)
    return model, sharded


class _Sharding:
    """What a sharded ORTModule does at each graph and session."""

    def __init__(
        self, model: ORTModule, optimizer: ZeroOptimizer, policy: ZeroPolicy, ranks: Ranks, agreement: Agreement
    ) -> None:
        self._optimizer, self._policy, self._ranks, self._agreement = optimizer, policy, ranks, agreement
        self._agreed: set[str] = set()
        self._graph = ""
        self._forwards = 0
        self._module = model.module
        call = model._engine_call
        call.keep_in_engine("its parameters are divided among the ranks (ZeRO stage 3)")
        call.manager.process_graphs(self._post_process, self._agree, in_engine=True)
        model.register_forward_pre_hook(self._before_forward)
        model.register_forward_hook(self._after_forward, always_call=True)
        model.module.register_state_dict_pre_hook(self._refuse_state_dict)

    def _buckets(self) -> list[GatheredBucket]:
        """In the order in which they are gathered, that of the module's parameters."""
        return [b for b in reversed(self._optimizer.buckets) if isinstance(b, GatheredBucket)]

    def _post_process(self, info: PostExportProcessedModelInfo) -> PostExportProcessedModelInfo:
        buckets = self._buckets()
        if any(bucket.is_gathered for bucket in buckets):
            raise DistributedError("the model is called within gathered(): leave it first")
        place = {p: (b, i) for b, bucket in enumerate(buckets) for i, p in enumerate(bucket.params)}
        named = self._module.named_parameters(remove_duplicate=False)
        names = {name: place[p] for name, p in named if p in place}
        operators = [node.op_type for node in info.post_export_processed_model.graph.node]
        digest = hashlib.sha256("\n".join(operators).encode()).hexdigest()[:16]
        self._graph = f"a graph of {len(operators)} operators with the hash {digest}"
        return gather_in_graph(info, buckets, names, self._ranks, self._policy)

    def _agree(self, session: Any, reason: str) -> None:
        """Ranks must run the same collectives in the same order; a session that does what others did is not asked. The
        graph's operators are compared as well, and not its sizes, which may differ with the ranks' batches.
        """
        found = collectives_of(session.plans())
        text = "\n".join(what for what, _ in found.values())
        if text not in self._agreed:
            said = f"its graph was made because of {reason}"
            self._agreement.compare("the collectives of a graph", f"{text}\n{self._graph}", said)
            self._agreed.add(text)

    # A wait within a graph cannot be ended from outside: who is behind is told in the log meanwhile.

    def _before_forward(self, *args: Any) -> None:
        del args
        self._forwards += 1
        self._agreement.reached(f"forward {self._forwards}")
        self._agreement.watch(f"the graph of forward {self._forwards}")

    def _end(self) -> None:
        self._agreement.watch(None)

    def _after_forward(self, module: nn.Module, args: Any, result: Any) -> None:
        del module, args
        self._agreement.watch(None)
        number = self._forwards

        def begins(gradient: torch.Tensor) -> None:
            del gradient
            self._agreement.reached(f"the backward of forward {number}")
            self._agreement.watch(f"the graph of the backward of forward {number}")
            torch.autograd.Variable._execution_engine.queue_callback(self._end)

        for leaf in leaves_of(result):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(begins)
                return

    def _refuse_state_dict(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        if not all(bucket.is_gathered for bucket in self._buckets()):
            raise DistributedError(
                "state_dict() of a model whose parameters are divided: call it within gathered(optimizer), or write a "
                "checkpoint with save_checkpoint"
            )


class _Materialize:
    """Gives values to parameters that were made on the meta device, module by module."""

    def __init__(self, model: nn.Module, initialize: Callable[[nn.Module], None] | None) -> None:
        self._initialize = initialize
        self._owner: dict[torch.Tensor, tuple[str, nn.Module]] = {}
        for name, module in model.named_modules():
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None:
                    self._owner.setdefault(tensor, (name, module))
        device = [t.device for t in self._owner if not t.is_meta]
        self._device = device[0] if device else torch.get_default_device()

    def __call__(self, params: Iterable[nn.Parameter]) -> None:
        for module in dict.fromkeys(self._owner[p] for p in params if p.is_meta):
            self._make(*module)

    def _make(self, name: str, module: nn.Module) -> None:
        initialize = self._initialize or getattr(type(module), "reset_parameters", None)
        if initialize is None:
            raise InvalidArgumentError(
                f"{name or 'the model'} ({type(module).__name__}) has parameters on the meta device and no "
                "reset_parameters: give zero(initialize=) a function that fills a module's own parameters"
            )
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None and tensor.is_meta:
                real: torch.Tensor = torch.empty_like(tensor, device=self._device)
                if isinstance(tensor, nn.Parameter):
                    real = nn.Parameter(real, tensor.requires_grad)
                torch.utils.swap_tensors(tensor, real)
        with torch.no_grad():
            initialize(module)


@contextmanager
def gathered(optimizer: ZeroOptimizer, *, modified_on: int | None = None) -> Iterator[None]:
    """Parameters have their values within, on all ranks: for looking at them, for state_dict() and for surgery.

    Args:
        optimizer: what `zero` returned, of any stage; the context is to be entered on all ranks.
        modified_on: the rank whose changes of values are kept; None: none are.
    """
    optimizer.wait()
    divided = [bucket for bucket in optimizer.buckets if isinstance(bucket, GatheredBucket)]
    for bucket in divided:
        bucket.gather()
    try:
        yield
    finally:
        for bucket in divided:
            bucket.release(modified_on)
    if modified_on is not None:
        for bucket in optimizer.buckets:
            bucket.adopt_values(modified_on)
