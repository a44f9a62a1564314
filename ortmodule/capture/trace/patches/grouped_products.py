"""The products of a mixture of experts, traced in every type that PyTorch multiplies them in.

torch's shape rule for `grouped_mm` is that of its bfloat16 kernel for GPUs: it refuses float32, which eager takes. Here
the rule is that of the kernels for other types; what they refuse goes to torch's rule, which refuses it too.
"""

from __future__ import annotations

from typing import Any

import torch
import torch._meta_registrations as torch_shapes

from ..patching import Patch
from ..tracing import TraceState

__all__ = ["PATCHES"]

_KERNELS_ALIGN = 16  # bytes: rows of both factors begin at multiples of it
_TYPES = (torch.float32, torch.float16)


def _of_other_types(original: Any, state: TraceState) -> Any:
    def shape_rule(
        mat_a: torch.Tensor, mat_b: torch.Tensor, scale_a: Any, scale_b: Any, offs: Any = None, bias: Any = None,
        scale_result: Any = None, out_dtype: Any = None, **kwargs: Any,
    ) -> torch.Tensor:  # fmt: skip
        ours = (
            scale_a is scale_b is scale_result is bias is out_dtype is None
            and mat_a.dtype == mat_b.dtype
            and mat_a.dtype in _TYPES
            and (mat_a.dim(), mat_b.dim()) == (2, 3)
            and mat_a.size(1) == mat_b.size(1)
            and offs is not None
            and (offs.dim(), offs.dtype) == (1, torch.int32)
            and _is_aligned(mat_a)
            and _is_aligned(mat_b)
        )
        if ours:
            return torch_shapes._create_grouped_mm_output_tensor(mat_a, mat_b, offs, None)
        return original(mat_a, mat_b, scale_a, scale_b, offs, bias, scale_result, out_dtype, **kwargs)

    return shape_rule


def _is_aligned(matrix: torch.Tensor) -> bool:
    """Whether the last two axes are those of a matrix, of rows or of columns, that the kernels take."""
    (rows, columns), strides = matrix.shape[-2:], matrix.stride()[-2:]
    for inner, size, stride in ((strides[1], columns, strides[0]), (strides[0], rows, strides[1])):
        if inner == 1 and stride >= size:
            return bool(stride * matrix.element_size() % _KERNELS_ALIGN == 0)
    return False


PATCHES = (Patch(torch_shapes, "_meta_grouped_mm_common", _of_other_types),)
