"""The table is whole: every group has its rows, no two of one name; prints the count per group."""

from __future__ import annotations

from collections import Counter

import pytest

from . import test_calls, test_functions, test_modules, test_operators, test_settings  # noqa: F401
from .results import test_results  # noqa: F401
from .table import GROUPS, TABLE


def test_every_group_has_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    counts = Counter(row.group for row in TABLE)
    with capsys.disabled():
        print()
        for group, (what, least) in GROUPS.items():
            print(f"  {group}  {counts[group]:3} behaviors  (at least {least})  {what}")
        print(f"     {len(TABLE):3} behaviors in all")
    assert not [group for group, (_, least) in GROUPS.items() if counts[group] < least]
    assert len(TABLE) >= 180
    assert not [name for name, n in Counter((row.group, row.name) for row in TABLE).items() if n > 1]
