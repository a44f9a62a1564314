"""The optimizer that `zero` returns: an optimizer of torch's kind whose parameters are this rank's pieces.

It shares groups and state with the optimizer that it was made from, which does the arithmetic; schedulers, GradScaler
and hooks see one optimizer. Every method that says "on all ranks" must be called on all of them.
Not here: how gradients get into the pieces (reducer.py), and state on disk (checkpoint/).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ortmodule.distributed import collectives
from ortmodule.distributed.agreement import Agreement
from ortmodule.distributed.collectives import Ranks, Volume
from ortmodule.distributed.errors import DistributedError
from ortmodule.distributed.memory import Memory
from ortmodule.distributed.policy import Stage, ZeroPolicy
from ortmodule.distributed.reducer import Reducer
from ortmodule.errors import InvalidArgumentError

__all__ = ["GroupParameters", "ZeroOptimizer", "state_part"]

_LOGGER = logging.getLogger("ortmodule")
GroupParameters = list[list[nn.Parameter]]


class ZeroOptimizer(torch.optim.Optimizer):
    """What `zero` returns; not made by hand.

    Attributes:
        inner: the optimizer that does the arithmetic; its parameters are this rank's pieces.
        stage, policy: as given to `zero`.
        skipped_steps: how many steps were skipped because gradients were not finite.
        volume: bytes that this rank's collectives have moved, by kind.
    """

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        stage: Stage,
        policy: ZeroPolicy,
        ranks: Ranks,
        agreement: Agreement,
        names: Mapping[nn.Parameter, str],
        make_buckets: Callable[[Sequence[nn.Parameter]], list[Any]],
    ) -> None:
        self._ready = False
        super().__init__([torch.zeros(0)], inner.defaults)
        self.inner, self.stage, self.policy = inner, stage, policy
        self.param_groups, self.state = inner.param_groups, inner.state
        self.ranks, self.agreement, self._names, self._make_buckets = ranks, agreement, dict(names), make_buckets
        self.reducer = Reducer(ranks, agreement, policy.overlap_reduce, policy.skip_nonfinite)
        self.parameters_of: GroupParameters = []
        self.skipped_steps = self.steps = 0
        self._gathers: list[tuple[Any, str]] = []
        self._divide(list(range(len(inner.param_groups))))
        self._ready = True

    # -- groups -----------------------------------------------------------------------------------------------------

    @property
    def buckets(self) -> list[Any]:
        """All buckets, in the order in which they are summed."""
        return self.reducer.buckets

    @property
    def volume(self) -> Volume:
        return self.ranks.volume

    def name_of(self, parameter: nn.Parameter) -> str:
        return self._names[parameter]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters later, on all ranks alike; they must be of the model."""
        if not self._ready:
            return super().add_param_group(param_group)
        params = param_group["params"]
        given: list[Any] = [params] if isinstance(params, torch.Tensor) else list(params)
        if unknown := [p for p in given if p not in self._names]:
            raise InvalidArgumentError(f"{len(unknown)} of the parameters of the new group are not the model's")
        text = "\n".join(f"{self._names[p]} {p.dtype} {list(p.shape)}" for p in given)
        self.agreement.compare("the parameters of a new group", text)
        known = {p for group in self.parameters_of for p in group}
        if twice := [self._names[p] for p in given if p in known]:
            raise InvalidArgumentError(f"parameters are in a group already: {', '.join(twice)}")
        self.inner.add_param_group(param_group)
        self._divide([len(self.inner.param_groups) - 1])

    def _divide(self, numbers: Sequence[int]) -> None:
        """Puts pieces in the place of these groups' parameters, and their parts of the state there is."""
        place = {name: i for i, name in enumerate(self._names.values())}
        group_of: dict[nn.Parameter, dict[str, Any]] = {}
        for number in numbers:
            group = self.inner.param_groups[number]
            self.parameters_of.append(list(group["params"]))
            group_of.update(dict.fromkeys(group["params"], group))
            group["params"] = []
        trained = sorted((p for p in group_of if p.requires_grad), key=lambda p: place[self._names[p]])
        states = {p: self.inner.state.pop(p) for p in group_of if p in self.inner.state}
        buckets = self._make_buckets(trained)
        for bucket in buckets:
            for at, piece in zip(bucket.shard.places, bucket.shard.pieces, strict=True):
                param = bucket.params[at.slot]
                group_of[param]["params"].append(piece)
                if param in states:
                    slot = bucket.layout.slots[at.slot]
                    self.inner.state[piece] = state_part(states[param], slot.shape, at, piece)
        # Backward comes to the last parameters first; a bucket is full when its first one is.
        buckets.sort(key=lambda bucket: -min(place[slot.name] for slot in bucket.layout.slots))
        self.reducer.add_buckets(buckets)

    # -- a step -----------------------------------------------------------------------------------------------------

    def no_sync(self) -> Any:
        """A context for all backwards of an accumulation but the last: gradients stay on this rank, whole."""
        return self.reducer.no_sync()

    def sync(self) -> None:
        """Sums what backwards within no_sync() have left, where no other backward follows; on all ranks."""
        self.reducer.sync()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates this rank's shards and gathers the parameters, on all ranks; returns what the closure returns.

        Raises:
            DistributedError: the last backward was within no_sync().
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.reducer.pending:
            raise DistributedError(
                "step() after a backward within no_sync(): run the last one of a step outside of it, or call sync()"
            )
        self.wait()
        self.steps += 1
        self.reducer.stale = True
        if self.policy.skip_nonfinite and not self.reducer.finite:
            self.skipped_steps += 1
            _LOGGER.warning("step %d is skipped on all ranks: gradients are not finite", self.steps)
            return loss
        self.inner.step()
        self._start_gathers([bucket for bucket in self.buckets if bucket.shard.updated])
        if not self.policy.overlap_gather:
            self.wait()
        return loss

    def publish(self) -> None:
        """Makes the parameters what the shards are, which were written otherwise than by a step; on all ranks."""
        self._start_gathers(self.buckets)
        self.wait()

    def _start_gathers(self, buckets: Sequence[Any]) -> None:
        for bucket in reversed(buckets):  # in the order in which forward reads them
            if (work := bucket.start_publish()) is not None:
                self._gathers.append((work, bucket.layout.slots[0].name))

    def wait(self) -> None:
        """Returns when the parameters are those of the last step."""
        gathers, self._gathers = self._gathers, []
        for work, name in gathers:
            self.agreement.wait(work, f"the gathering of {name} and others")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients; call this and not the model's zero_grad, which does not see the shards."""
        self.reducer.clear(set_to_none)

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """torch.nn.utils.clip_grad_norm_ over the parameters of all groups, on all ranks; the norm before, a 0-d tensor
        in float32. A tied parameter counts once, and so does one that several ranks of a parallelized model have. It is
        summed in float64, so that it is the same among how many ranks ever the gradients are divided.
        """
        gradients = [g for _, piece in self._pieces() if (g := piece.grad) is not None]
        parts = self.ranks.parts
        counted = [g for name, p in self._pieces() if (g := p.grad) is not None and (not parts or parts.counts(name))]
        device = self.buckets[0].shard.values.device if self.buckets else torch.device("cpu")
        each = torch._foreach_norm(counted, norm_type, dtype=torch.float64) if counted else [torch.zeros(())]
        norms = torch.linalg.vector_norm(torch.stack([n.to(device, torch.float64) for n in each]), norm_type)
        if norm_type == float("inf"):
            collectives.all_reduce(norms, self.ranks, dist.ReduceOp.MAX)
            collectives.combine_parts(norms, self.ranks, dist.ReduceOp.MAX)
        else:
            norms = norms**norm_type
            collectives.all_reduce(norms, self.ranks)
            collectives.combine_parts(norms, self.ranks)
            norms = norms ** (1 / norm_type)
        total = norms.float()
        for group in {g.dtype for g in gradients}:
            scale = torch.clamp(max_norm / (total + 1e-6), max=1.0)
            torch._foreach_mul_([g for g in gradients if g.dtype == group], scale.to(group))
        return total

    def _pieces(self) -> Iterator[tuple[str, nn.Parameter]]:
        """With the names of the parameters that they are of."""
        for bucket in self.buckets:
            for place, piece in zip(bucket.shard.places, bucket.shard.pieces, strict=True):
                yield bucket.layout.slots[place.slot].name, piece

    def close(self) -> None:
        """Takes the hooks off the parameters; the model trains as any other afterwards."""
        self.wait()
        self.reducer.close()

    # -- state ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """This rank's part, without communication: {"zero": what it is a part of, "state", "param_groups"} as torch's,
        pieces in the place of parameters. For one that torch's optimizer loads: `full_state_dict`.
        """
        return {"zero": self._kind(), **self.inner.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what `state_dict` gave at the same world size, or what torch's optimizer gave for whole parameters
        (`full_state_dict`, or a run without sharding).

        Raises:
            InvalidArgumentError: it is of another world size, stage or set of parameters; a checkpoint
                (`load_checkpoint`) loads at any.
        """
        if "zero" not in state_dict:
            from ortmodule.distributed.full_state import load_full_state

            load_full_state(self, state_dict)
            return
        if state_dict["zero"] != self._kind():
            raise InvalidArgumentError(
                f"this is a part of {state_dict['zero']}, and the optimizer is {self._kind()}: load_checkpoint loads "
                "at any world size and stage"
            )
        self.inner.load_state_dict({k: v for k, v in state_dict.items() if k != "zero"})
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def full_state_dict(self) -> dict[str, Any] | None:
        """torch's state dict of the optimizer over whole parameters, in host memory on rank 0 (None elsewhere), on all
        ranks. Gathered tensor by tensor.
        """
        from ortmodule.distributed.full_state import full_state

        return full_state(self)

    def full_parameters(self) -> dict[str, torch.Tensor] | None:
        """The trained parameters in the optimizer's type (the masters, where there are any) by name, in host memory on
        rank 0 (None elsewhere), on all ranks. Gathered bucket by bucket.
        """
        self.wait()
        out = {}
        for bucket in self.buckets:
            part = bucket.shard.values.to(bucket.gather_device)
            whole = torch.empty(bucket.layout.numel, dtype=part.dtype, device=part.device)
            collectives.all_gather(whole, part, self.ranks).wait()
            if dist.get_rank() == 0:
                for slot in bucket.layout.slots:
                    out[slot.name] = whole[slot.start : slot.start + slot.numel].view(slot.shape).cpu().clone()
        return out if dist.get_rank() == 0 else None

    def memory(self) -> Memory:
        """Bytes that this rank holds now for what is trained."""
        held = [bucket.device_bytes() for bucket in self.buckets]
        states = sum(
            v.nbytes for state in self.state.values() for v in state.values() if isinstance(v, torch.Tensor) and v.dim()
        )
        parameters, masters, gradients = (sum(one[k] for one in held) for k in ("parameters", "masters", "gradients"))
        return Memory(parameters, masters, gradients, states)

    def _kind(self) -> dict[str, Any]:
        names = [slot.name for bucket in self.buckets for slot in bucket.layout.slots]
        return {"rank": self.ranks.rank, "world": self.ranks.world, "stage": int(self.stage), "parameters": names}


def state_part(state: dict[str, Any], shape: torch.Size, place: Any, piece: nn.Parameter) -> dict[str, Any]:
    """A piece's part of a parameter's state: tensors of the parameter's shape are divided, all else is copied."""
    out = {}
    for key, value in state.items():
        if isinstance(value, torch.Tensor) and value.shape == shape and shape.numel() > 0 and value.dim() > 0:
            part = value.detach().reshape(-1)[place.start : place.start + place.length]
            value = part.to(device=piece.device, dtype=piece.dtype if value.is_floating_point() else None, copy=True)
        elif isinstance(value, torch.Tensor):
            value = value.clone()
        out[key] = value
    return out
