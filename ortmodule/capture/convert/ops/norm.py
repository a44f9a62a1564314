"""Translators of normalizations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..emitter import Emitter
from ..onnx_graph import ORTMODULE, Value
from ..registry import translates
from .constant import filled_vector


@translates("layer_norm")
def layer_norm(
    c: Emitter,
    input: Value,
    normalized_shape: Sequence[Any],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    dtype = weight.dtype if weight is not None else input.dtype
    scale = weight or filled_vector(c, 1.0, normalized_shape, dtype)
    bias = None if bias is None else c.cast(bias, dtype)
    return c.emit(
        "LayerNormalization", c.cast(input, dtype), scale, bias, compute=dtype, axis=-len(normalized_shape), epsilon=eps
    )


def _sums_in_float32() -> bool:
    """Whether `rms_norm(x, eps=None)` of a 16-bit tensor adds float32's epsilon, as later versions of torch do, or that
    of the tensor's own type: next to it these numbers are nothing."""
    return torch.nn.functional.rms_norm(torch.full((1,), 1e-3, dtype=torch.bfloat16), (1,)).item() > 0.5


_RMS_EPSILON_OF_FLOAT32 = _sums_in_float32()


@translates("rms_norm")
def rms_norm(
    c: Emitter, input: Value, normalized_shape: Sequence[Any], weight: Value | None = None, eps: float | None = None
) -> Any:
    dtype = weight.dtype if weight is not None else input.dtype
    scale = weight or filled_vector(c, 1.0, normalized_shape, dtype)
    summed = torch.promote_types(input.dtype, torch.float32) if _RMS_EPSILON_OF_FLOAT32 else input.dtype
    epsilon = torch.finfo(summed).eps if eps is None else eps
    return c.emit(
        "RMSNormalization", c.cast(input, dtype), scale, compute=dtype, axis=-len(normalized_shape), epsilon=epsilon
    )


@translates("group_norm")
def group_norm(
    c: Emitter,
    input: Value,
    num_groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:
    dtype = weight.dtype if weight is not None else input.dtype
    scale = weight or filled_vector(c, 1.0, [input.shape[1]], dtype)
    shift = c.cast(bias, dtype) if bias is not None else filled_vector(c, 0.0, [input.shape[1]], dtype)
    return c.emit(
        "GroupNormalization", c.cast(input, dtype), scale, shift, compute=dtype, num_groups=num_groups, epsilon=eps
    )


def _batch_norm(
    c: Emitter,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    var: Value | None,
    training: bool,
    momentum: Any,
    eps: float,
) -> Any:
    """The outputs of the ONNX operator (result, then the new statistics when training), or NotImplemented."""
    if not isinstance(momentum, float) or (mean is None) != (var is None):
        return NotImplemented
    if mean is None or var is None:  # no statistics are kept
        if not training or x.rank < 2:
            return NotImplemented
        mean, var = (filled_vector(c, start, [x.shape[1]], x.dtype) for start in (0.0, 1.0))
    if any(v is not None and v.dtype != mean.dtype for v in (weight, bias)):
        return NotImplemented
    scale = weight or filled_vector(c, 1.0, mean.shape, mean.dtype)
    shift = bias or filled_vector(c, 0.0, mean.shape, mean.dtype)
    out = c.out[0] if isinstance(c.out, (list, tuple)) else c.out
    result = c.builder.value(c.name, out.dtype, c.printer.shape(out))
    if not training:
        c.builder.node("BatchNormalization", [x, scale, shift, mean, var], [result], epsilon=eps)
        return result, mean, var
    statistics = [c.builder.value(f"{c.name}.{n}", v.dtype, v.shape) for n, v in (("mean", mean), ("var", var))]
    c.builder.node(
        "BatchNormTraining",
        [x, scale, shift, mean, var],
        [result, *statistics],
        ORTMODULE,
        epsilon=eps,
        momentum=momentum,
    )
    return result, *statistics


@translates("batch_norm")
def batch_norm(
    c: Emitter,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    momentum: Any,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    results = _batch_norm(c, input, weight, bias, running_mean, running_var, training, momentum, eps)
    if results is NotImplemented:
        return results
    if not training or running_mean is None:
        return results[0]
    for position, statistic in ((3, results[1]), (4, results[2])):
        root = c.argument_root(position)
        assert root is not None
        c.rebind(root, statistic)
    return results[0]


@translates("_native_batch_norm_legit_functional")
def functional_batch_norm(
    c: Emitter,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: Any,
    eps: float,
) -> Any:
    if any(c.used_outputs()[1:3]):
        return NotImplemented
    results = _batch_norm(c, input, weight, bias, running_mean, running_var, training, momentum, eps)
    return results if results is NotImplemented else (results[0], None, None, results[1], results[2])


@translates("_weight_norm")
def weight_norm(c: Emitter, v: Value, g: Value, dim: int = 0) -> Any:
    axes = [a for a in range(v.rank) if a != dim % v.rank]
    if c.dtype in (torch.float16, torch.bfloat16) or dim == -1 or not axes:
        return NotImplemented
    shape = tuple(1 if a in axes else d for a, d in enumerate(v.shape))
    norm = c.helper("ReduceL2", [v, c.sizes(axes)], c.dtype, shape, keepdims=1)
    return c.emit("Mul", v, c.helper("Div", [g, norm], c.dtype, shape))


@translates("instance_norm")
def instance_norm(
    c: Emitter,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    if not use_input_stats:
        results = _batch_norm(c, input, weight, bias, running_mean, running_var, False, momentum, eps)
        return results if results is NotImplemented else results[0]
    if running_mean is not None or running_var is not None or input.rank < 3:
        return NotImplemented
    scale = weight or filled_vector(c, 1.0, [input.shape[1]], input.dtype)
    shift = bias or filled_vector(c, 0.0, [input.shape[1]], input.dtype)
    if scale.dtype != input.dtype or shift.dtype != input.dtype:
        return NotImplemented
    return c.emit("InstanceNormalization", input, scale, shift, epsilon=eps)
