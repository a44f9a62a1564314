"""Example calls for captures with symbolic sizes.

torch's export takes a size of 1 in its example for a constant. Where a size varies and is 1 at present, the example is
made of the sizes that an earlier call had. Such a capture must not look at values; guards say whether it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..capture.attempts import Sizes

__all__ = ["larger_example"]


def larger_example(
    leaves: Sequence[Any], earlier: Sequence[tuple[int, ...] | None], dynamic: Sizes
) -> list[Any] | None:
    """The leaves of a call in which every size of `dynamic` is larger than 1; None where there is none.

    Args:
        leaves: of the present call.
        earlier: the shapes of an earlier call's tensors, by leaf.
        dynamic: (leaf index, axis) of the sizes that vary.
    """
    shapes = {i: list(leaves[i].shape) for i, _ in dynamic}
    before = {i: list(earlier[i] or ()) for i in shapes}
    if all(before[i][axis] > 1 for i, axis in dynamic):
        sizes = {(i, axis): before[i][axis] for i, axis in dynamic}
    else:
        sizes = {(i, axis): max(before[i][axis], shapes[i][axis]) for i, axis in dynamic}
    if min(sizes.values()) < 2:
        return None
    example = list(leaves)
    for i, shape in shapes.items():
        leaf = leaves[i]
        if not (leaf.is_leaf and leaf.is_contiguous()) or leaf.is_inference():
            return None
        for axis in range(len(shape)):
            shape[axis] = sizes.get((i, axis), shape[axis])
        example[i] = torch.zeros(shape, dtype=leaf.dtype, device=leaf.device).requires_grad_(leaf.requires_grad)
    return example
