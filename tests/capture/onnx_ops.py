"""The meaning of each ONNX operator that capture emits, as torch calls that autograd follows.

`ARITHMETIC` holds the operators whose operands have one type and that have no attribute, `CONTROLS` the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import torch
import torch.nn.functional as F

from ortmodule.capture.convert import aten_node
from tests.ops.samples.recurrent import torch_layer

TYPES = aten_node._TORCH_TYPES
ARITHMETIC: dict[str, Callable[..., torch.Tensor]] = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Div": lambda a, b: torch.div(a, b, rounding_mode=None if a.dtype.is_floating_point else "trunc"),
    "Pow": torch.pow,
    "Min": torch.minimum,
    "Max": torch.maximum,
    "MatMul": torch.matmul,
    "Equal": torch.eq,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "And": torch.logical_and,
    "Or": torch.logical_or,
    "Xor": torch.logical_xor,
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
    "FloorDiv": torch.floor_divide,
    "Atan2": torch.atan2,
    "Hypot": torch.hypot,
    "LogAddExp": torch.logaddexp,
    "XLogY": torch.xlogy,
    "Linear": F.linear,
    "Relu": torch.relu,
    "Silu": F.silu,
    "Tanh": torch.tanh,
    "Sigmoid": torch.sigmoid,
    "Exp": torch.exp,
    "Expm1": torch.expm1,
    "Log": torch.log,
    "Log1p": torch.log1p,
    "Log2": torch.log2,
    "Log10": torch.log10,
    "Exp2": torch.exp2,
    "Round": torch.round,
    **{name: getattr(torch, name.lower()) for name in ("Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh")},
    **{name: getattr(torch, name.lower()) for name in ("Asinh", "Acosh", "Atanh")},
    "Sqrt": torch.sqrt,
    "Neg": torch.neg,
    "Abs": torch.abs,
    "Cos": torch.cos,
    "Sin": torch.sin,
    "Erf": torch.erf,
    "Floor": torch.floor,
    "Ceil": torch.ceil,
    "Softplus": F.softplus,
    "Reciprocal": torch.reciprocal,
    "Rsqrt": torch.rsqrt,
    "Sign": torch.sign,
    "HardSwish": F.hardswish,
    "Selu": F.selu,
    "Mish": F.mish,
    "Not": torch.logical_not,
    "BitwiseNot": torch.bitwise_not,
    "Where": torch.where,
    "Copy": torch.clone,
    "StopGradient": torch.detach,
    "NonNegative": torch.clone,
    "WithValue": lambda value, history: history + (value - history).detach(),
    "Identity": torch.Tensor.view_as,
}
CONTROLS: dict[str, Callable[..., Any]] = {}


def operator(function: Callable[..., Any]) -> Callable[..., Any]:
    CONTROLS[function.__name__.removesuffix("_")] = function
    return function


def ints(t: torch.Tensor) -> list[int]:
    return [int(v) for v in t.reshape(-1)]


def tensor_of(proto: onnx.TensorProto) -> torch.Tensor:
    data = (
        torch.frombuffer(bytearray(proto.raw_data), dtype=torch.uint8)
        if proto.raw_data
        else torch.empty(0, dtype=torch.uint8)
    )
    return data.view(TYPES[proto.data_type]).reshape(list(proto.dims)).clone()


@operator
def Expect(answer, expected, question=""):
    assert bool(answer) == bool(expected), question
    return answer.detach()


@operator
def Cast(x, to):
    return x.to(TYPES[to])


@operator
def Reshape(x, sizes, allowzero=0):
    return x.reshape(ints(sizes))


@operator
def Transpose(x, perm):
    return x.permute(perm)


@operator
def Unsqueeze(x, axes):
    for a in sorted(ints(axes)):
        x = x.unsqueeze(a)
    return x


@operator
def Squeeze(x, axes):
    return x.squeeze(ints(axes))


@operator
def Expand(x, sizes):
    return x.expand(ints(sizes))


@operator
def Tile(x, repeats):
    return x.repeat(ints(repeats))


@operator
def Slice(x, starts, ends, axes, steps=None):
    steps = [1] * len(axes) if steps is None else ints(steps)
    for s, e, a, k in zip(ints(starts), ints(ends), ints(axes), steps, strict=True):
        if k < 0:
            assert (s, k) == (-1, -1) and e < -x.shape[a]
            x = x.flip(a)
        else:
            x = torch.ops.aten.slice(x, a, s, e, k)
    return x


@operator
def SliceScatter(x, src, start, end, step, axis):
    return torch.slice_scatter(x, src, axis, int(start), int(end), int(step))


@operator
def Gather(x, i, axis=0):
    flat = x.index_select(axis, torch.where(i < 0, i + x.shape[axis], i).reshape(-1))
    return flat.reshape(x.shape[:axis] + i.shape + x.shape[axis + 1 :])


@operator
def Embedding(w, i, padding_idx):
    return F.embedding(i, w, padding_idx)


@operator
def Index(x, *indices, dims):
    full: list[Any] = [slice(None)] * x.ndim
    for d, i in zip(dims, indices, strict=True):
        full[d] = i
    return x[tuple(full)]


@operator
def GatherElements(x, i, axis=0):
    return torch.gather(x, axis, i)


@operator
def Mod(a, b, fmod=0):
    return torch.fmod(a, b) if fmod else torch.remainder(a, b)


@operator
def ScatterElements(x, i, src, axis=0, reduction=None):
    how = {"add": "sum", "max": "amax", "min": "amin"}.get(reduction or "")
    return torch.scatter_reduce(x, axis, i, src, how) if how else torch.scatter(x, axis, i, src)


@operator
def Split(x, sizes=None, axis=0, num_outputs=0):
    if sizes is None:
        return torch.tensor_split(x, num_outputs, axis)
    return torch.split(x, ints(sizes), axis)


@operator
def Concat(*xs, axis):
    return torch.cat(xs, axis)


@operator
def Pad(x, pads, value, mode):
    p, n = ints(pads), x.ndim
    return F.pad(x, [v for i in reversed(range(n)) for v in (p[i], p[n + i])], value=value.item())


@operator
def Gemm(a, b, c, alpha=1, beta=1):
    return torch.addmm(c, a, b, beta=beta, alpha=alpha)


@operator
def Gelu(x, approximate):
    return F.gelu(x, approximate=approximate)


@operator
def LeakyRelu(x, alpha):
    return F.leaky_relu(x, alpha)


@operator
def PRelu(x, slope):
    return torch.where(x > 0, x, x * slope)


@operator
def Celu(x, alpha):
    return F.celu(x, alpha)


@operator
def Elu(x, alpha):
    return F.elu(x, alpha)


@operator
def HardTanh(x, min_val=-1.0, max_val=1.0):
    return F.hardtanh(x, min_val, max_val)


@operator
def Clip(x, low=None, high=None):
    return torch.clamp(x, low, high)


def reduce(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def apply(x, axes=None, keepdims=1):
        return function(x, list(range(x.ndim)) if axes is None else ints(axes), bool(keepdims))

    return apply


def product(x, axes, keepdims):
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, axis, keepdims, dtype=x.dtype)
    return x


for _name, _function in (
    ("Sum", lambda x, d, k: torch.sum(x, d, k, dtype=x.dtype)),
    ("Mean", torch.mean),
    ("Max", torch.amax),
    ("Min", torch.amin),
    ("Prod", product),
    ("LogSumExp", torch.logsumexp),
    ("L1", lambda x, d, k: torch.linalg.vector_norm(x, 1, d, k)),
    ("L2", lambda x, d, k: torch.linalg.vector_norm(x, 2, d, k)),
):
    CONTROLS[f"Reduce{_name}"] = reduce(_function)


@operator
def ArgMax(x, axis, keepdims):
    return torch.argmax(x, axis, bool(keepdims))


@operator
def ArgMin(x, axis, keepdims):
    return torch.argmin(x, axis, bool(keepdims))


@operator
def CumSum(x, axis):
    return torch.cumsum(x, int(axis), dtype=x.dtype)


@operator
def TopK(x, k, axis, largest, sorted):
    return torch.topk(x, int(k), axis, bool(largest), bool(sorted))


@operator
def Sort(x, axis, descending, stable):
    return torch.sort(x, dim=axis, descending=bool(descending), stable=bool(stable))


@operator
def Histogram(x, bins, low, high):
    return torch.histc(x, bins, low, high)


@operator
def GroupedMatMul(x, w, ends):
    starts = [0, *ends.tolist()]
    return torch.cat([x[a:b] @ w[g] for g, (a, b) in enumerate(zip(starts, starts[1:], strict=False))])


@operator
def IndexPut(x, values, *indices, dims, accumulate):
    by_dim = dict(zip(dims, indices, strict=True))
    places = [by_dim.get(dim) for dim in range(max(dims) + 1)]
    return torch.ops.aten.index_put(x, places, values, bool(accumulate))


@operator
def Einsum(*xs, equation):
    return torch.einsum(equation, *xs)


@operator
def EyeLike(x):
    return torch.eye(*x.shape, dtype=x.dtype)


@operator
def Trilu(x, k, upper):
    return (torch.triu if upper else torch.tril)(x, int(k))


@operator
def Range(start, limit, delta):
    return torch.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


@operator
def ConstantOfShape(sizes, value):
    return tensor_of(value).reshape(()).expand(ints(sizes)).clone()


@operator
def Shape(x):
    return torch.tensor(x.shape)


@operator
def RandomUniformLike(x, dtype):
    return torch.rand_like(x, dtype=TYPES[dtype])


@operator
def LayerNormalization(x, w, b=None, axis=-1, epsilon=1e-5):
    return F.layer_norm(x, x.shape[axis:], w, b, epsilon)


@operator
def RMSNormalization(x, w, axis=-1, epsilon=1e-5):
    return F.rms_norm(x, x.shape[axis:], w, epsilon)


@operator
def GroupNormalization(x, w, b, num_groups, epsilon):
    return F.group_norm(x, num_groups, w, b, epsilon)


@operator
def InstanceNormalization(x, w, b, epsilon):
    return F.instance_norm(x, weight=w, bias=b, eps=epsilon)


@operator
def BatchNormalization(x, w, b, mean, var, epsilon):
    return F.batch_norm(x, mean, var, w, b, False, 0.0, epsilon)


@operator
def BatchNormTraining(x, w, b, mean, var, epsilon, momentum):
    mean, var = mean.clone(), var.clone()
    return F.batch_norm(x, mean, var, w, b, True, momentum, epsilon), mean, var


@operator
def Dropout(x, ratio, training_mode):
    return torch.native_dropout(x, float(ratio), bool(training_mode))


def attend(q, k, v, mask, p, is_causal, scale):
    return F.scaled_dot_product_attention(
        q, k, v, mask, p, bool(is_causal), scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


@operator
def Attention(q, k, v, mask=None, is_causal=0, scale=None):
    return attend(q, k, v, mask, 0.0, is_causal, scale)


@operator
def AttentionDropout(q, k, v, mask, ratio, is_causal=0, scale=None):
    return attend(q, k, v, mask, float(ratio), is_causal, scale)


@operator
def Softmax(x, axis):
    return torch.softmax(x, axis)


@operator
def LogSoftmax(x, axis):
    return torch.log_softmax(x, axis)


@operator
def SoftmaxCrossEntropyLoss(x, y, w=None, ignore_index=-100, reduction="mean"):
    return F.cross_entropy(x, y, w, ignore_index=ignore_index, reduction=reduction)


@operator
def NegativeLogLikelihoodLoss(x, y, w=None, ignore_index=-100, reduction="mean"):
    return F.nll_loss(x, y, w, ignore_index=ignore_index, reduction=reduction)


@operator
def Conv(x, w, b=None, *, dilations, group, pads, strides, kernel_shape):
    n = x.ndim - 2
    x = F.pad(x, [v for i in reversed(range(n)) for v in (pads[i], pads[n + i])]) if pads[:n] != pads[n:] else x
    padding = pads[:n] if pads[:n] == pads[n:] else [0] * n
    return getattr(F, f"conv{n}d")(x, w, b, strides, padding, dilations, group)


@operator
def MaxPool(x, kernel_shape, strides, pads, ceil_mode, dilations):
    n = x.ndim - 2
    return getattr(F, f"max_pool{n}d")(x, kernel_shape, strides, pads[:n], dilations, bool(ceil_mode))


@operator
def AveragePool(x, kernel_shape, strides, pads, ceil_mode, dilations, count_include_pad):
    n = x.ndim - 2
    return getattr(F, f"avg_pool{n}d")(x, kernel_shape, strides, pads[:n], bool(ceil_mode), bool(count_include_pad))


@operator
def GlobalAveragePool(x):
    return getattr(F, f"adaptive_avg_pool{x.ndim - 2}d")(x, 1)


@operator
def ConvTranspose(x, w, b=None, *, strides, pads, output_padding, group, dilations, kernel_shape):
    padding = pads[: len(pads) // 2]
    transposed = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[w.ndim - 3]
    return transposed(x, w, b, strides, padding, output_padding, group, dilations)


@operator
def Resize(x, roi=None, scales=None, sizes=None, *, mode, coordinate_transformation_mode, nearest_mode="floor"):
    by = {"scale_factor": scales[2:].tolist()} if scales is not None else {"size": ints(sizes)[2:]}
    if mode == "nearest":
        return F.interpolate(x, **by)
    return F.interpolate(x, **by, mode="bilinear", align_corners=coordinate_transformation_mode == "align_corners")


@operator
def RecurrentLayer(x, *inputs, mode, reverse=0, batch_first=0):
    return torch_layer(x, *inputs, mode=mode, reverse=reverse, batch_first=batch_first)
