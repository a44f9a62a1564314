"""Layers: linear algebra, normalization, convolution, pooling, attention and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..graph import ORTMODULE, Value
from .create import filled_vector
from .registry import translates

if TYPE_CHECKING:
    from ..converter import Converter


# Those that hold a factor as an attribute does: in 32 bits.
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@translates("linear")
def linear(c: Converter, input: Value, weight: Value, bias: Value | None = None) -> Any:
    return c.emit("Linear", input, weight, bias, domain=ORTMODULE) if weight.rank == 2 else NotImplemented


@translates("matmul", "mm", "bmm", "mv", "dot")
def matmul(c: Converter, self: Value, other: Value) -> Value:
    return c.emit("MatMul", self, other)


@translates("addmm")
def addmm(c: Converter, self: Value, mat1: Value, mat2: Value, beta: Any = 1, alpha: Any = 1) -> Any:
    if (beta, alpha) == (1, 1):
        return c.emit("Gemm", mat1, mat2, self)
    if c.dtype not in _FLOATS or not all(isinstance(v, (int, float)) for v in (beta, alpha)) or beta == 0:
        return NotImplemented  # with beta 0 the sum's NaN do not count
    return c.emit("Gemm", mat1, mat2, self, alpha=float(alpha), beta=float(beta))


@translates("baddbmm")
def baddbmm(c: Converter, self: Value, batch1: Value, batch2: Value, beta: Any = 1, alpha: Any = 1) -> Any:
    if c.dtype in (torch.float16, torch.bfloat16) and (beta, alpha) != (1, 1):
        return NotImplemented  # torch scales before it rounds
    product = c.helper("MatMul", [batch1, batch2], c.dtype, (batch1.shape[0], batch1.shape[1], batch2.shape[2]))
    if alpha != 1:
        product = c.helper("Mul", [product, c.const(alpha, c.dtype)], c.dtype, product.shape)
    if beta == 0:
        return product
    added = self if beta == 1 else c.helper("Mul", [self, c.const(beta, c.dtype)], c.dtype, self.shape)
    return c.emit("Add", added, product)


def _has_gradient(equation: str) -> bool:
    """Whether Einsum's gradient is one too: not where axes beside an ellipsis, or it, are in one term only."""
    terms = equation.replace(" ", "").replace("->", ",").split(",")
    for i, term in enumerate(terms[:-1]):
        others, letters = "".join(terms[:i] + terms[i + 1 :]), term.replace(".", "")
        if letters != term and (len(set(letters)) < len(letters) or not set(term) <= set(others)):
            return False
    return True


@translates("einsum")
def einsum(c: Converter, equation: str, tensors: Sequence[Value], path: Any = None) -> Any:
    if any(t.dtype != c.dtype for t in tensors) or "->" not in equation or not _has_gradient(equation):
        return NotImplemented
    return c.emit("Einsum", *tensors, equation=equation.replace(" ", ""))


@translates("_grouped_mm", "transformers::grouped_mm_fallback")
def grouped_mm(
    c: Converter, self: Value, mat2: Value, offs: Value | None = None, bias: Any = None, out_dtype: Any = None
) -> Any:
    if offs is None or bias is not None or (self.rank, mat2.rank) != (2, 3) or self.dtype != c.dtype:
        return NotImplemented
    return c.emit("GroupedMatMul", self, mat2, offs, domain=ORTMODULE)


# -- normalization ----------------------------------------------------------------------------------------------------


@translates("layer_norm")
def layer_norm(
    c: Converter,
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
    c: Converter, input: Value, normalized_shape: Sequence[Any], weight: Value | None = None, eps: float | None = None
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
    c: Converter,
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
    c: Converter,
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
    c: Converter,
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
    c: Converter,
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
def weight_norm(c: Converter, v: Value, g: Value, dim: int = 0) -> Any:
    axes = [a for a in range(v.rank) if a != dim % v.rank]
    if c.dtype in (torch.float16, torch.bfloat16) or dim == -1 or not axes:
        return NotImplemented
    shape = tuple(1 if a in axes else d for a, d in enumerate(v.shape))
    norm = c.helper("ReduceL2", [v, c.sizes(axes)], c.dtype, shape, keepdims=1)
    return c.emit("Mul", v, c.helper("Div", [g, norm], c.dtype, shape))


@translates("instance_norm")
def instance_norm(
    c: Converter,
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


# -- convolution and pooling ------------------------------------------------------------------------------------------


def _repeated(values: Sequence[int], spatial: int) -> list[int]:
    return list(values) * spatial if len(values) == 1 else list(values)


@translates("conv1d", "conv2d", "conv3d", "conv1d.padding", "conv2d.padding", "conv3d.padding")
def conv(
    c: Converter,
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] | str = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Any:
    spatial = weight.rank - 2
    kernel = weight.shape[2:]
    if input.rank != weight.rank or not all(isinstance(k, int) for k in kernel):
        return NotImplemented
    dilations = _repeated(dilation, spatial)
    if isinstance(padding, str):
        totals = [d * (int(k) - 1) if padding == "same" else 0 for d, k in zip(dilations, kernel, strict=True)]
        pads = [t // 2 for t in totals] + [t - t // 2 for t in totals]
    else:
        pads = _repeated(padding, spatial) * 2
    return c.emit(
        "Conv",
        input,
        weight,
        bias,
        dilations=dilations,
        group=groups,
        pads=pads,
        strides=_repeated(stride, spatial),
        kernel_shape=list(kernel),
    )


@translates("max_pool1d", "max_pool2d", "max_pool3d")
def max_pool(
    c: Converter,
    self: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Any:
    return _pool(c, "MaxPool", self, kernel_size, stride, padding, ceil_mode, dilation)


@translates("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    c: Converter,
    self: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    if ceil_mode or divisor_override is not None:
        return NotImplemented
    return _pool(c, "AveragePool", self, kernel_size, stride, padding, False, (1,), int(count_include_pad))


def _pool(
    c: Converter,
    op: str,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    dilation: Sequence[int],
    count_include_pad: int | None = None,
) -> Any:
    spatial = x.rank - 2
    if f"{spatial}d" not in c.operator:  # without a batch dim
        return NotImplemented
    sizes = _repeated(kernel, spatial)
    return c.emit(
        op,
        x,
        kernel_shape=sizes,
        strides=_repeated(stride, spatial) if stride else sizes,
        pads=_repeated(padding, spatial) * 2,
        ceil_mode=int(ceil_mode),
        dilations=_repeated(dilation, spatial),
        count_include_pad=count_include_pad,
    )


@translates("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_avg_pool(c: Converter, self: Value, output_size: Sequence[Any]) -> Any:
    spatial = len(output_size)
    sizes = self.shape[2:]
    if self.rank != spatial + 2:
        return NotImplemented
    if all(s == 1 for s in output_size):
        return c.emit("GlobalAveragePool", self)
    whole = all(
        isinstance(s, int) and isinstance(o, int) and s % o == 0 for s, o in zip(sizes, output_size, strict=True)
    )
    if not whole:
        return NotImplemented
    kernel = [int(s) // int(o) for s, o in zip(sizes, output_size, strict=True)]
    return _pool(c, "AveragePool", self, kernel, kernel, (0,), False, (1,), 1)


# -- dropout and attention --------------------------------------------------------------------------------------------


@translates("dropout", "native_dropout")
def dropout(c: Converter, input: Value, p: float, train: bool | None) -> Any:
    pair = isinstance(c.out, (list, tuple))
    mask_used = pair and c.used_outputs()[1]
    if not train or p == 0 or p == 1:
        if mask_used or (p == 1 and train):
            return NotImplemented
        return (input, None) if pair else input
    inputs = [input, c.const(float(p), torch.float64), c.const(True, torch.bool)]
    return c.emit_many("Dropout", inputs, [True, mask_used]) if pair else c.emit("Dropout", *inputs)


@translates("scaled_dot_product_attention")
def attention(
    c: Converter,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    rank = query.rank
    symbolic_scale = not isinstance(scale, (int, float, type(None)))
    if rank not in (3, 4) or key.rank != rank or value.rank != rank or dropout_p == 1 or symbolic_scale:
        return NotImplemented
    if attn_mask is not None and attn_mask.rank < 2:
        return NotImplemented
    operands: list[Value | None] = [query, key, value, attn_mask]
    if rank == 3:
        operands = [_with_head(c, v) if v is not None and v.rank == 3 else v for v in operands]
    attributes: dict[str, Any] = dict(is_causal=int(is_causal), scale=None if scale is None else float(scale))
    op = "Attention"
    if dropout_p > 0:
        op, attributes["domain"] = "AttentionDropout", ORTMODULE
        operands.append(c.const(float(dropout_p), torch.float64))
    if rank == 4:
        return c.emit(op, *operands, **attributes)
    shape = (c.shape[0], 1, *c.shape[1:])
    result = c.helper(op, operands, c.dtype, shape, **attributes)
    return c.emit("Squeeze", result, c.sizes([1]))


def _with_head(c: Converter, x: Value) -> Value:
    return c.helper("Unsqueeze", [x, c.sizes([1])], x.dtype, (x.shape[0], 1, *x.shape[1:]))
