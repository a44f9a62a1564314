"""Python values as JSON and back, tensors among them, without pickle: states of schedulers, scalers, random generators.

Not here: large tensors, which lie in files of their own (storage.py).
"""

from __future__ import annotations

import base64
import random
from typing import Any

import torch

from ortmodule.distributed.errors import CheckpointError

__all__ = ["from_plain", "random_state", "restore_random_state", "to_plain"]

_KIND = "__kind__"


def to_plain(value: Any, where: str) -> Any:
    """What json.dumps takes, for numbers, texts, None, lists, tuples, sets, dicts and tensors.

    Raises:
        CheckpointError: something else, with `where` it stands.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        text = base64.b64encode(data).decode()
        return {_KIND: "tensor", "dtype": str(value.dtype)[6:], "shape": list(value.shape), "data": text}
    if isinstance(value, torch.dtype):
        return {_KIND: "dtype", "name": str(value)[6:]}
    if isinstance(value, list):
        return [to_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, tuple | set | frozenset):
        items = [to_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
        return {_KIND: "tuple" if isinstance(value, tuple) else "set", "items": items}
    if isinstance(value, dict):
        pairs = [[to_plain(k, f"{where}'s key"), to_plain(v, f"{where}.{k}")] for k, v in value.items()]
        return {_KIND: "dict", "pairs": pairs}
    raise CheckpointError(f"{where} is of class {type(value).__name__}, which a checkpoint without pickle cannot hold")


def from_plain(value: Any) -> Any:
    """What `to_plain` was given."""
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(_KIND)
    if kind == "tensor":
        data = bytearray(base64.b64decode(value["data"]))
        dtype = getattr(torch, value["dtype"])
        flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        return flat.reshape(value["shape"]).clone()
    if kind == "dtype":
        return getattr(torch, value["name"])
    if kind in ("tuple", "set"):
        return (tuple if kind == "tuple" else set)(from_plain(item) for item in value["items"])
    if kind == "dict":
        return {from_plain(k): from_plain(v) for k, v in value["pairs"]}
    raise CheckpointError(f"the manifest holds a value of the unknown kind {kind!r}")


def random_state() -> Any:
    """Of torch's generators and Python's own, plain."""
    accelerator = [torch.cuda.get_rng_state(i) for i in range(torch.cuda.device_count())]
    state = {"torch": torch.get_rng_state(), "cuda": accelerator, "python": random.getstate()}
    return to_plain(state, "the random state")


def restore_random_state(plain: Any) -> None:
    state = from_plain(plain)
    torch.set_rng_state(state["torch"])
    for i, one in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(one, i)
    random.setstate(state["python"])
