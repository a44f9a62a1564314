"""What is kept of a value where the value itself would be too much (csrc/runtime/value_statistics.h)."""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Iterator

import onnx

__all__ = ["Statistics", "read_statistics"]

# As csrc/bindings/observing.cpp packs them.
_FORM = struct.Struct("<iiqqq")
_WIDE = {"double", "complex128", "int32", "uint32", "int64", "uint64"}


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Figures and fingerprint of one value.

    Attributes:
        fingerprint: 64 bits made of all bits of all elements in row-major order; 0 where there was no value. Values
            that differ in one element have different ones for certain, others but for one case in 2^32.
        dtype: ONNX's name of the element type, such as "float", "bfloat16", "int64"; "undefined": there was no value.
        shape: sizes; of a sequence, how many elements it had.
        finite, nans, infinities: how many elements are what.
        min, max, mean, deviation: of the finite ones, the last one as a population's standard deviation; NaN where
            there are none, or where fingerprints alone were recorded. Of complex numbers: of both parts together. In
            float precision, but of doubles and wide integers in double.
    """

    fingerprint: int
    dtype: str
    shape: tuple[int, ...]
    finite: int
    nans: int
    infinities: int
    min: float
    max: float
    mean: float
    deviation: float

    @property
    def norm(self) -> float:
        """The L2 norm of the finite elements."""
        return math.sqrt(self.finite * (self.mean**2 + self.deviation**2))

    def kind(self) -> str:
        """Type and shape, such as `float[2, 3]`; "absent"."""
        return "absent" if self.dtype == "undefined" else f"{self.dtype}{list(self.shape)}"

    def figures(self) -> str:
        """The rest, such as `min -1 max 4 mean 0.5 std 1.2 8 nan`; "" where there is nothing to tell."""
        parts = []
        if not math.isnan(self.mean):
            named = {"min": self.min, "max": self.max, "mean": self.mean, "std": self.deviation}
            parts = [f"{name} {number:.6g}" for name, number in named.items()]
        counts = {"nan": self.nans, "inf": self.infinities}
        return " ".join([*parts, *(f"{count} {name}" for name, count in counts.items() if count)])

    def __str__(self) -> str:
        return f"{self.kind()} {self.figures()}".rstrip()


def read_statistics(numbers: bytes, forms: bytes) -> Iterator[Statistics]:
    """Statistics as the core packs them; of a pack without figures these are NaN."""
    read = list(_read_forms(forms))
    fingerprints = struct.unpack_from(f"<{len(read)}Q", numbers)
    at = 8 * len(read)
    has_figures = len(numbers) > at
    for fingerprint, (dtype, shape, counts) in zip(fingerprints, read, strict=True):
        figures = (math.nan,) * 4
        if has_figures:
            pack = "<4d" if dtype in _WIDE else "<4f"
            figures = struct.unpack_from(pack, numbers, at)
            at += struct.calcsize(pack)
        yield Statistics(fingerprint, dtype, shape, *counts, *figures)


def _read_forms(forms: bytes) -> Iterator[tuple[str, tuple[int, ...], tuple[int, int, int]]]:
    at = 0
    while at < len(forms):
        dtype, rank, *counts = _FORM.unpack_from(forms, at)
        shape = struct.unpack_from(f"<{rank}q", forms, at + _FORM.size)
        at += _FORM.size + 8 * rank
        yield onnx.TensorProto.DataType.Name(dtype).lower(), shape, tuple(counts)
