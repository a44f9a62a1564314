"""com.microsoft's operators against the onnxruntime package, whose documentation is their only standard.

The samples are the table's. What the package does not build (training operators), or not for these types, is listed.
"""

from __future__ import annotations

import pytest
import torch

from ortmodule.testing import node_model

from .driver import COUNTS, samples
from .engine import run_engine
from .samples import ROWS
from .table import Case, Row

onnxruntime = pytest.importorskip("onnxruntime")

# In ONNX Runtime's training build, or on its GPU provider alone.
NOT_IN_THE_PACKAGE = {
    "All",
    "BatchScale",
    "BiasDropout",
    "BiasSoftmax",
    "ConcatTraining",
    "FakeQuant",
    "FlattenAndUnpad",
    "Group",
    "InPlaceAccumulator",
    "InPlaceAccumulatorV2",
    "IsAllFinite",
    "IsFinite",
    "MixedPrecisionScale",
    "PadAndUnflatten",
    "ReduceAllL2",
    "ReduceSumTraining",
    "Scale",
    "ScaledSum",
    "ShrunkenGather",
    "SimplifiedLayerNormalization",  # the package has it in ai.onnx
    "SoftmaxCrossEntropyLossInternal",
    "SoftmaxDropoutGrad",
    "SplitTraining",
    "ZeroGradient",
}
CONTRIB = [r for r in ROWS if r.domain == "com.microsoft"]


def run_theirs(row: Row, case: Case) -> list[torch.Tensor]:
    built = node_model(
        row.name,
        case.inputs,
        case.attributes,
        domain=row.domain,
        opset=21,
        outputs=case.outputs,
        constants=case.constants,
        nodes_of=row.nodes,
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(built.model.SerializeToString(), options, ["CPUExecutionProvider"])
    feeds = {n: v.numpy() for n, i in zip(built.names, built.slots) if (v := case.inputs[i]) is not None}
    return [torch.from_numpy(y) for y in session.run(None, feeds)]


@pytest.mark.parametrize("row", CONTRIB, ids=lambda row: row.name)
def test_the_package_gives_the_same(row: Row) -> None:
    cases = [case for case in samples(row, torch.float32) if case.stock]
    if row.name in NOT_IN_THE_PACKAGE:
        with pytest.raises(Exception, match="not a registered function/op|Could not find an implementation"):
            run_theirs(row, cases[0])
        return
    for case in cases:
        for ours, want in zip(run_engine(row, case, case.inputs), run_theirs(row, case), strict=True):
            torch.testing.assert_close(ours, want, rtol=1e-4, atol=1e-4, equal_nan=True)
        COUNTS["values against onnxruntime"] += 1
