"""Which branches in running Python code only raise."""

from __future__ import annotations

import sys
import textwrap
from typing import Any

import pytest

from ortmodule.capture.trace.raising_branches import truth_that_goes_on


class Question:
    """Its truth is asked by the code under test; it answers so that this code goes on."""

    def __init__(self, otherwise: bool = True) -> None:
        self.found: list[bool | None] = []
        self.otherwise = otherwise

    def __bool__(self) -> bool:
        self.found.append(truth_that_goes_on(sys._getframe(1)))
        return self.otherwise if self.found[-1] is None else bool(self.found[-1])

    def item(self) -> bool:
        self.found.append(truth_that_goes_on(sys._getframe(1)))
        return self.otherwise if self.found[-1] is None else bool(self.found[-1])


def asked(source: str) -> list[bool | None]:
    """What is found when `source` runs with `q`; it is compiled here, where pytest rewrites no assertion."""
    scope: dict[str, Any] = {}
    exec("def run(q, n=3):\n" + textwrap.indent(textwrap.dedent(source), "    ") + "\n    return n", scope)
    question = Question()
    scope["run"](question)
    return question.found


@pytest.mark.parametrize(
    ("source", "goes_on"),
    [
        ("if q: raise ValueError('no')", False),
        ("if not q: raise ValueError('no')", True),
        ("if q:\n    n = 2\nelse:\n    raise ValueError('no')", True),
        ("assert q", True),
        ("assert not q, f'{n} is wrong'", False),
        ("assert q.item(), 'no'", True),
        ("if q.item(): raise ValueError('no')", False),
        ("if bool(q): raise ValueError('no')", False),
        ("if q: raise ValueError('one' if n == 1 else 'many')", False),
        ("if q:\n    n = n + 1\n    raise ValueError(n) from None", False),
        ("if q: raise ValueError(" + ", ".join(f"n + {i}" for i in range(400)) + ")", False),
        ("for i in range(2):\n    if q: raise ValueError(i)", False),
    ],
)
def test_the_answer_without_which_the_code_raises(source: str, goes_on: bool) -> None:
    found = asked(source)
    assert found and set(found) == {goes_on}


@pytest.mark.parametrize(
    "source",
    [
        "if q: n = 2",
        "n = 1 if q else 2",
        "if q: return 1",
        "for i in range(2):\n    if q: continue",
        "if q:\n    for i in range(0): pass\n",
        "n = bool(q)",
        "n = q.item()",
        "if q:\n    while n < 5: n = n + 1\n    n = 7\n",
        "if q:\n    n = 7\nelse:\n    n = 8",
    ],
)
def test_where_both_answers_go_on_there_is_none(source: str) -> None:
    found = asked(source)
    assert found and set(found) == {None}
