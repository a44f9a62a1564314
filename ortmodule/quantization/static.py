"""A model in QDQ form: around each operator that is to run on integers its operands pass through QuantizeLinear and
DequantizeLinear, whose scales and zero points come from ranges.

Weights are stored as integers. A runtime that has integer operators fuses the pairs into them; any other runs
them as they are. Not here: the ranges (calibration.py), and what the engine does with the pairs.
"""

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..errors import InvalidArgumentError
from .calibration import CalibrationMethod, calibrate, float_tensors, model_of
from .ranges import TensorRange

__all__ = ["QuantType", "quantize_static"]

OPERATORS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_FEWEST_OPSET = {False: 10, True: 13}  # of QuantizeLinear; along an axis


class QuantType(enum.Enum):
    """Types of integers."""

    QInt8 = TensorProto.INT8
    QUInt8 = TensorProto.UINT8
    QInt16 = TensorProto.INT16
    QUInt16 = TensorProto.UINT16

    @property
    def ends(self) -> tuple[int, int]:
        info = np.iinfo(self.numpy)
        return int(info.min), int(info.max)

    @property
    def numpy(self) -> np.dtype[Any]:
        return np.dtype(helper.tensor_dtype_to_np_dtype(self.value))


@dataclasses.dataclass(frozen=True)
class _Codes:
    """scale and zero_point: real = scale (code - zero_point)."""

    scale: np.ndarray[Any, Any]
    zero_point: np.ndarray[Any, Any]


def activation_codes(found: TensorRange, kind: QuantType, symmetric: bool) -> _Codes:
    """Codes for [low, high] and zero, which is exactly one of them."""
    least, most = kind.ends
    low, high = min(found.low, 0.0), max(found.high, 0.0)
    if symmetric:
        end = max(-low, high)
        low, high = -end, end
    scale = np.float32((high - low) / (most - least)) or np.float32(1)
    zero = (least + most + 1) // 2 if symmetric else round(least - low / float(scale))
    return _Codes(np.asarray(scale), np.array(np.clip(zero, least, most), kind.numpy))


def weight_codes(weight: np.ndarray[Any, Any], kind: QuantType, axis: int | None) -> _Codes:
    """Symmetric codes of a weight, or of each of its slices along an axis."""
    least, most = kind.ends
    size = np.abs(weight) if axis is None else np.abs(np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1))
    largest = size.max(initial=0) if axis is None else size.max(axis=1, initial=0)
    steps = most if least < 0 else (most - least) // 2
    scale = np.where(largest > 0, largest / steps, 1).astype(np.float32)
    return _Codes(scale, np.full(scale.shape, 0 if least < 0 else (least + most + 1) // 2, kind.numpy))


def codes_of(weight: np.ndarray[Any, Any], codes: _Codes, axis: int | None) -> np.ndarray[Any, Any]:
    """The weight as integers, rounded to even as QuantizeLinear does."""
    shape = [1] * weight.ndim
    if axis is not None:
        shape[axis] = -1
    scaled = np.rint(weight / codes.scale.reshape(shape if axis is not None else ())) + codes.zero_point.reshape(
        shape if axis is not None else ()
    )
    info = np.iinfo(codes.zero_point.dtype)
    return np.clip(scaled, info.min, info.max).astype(codes.zero_point.dtype)


def quantize_static(
    model_input: str | os.PathLike[str] | onnx.ModelProto,
    model_output: str | os.PathLike[str] | None,
    calibration_data_reader: Iterable[Mapping[str, Any]],
    *,
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    activation_type: QuantType = QuantType.QUInt8,
    weight_type: QuantType = QuantType.QInt8,
    activation_symmetric: bool = False,
    per_channel: bool = False,
    op_types_to_quantize: Sequence[str] = OPERATORS,
    nodes_to_exclude: Sequence[str] = (),
    calibration_settings: Mapping[str, Any] | None = None,
) -> onnx.ModelProto:
    """The model in QDQ form.

    Args:
        model_input: a path or the model.
        model_output: where it is written; None: nowhere. Over 1 GiB, tensors go into a file beside it.
        calibration_data_reader: feeds by input name (`calibrate`).
        calibrate_method, calibration_settings: how ranges are found.
        activation_type, weight_type: of the integers.
        activation_symmetric: zero in the middle of the codes.
        per_channel: a scale for each output channel of a weight; else one for each weight.
        op_types_to_quantize: which operators' operands and results pass through integers.
        nodes_to_exclude: names of nodes that stay as they are.

    Raises:
        InvalidArgumentError: no data, or a model whose opset has no QuantizeLinear.
    """
    source = model_of(model_input)
    _check_opset(source, per_channel)
    result = onnx.ModelProto()
    result.CopyFrom(source)
    nodes = [n for n in result.graph.node if n.op_type in op_types_to_quantize and n.name not in nodes_to_exclude]
    floats = set(float_tensors(source))
    wanted = [name for node in nodes for name in (*node.input[:2], *node.output[:1]) if name in floats]
    ranges = calibrate(
        source, calibration_data_reader, calibrate_method, tensors=dict.fromkeys(wanted), **(calibration_settings or {})
    )
    codes = {name: activation_codes(found, activation_type, activation_symmetric) for name, found in ranges.items()}
    form = _QdqForm(result.graph, weight_type)
    for node in nodes:
        form.weights_of(node, _channel_axis(node) if per_channel else None)
    made = {node.output[0] for node in nodes}
    for name, own in codes.items():
        form.activation(name, own, None if name in made else nodes)
    form.finish()
    onnx.checker.check_model(result)
    if model_output is not None:
        onnx.save(result, os.fspath(model_output), save_as_external_data=result.ByteSize() > 1 << 30)
    return result


def _check_opset(model: onnx.ModelProto, per_channel: bool) -> None:
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if opset < _FEWEST_OPSET[per_channel]:
        raise InvalidArgumentError(
            f"QDQ form needs opset {_FEWEST_OPSET[per_channel]} of ai.onnx, the model has {opset}"
        )


def _channel_axis(node: onnx.NodeProto) -> int:
    if node.op_type == "Conv":
        return 0
    transposed = any(a.name == "transB" and a.i for a in node.attribute)
    return 0 if node.op_type == "Gemm" and transposed else 1


class _QdqForm:
    """Adds pairs to a graph."""

    def __init__(self, graph: onnx.GraphProto, weight_type: QuantType) -> None:
        self.graph, self.weight_type = graph, weight_type
        self.weights = {tensor.name: tensor for tensor in graph.initializer}
        self.outputs = {value.name for value in graph.output}
        self.taken = {*self.weights, *(name for node in graph.node for name in (*node.input, *node.output))}
        self.stand_ins: dict[tuple[str, int | None], str] = {}  # of weights
        self.behind: dict[str, list[onnx.NodeProto]] = {}  # nodes that follow what makes a tensor; "": the first ones

    def activation(self, name: str, codes: _Codes, readers: Sequence[onnx.NodeProto] | None) -> None:
        """Lets `readers` (None: all, the graph's outputs too) read the tensor's dequantised form."""
        maker = next((node for node in self.graph.node if name in node.output), None)
        if maker is not None and readers is None and name in self.outputs:
            source, target = self._fresh(f"{name}_float"), name
            maker.output[list(maker.output).index(name)] = source
        else:
            source, target = name, self._fresh(f"{name}_dequantized")
            for node in self.graph.node if readers is None else readers:
                for i, read in enumerate(node.input):
                    if read == name:
                        node.input[i] = target
        parts = self._constants(target, scale=codes.scale, zero_point=codes.zero_point)
        coded = self._fresh(f"{name}_quantized")
        self.behind.setdefault("" if maker is None else source, []).extend(
            [
                helper.make_node("QuantizeLinear", [source, *parts], [coded], f"{name}_QuantizeLinear"),
                helper.make_node("DequantizeLinear", [coded, *parts], [target], f"{name}_DequantizeLinear"),
            ]
        )

    def weights_of(self, node: onnx.NodeProto, axis: int | None) -> None:
        """Lets the node read integers, dequantised, for its weights; `axis`: of the second one's output channels."""
        for i, name in enumerate(node.input[:2]):
            if name in self.weights and self.weights[name].data_type == TensorProto.FLOAT:
                node.input[i] = self._weight(name, axis if i == 1 else None)

    def _weight(self, name: str, axis: int | None) -> str:
        value = numpy_helper.to_array(self.weights[name])
        axis = axis if axis is not None and value.ndim > axis else None
        if (name, axis) not in self.stand_ins:
            label = name if axis is None else f"{name}_along_{axis}"
            codes = weight_codes(value, self.weight_type, axis)
            integers = codes_of(value, codes, axis)
            parts = self._constants(label, quantized=integers, scale=codes.scale, zero_point=codes.zero_point)
            self.stand_ins[name, axis] = self._fresh(f"{label}_dequantized")
            node = helper.make_node(
                "DequantizeLinear", parts, [self.stand_ins[name, axis]], f"{label}_DequantizeLinear"
            )
            if axis is not None:
                node.attribute.append(helper.make_attribute("axis", axis))
            self.behind.setdefault("", []).append(node)
        return self.stand_ins[name, axis]

    def _constants(self, label: str, **arrays: np.ndarray[Any, Any]) -> list[str]:
        names = []
        for part, array in arrays.items():
            names.append(self._fresh(f"{label}_{part}"))
            self.graph.initializer.append(numpy_helper.from_array(np.asarray(array), names[-1]))
        return names

    def _fresh(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def finish(self) -> None:
        """Puts each pair behind what makes its tensor, and drops weights that nobody reads any more."""
        ordered = self.behind.pop("", [])
        for node in self.graph.node:
            ordered.append(node)
            for name in node.output:
                ordered += self.behind.get(name, [])
        read = {name for node in ordered for name in _read_by(node)} | self.outputs
        for name in {weight for weight, _ in self.stand_ins} - read:
            self.graph.initializer.remove(self.weights[name])
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in ordered]
        del self.graph.node[:]
        self.graph.node.extend(copies)


def _read_by(node: onnx.NodeProto) -> list[str]:
    """What a node reads, bodies of control flow included."""
    names = list(node.input)
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            names += [name for inner in body.node for name in _read_by(inner)]
    return names
