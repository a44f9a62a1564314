"""Ranges from data: beside the stock onnxruntime package's on the same data, and at the ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import ortmodule
from ortmodule.quantization import CalibrationDataReader, CalibrationMethod, calibrate
from ortmodule.quantization.ranges import Entropy, Histogram, MinMax, Percentile
from tests.sessions.models import F, model_of

stock = pytest.importorskip("onnxruntime.quantization.calibrate")


def model() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    return model_of(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], name="first"),
            helper.make_node("Relu", ["h"], ["r"], name="relu"),
            helper.make_node("MatMul", ["r", "v"], ["y"], name="second"),
        ],
        {"x": (F, ["n", 16])},
        {"y": (F, ["n", 4])},
        {
            "w": rng.standard_normal((16, 32)).astype(np.float32),
            "v": rng.standard_normal((32, 4)).astype(np.float32),
        },
    )


def batches(count: int = 5) -> list[dict[str, Any]]:
    """Each batch is wider than the one before, so that histograms grow."""
    rng = np.random.default_rng(1)
    return [{"x": ((1 + i) * rng.standard_normal((40, 16))).astype(np.float32)} for i in range(count)]


class Reader(stock.CalibrationDataReader):
    def __init__(self, feeds: list[dict[str, Any]]) -> None:
        self.feeds = iter(feeds)

    def get_next(self) -> dict[str, Any] | None:
        return next(self.feeds, None)


def of_stock(path: Path, method: CalibrationMethod, feeds: list[dict[str, Any]], **settings: Any) -> dict[str, Any]:
    made = stock.create_calibrator(
        path, calibrate_method=stock.CalibrationMethod(method.value), augmented_model_path=f"{path}.augmented.onnx",
        extra_options=settings,
    )  # fmt: skip
    for one in feeds:  # together they would be one batch
        made.collect_data(Reader([one]))
    return dict(made.compute_data().items())


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(
    ("method", "theirs", "ours"),
    [
        (CalibrationMethod.MinMax, {}, {}),
        (CalibrationMethod.Entropy, {"num_bins": 512, "num_quantized_bins": 128}, {"bins": 512, "levels": 128}),
        (CalibrationMethod.Percentile, {"num_bins": 1024, "percentile": 99.0}, {"bins": 1024, "percentile": 99.0}),
    ],
    ids=["min-max", "entropy", "percentile"],
)
def test_ranges_equal_the_stock_packages(
    method: CalibrationMethod, theirs: dict, ours: dict, symmetric: bool, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(), path)
    want = of_stock(path, method, batches(), **theirs, symmetric=symmetric)
    got = calibrate(path, batches(), method, **ours, symmetric=symmetric)
    assert set(got) == {"x", "h", "r", "y"} <= set(want)
    for name, found in got.items():
        low, high = (np.asarray(v).item() for v in want[name].range_value)
        if symmetric and method is CalibrationMethod.Entropy:  # which that package takes for Entropy and does not heed
            low, high = -max(-low, high), max(-low, high)
        width = max(high - low, 1e-6)
        assert abs(found.low - low) < 1e-3 * width and abs(found.high - high) < 1e-3 * width, (name, found, low, high)


@pytest.mark.parametrize("scenario", ["same", "p3"])
def test_mean_and_deviation_equal_the_stock_packages(scenario: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(), path)
    want = of_stock(path, CalibrationMethod.Distribution, batches(), num_bins=1024, scenario=scenario)
    got = calibrate(path, batches(), CalibrationMethod.Distribution, bins=1024, scenario=scenario)
    for name, found in got.items():
        assert found.mean == pytest.approx(float(want[name].avg_std[0]), abs=1e-3 * found.deviation)
        assert found.deviation == pytest.approx(float(want[name].avg_std[1]), rel=1e-3)


def test_some_tensors_alone() -> None:
    assert list(calibrate(model(), batches(1), tensors=["r"])) == ["r"]
    assert list(calibrate(model(), batches(1), tensors=["x"])) == ["x"]


def test_a_reader_is_data() -> None:
    class Mine(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = batches(2)

        def get_next(self) -> Mapping[str, Any] | None:
            return self.left.pop() if self.left else None

    def generated() -> Iterator[dict[str, Any]]:
        yield from batches(2)

    assert calibrate(model(), Mine()) == calibrate(model(), generated()) == calibrate(model(), batches(2))


def test_what_does_not_fit_is_an_error() -> None:
    with pytest.raises(ortmodule.InvalidArgumentError, match="needs data"):
        calibrate(model(), [])
    with pytest.raises(ortmodule.InvalidArgumentError, match="no float tensors \\['q'\\]"):
        calibrate(model(), batches(1), tensors=["q"])
    with pytest.raises(ortmodule.InvalidArgumentError, match="percentile"):
        calibrate(model(), batches(1), CalibrationMethod.MinMax, percentile=3)
    with pytest.raises(ortmodule.InvalidArgumentError, match="scenario"):
        calibrate(model(), batches(1), CalibrationMethod.Distribution, scenario="other")


# -- collectors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [MinMax, Percentile, Entropy])
def test_zeros_and_one_value(made: type) -> None:
    for values in (np.zeros(5, np.float32), np.full(5, 3, np.float32), np.full(5, -2, np.float32)):
        collector = made()
        collector.see(values)
        collector.see(np.zeros(0, np.float32))
        found = collector.result()
        assert np.isfinite([found.low, found.high]).all() and found.low <= found.high
        assert found.low <= values[0] <= found.high or made is Entropy


def test_a_histogram_that_grows_counts_every_value() -> None:
    rng = np.random.default_rng(0)
    for absolute in (False, True):
        seen = Histogram(64, absolute)
        values = [np.zeros(3), *(rng.standard_normal(100) * scale for scale in (1, 0.1, 5, 40))]
        for one in values:
            seen.see(one)
        whole = np.concatenate(values)
        assert seen.counts.sum() == whole.size
        again, _ = np.histogram(np.abs(whole) if absolute else whole, seen.edges)
        assert np.abs(again - seen.counts).sum() <= 4  # values at an edge
