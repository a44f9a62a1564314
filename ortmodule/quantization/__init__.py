"""Quantisation after training: ranges of a model's tensors from data (`calibrate`), and the model in QDQ form
(`quantize_static`)."""

from .calibration import CalibrationDataReader, CalibrationMethod, calibrate
from .ranges import TensorRange
from .static import QuantType, quantize_static

__all__ = [
    "CalibrationDataReader",
    "CalibrationMethod",
    "QuantType",
    "TensorRange",
    "calibrate",
    "quantize_static",
]
