"""com.microsoft's operators against the onnxruntime package, whose documentation is their only standard.

The samples are the table's. What the package does not build (training operators) is skipped in its own words.
"""

from __future__ import annotations

import re

import pytest
import torch

from ortmodule.testing import node_model

from .driver import COUNTS, samples
from .engine import run_engine
from .samples import ROWS
from .table import Case, Row

onnxruntime = pytest.importorskip("onnxruntime")

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
    if not cases:
        pytest.skip(f"the package refuses every sample of {row.name}")
    try:
        run_theirs(row, cases[0])
    except Exception as error:  # the package's types of errors are not public
        if re.search("not a registered function/op|Could not find an implementation", str(error)):
            pytest.skip(f"the package has no {row.name}: it is in ONNX Runtime's training build, or on GPUs alone")
        raise
    for case in cases:
        for ours, want in zip(run_engine(row, case, case.inputs), run_theirs(row, case), strict=True):
            torch.testing.assert_close(ours, want, rtol=1e-4, atol=1e-4, equal_nan=True)
        COUNTS["values against onnxruntime"] += 1
