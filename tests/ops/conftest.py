"""Prints, after the tests of this folder, how much was checked."""

from __future__ import annotations

import pytest

from .driver import COUNTS


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not COUNTS:
        return
    from ortmodule import _C

    from .samples import ROWS

    operators = _C.operators()
    with_gradient = sum(op["differentiable"] for op in operators)
    terminalreporter.write_sep("=", "operator table")
    terminalreporter.write_line(
        f"{len(operators)} records, {with_gradient} with a gradient, {len(ROWS)} rows; {COUNTS.total()} checks"
    )
    for what, count in sorted(COUNTS.items()):
        terminalreporter.write_line(f"{count:7d}  {what}")
