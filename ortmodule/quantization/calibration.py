"""Ranges of a model's tensors, from runs over data: the graph is given further outputs, which collectors see."""

from __future__ import annotations

import abc
import enum
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import onnx
from onnx import TensorProto

from ..errors import InvalidArgumentError
from ..sessions import InferenceSession, SessionOptions
from .ranges import Collector, Distribution, Entropy, MinMax, Percentile, TensorRange

__all__ = ["CalibrationDataReader", "CalibrationMethod", "calibrate", "float_tensors", "model_of"]


class CalibrationMethod(enum.Enum):
    """How a range is found (quantization/ranges.py)."""

    MinMax = 0
    Entropy = 1
    Percentile = 2
    Distribution = 3


class CalibrationDataReader(abc.ABC):
    """Gives feeds until there are none: what users of ONNX runtimes derive from. Any iterable of feeds does as well."""

    @abc.abstractmethod
    def get_next(self) -> Mapping[str, Any] | None:
        """The next feeds, or None behind the last."""

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        while (feeds := self.get_next()) is not None:
            yield feeds


_COLLECTORS: dict[CalibrationMethod, Callable[..., Collector]] = {
    CalibrationMethod.MinMax: MinMax,
    CalibrationMethod.Entropy: Entropy,
    CalibrationMethod.Percentile: Percentile,
    CalibrationMethod.Distribution: Distribution,
}


def calibrate(
    model: str | os.PathLike[str] | onnx.ModelProto,
    data: Iterable[Mapping[str, Any]],
    method: CalibrationMethod = CalibrationMethod.MinMax,
    *,
    tensors: Iterable[str] | None = None,
    session_options: SessionOptions | None = None,
    **settings: Any,
) -> dict[str, TensorRange]:
    """Ranges of a model's float tensors over the runs of some data.

    Args:
        model: a path or the model.
        data: feeds by input name, one run each.
        method: how ranges are found.
        tensors: names of inputs and of nodes' results; None: of all that are float and no constants.
        session_options: of the runs.
        settings: of the method: `symmetric` (all but Distribution), `bins` (all but MinMax), `percentile`, `levels`
            (Entropy), `scenario` (Distribution).

    Raises:
        InvalidArgumentError: no data, a tensor that the model does not have, or a setting that the method has not.
    """
    proto = model_of(model)
    known = float_tensors(proto)
    names = list(known if tensors is None else tensors)
    if unknown := [name for name in names if name not in known]:
        raise InvalidArgumentError(f"the model has no float tensors {unknown}")
    try:
        collectors = {name: _COLLECTORS[CalibrationMethod(method)](**settings) for name in names}
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"calibration by {method}: {error}") from error
    given = {value.name for value in proto.graph.input}
    made = [name for name in names if name not in given]
    session = InferenceSession(_with_outputs(proto, made), session_options)
    runs = 0
    for feeds in data:
        for name, values in zip(made, session.run(made, feeds) if made else [], strict=True):
            collectors[name].see(values)
        for name in set(names) & given:
            collectors[name].see(feeds[name])
        runs += 1
    if not runs:
        raise InvalidArgumentError("calibration needs data, and there was none")
    return {name: collector.result() for name, collector in collectors.items()}


def model_of(model: str | os.PathLike[str] | onnx.ModelProto) -> onnx.ModelProto:
    """The model, with the tensors of its external files."""
    return model if isinstance(model, onnx.ModelProto) else onnx.load(os.fspath(model))


def float_tensors(model: onnx.ModelProto) -> list[str]:
    """Names of the graph's inputs and of its nodes' results that are float and no constants, in the graph's order."""
    typed = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*typed.input, *typed.value_info, *typed.output)}
    constants = {tensor.name for tensor in typed.initializer}
    results = [name for node in typed.node if node.op_type != "Constant" for name in node.output if name]
    names = [value.name for value in typed.input if value.name not in constants] + results
    return [name for name in names if types.get(name) == TensorProto.FLOAT]


def _with_outputs(model: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    augmented = onnx.ModelProto()
    augmented.CopyFrom(model)
    there = {value.name for value in augmented.graph.output}
    for name in names:
        if name not in there:
            augmented.graph.output.append(onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return augmented
