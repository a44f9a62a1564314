"""A slice of the generated programs, and that the generator finds out wrappers that are broken on purpose.

`python -m tests.trust` runs as many as one likes; `--show N` prints one of them.
"""

from __future__ import annotations

import collections
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from . import containers, places, readings, rows, values, values_of_torch
from .comparing import Observation, compare, difference
from .observing import rendered
from .programs import Program, program
from .running import run
from .table import engine_share, failures, table
from .templates import fill
from .workers import results

# docs/conditions.md has the kinds of programs that still fail.
LONG = pytest.mark.skipif(not os.environ.get("LONG_RUNS"), reason="takes minutes: LONG_RUNS=1")
SEED = 7
PROGRAMS = 1500  # of which the slice is taken


def kinds_of(made: Program) -> set[str]:
    return {*made.places, *made.readings, *made.whens}


def covering() -> list[int]:
    """Numbers of a few programs in which every kind is that is in any of them."""
    pool = {number: kinds_of(program(SEED, number)) for number in range(PROGRAMS)}
    left, numbers = set[str]().union(*pool.values()), list[int]()
    while left:
        numbers.append(max(pool, key=lambda number: len(pool[number] & left)))
        left -= pool[numbers[-1]]
    return sorted(numbers)


@pytest.fixture(scope="module")
def slice_of_programs() -> list[dict[str, Any]]:
    return results(SEED, covering(), ["ortmodule"], jobs=2)


@LONG
def test_no_program_is_silently_wrong(slice_of_programs: list[dict[str, Any]]) -> None:
    wrong = failures(slice_of_programs, "ortmodule")
    lines = [
        f"--seed {SEED} --show {r['number']}: {r['places']} {r['outcomes']['ortmodule']['text'][:200]}" for r in wrong
    ]
    assert not wrong, "\n".join([table(slice_of_programs, ["ortmodule"]), *lines])


@LONG
def test_no_program_ends_in_another_error(slice_of_programs: list[dict[str, Any]]) -> None:
    wrong = [r for r in slice_of_programs if r["outcomes"]["ortmodule"]["verdict"] not in ("right", "silently wrong")]
    assert not wrong, "\n".join(f"--seed {SEED} --show {r['number']}: {r['outcomes']['ortmodule']}" for r in wrong)


@LONG
def test_what_can_be_watched_runs_in_the_engine_before_and_after(slice_of_programs: list[dict[str, Any]]) -> None:
    ran, could = engine_share(slice_of_programs)
    assert could > 20
    could_have = [r for r in slice_of_programs if r["watchable"] and not r["raises"]]
    ended = [(r["number"], r["outcomes"]["ortmodule"]) for r in could_have]
    out = [number for number, o in ended if o["verdict"] == "right" and not (o["before"] and o["after"])]
    assert ran >= 0.9 * could, f"{ran} of {could}; not in the engine: --seed {SEED} --show {out}"


def test_starts_in_turn_are_right() -> None:
    """Programs in which an entry of the cache on disk was once used where it did not hold, or ended in an error: slots,
    tensors and code that are reached through functions and Python modules, a method of tensors, members of an enum.
    """
    ran = results(300, [10, 140, 160, 305, 355, 795], ["starts"], jobs=2)
    assert [r["outcomes"]["starts"]["verdict"] for r in ran] == ["right"] * 6, ran


# -- the generator ----------------------------------------------------------------------------------------------------


def test_a_program_is_made_from_its_seed_and_number_alone() -> None:
    assert program(3, 17) == program(3, 17)
    assert program(3, 17).source != program(4, 17).source != program(4, 18).source


def test_every_row_is_reached() -> None:
    made = [program(1, number) for number in range(3000)]
    names = collections.Counter(name for p in made for name in (*p.places, *p.readings))
    declared: list[Any] = [*places.PLACES, *rows.ROWS, *containers.CONTAINERS]
    for row in [*declared, *values.PLAIN_VALUES, *values_of_torch.TORCH_VALUES]:
        assert names[row.name], row.name
    assert {when for p in made for when in p.whens} >= {
        "between calls", "in another thread", "between forward and backward", "in the forward", "in a hook",
    }  # fmt: skip


def test_programs_are_small_and_compile() -> None:
    for number in range(400):
        made = program(2, number)
        compile(made.source, "program", "exec")
        compile(made.library, "library", "exec")
        assert not re.search(r"\$[a-z]\b", made.source), number


def test_names_of_rows_differ() -> None:
    for table_of in (places.PLACES, containers.CONTAINERS, [*values.PLAIN_VALUES, *values_of_torch.TORCH_VALUES]):
        twice = [name for name, count in collections.Counter(r.name for r in table_of).items() if count > 1]
        assert not twice


# -- broken wrappers --------------------------------------------------------------------------------------------------

SOURCE = """\
import torch
from torch import nn
GIVEN, LATER, GIVES, ON_X, AROUND, MODEL = {}, {}, {}, {}, {}, None
SCALE, SEEN, CHANGED = 2.0, [], 0
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.kept = {"a": 1}
    def forward(self, x):
        %s
def change_0(model):
    %s
"""
CALL: dict[str, Any] = {"call": {"train": True, "batch": 3, "x_grad": True, "grad": "on"}}


def handmade(forward: str, change: str) -> Program:
    schedule: list[dict[str, Any]] = [CALL, CALL, {"change": 0, "thread": False}, CALL]
    return Program(0, 0, SOURCE % (forward, change), "", schedule, [], [], [], [], True)


@pytest.mark.parametrize(
    "change", ["global SCALE; SCALE = 3.0", "model.linear = nn.Linear(4, 4)", "model.train(False)", "pass"]
)
def test_eager_beside_eager_is_right(change: str) -> None:
    assert run(handmade("return self.linear(x) * SCALE", change), ["eager"])["eager"].verdict == "right"


def test_a_trace_that_is_replayed_is_found_out() -> None:
    made = handmade("return self.linear(x) * SCALE", "global SCALE; SCALE = 3.0")
    assert run(made, ["stale"])["stale"].verdict == "silently wrong"
    assert run(handmade("return self.linear(x) * SCALE", "pass"), ["stale"])["stale"].verdict == "right"


def test_a_trace_that_leaves_nothing_behind_is_found_out() -> None:
    outcome = run(handmade("SEEN.append(1); return self.linear(x)", "pass"), ["stale"])["stale"]
    assert outcome.verdict == "silently wrong"
    assert "program.SEEN" in outcome.text


def test_a_first_result_that_is_kept_is_found_out() -> None:
    outcome = run(handmade("return self.linear(x) * SCALE", "pass"), ["first"])["first"]
    assert outcome.verdict != "right"
    assert outcome.step == 1


def test_an_error_that_eager_raises_is_missed_by_a_trace() -> None:
    made = handmade("return self.linear(x) * SCALE", "del globals()['SCALE']")
    assert run(made, ["stale"])["stale"].verdict == "no error"


def test_most_programs_find_a_stale_trace_out() -> None:
    outcomes = [run(program(1, number), ["stale"])["stale"].verdict for number in range(40)]
    assert outcomes.count("silently wrong") >= 15, outcomes


# -- what is observed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True), (1, 1.0), (0.0, -0.0), ([2], [2.0]), ((1,), [1]), ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (None, 0), ("a", "b"), (float("nan"), 1.0), (collections.deque([1]), [1]), ({1}, {2}), (range(2), range(3)),
    ],
)  # fmt: skip
def test_two_states_that_differ_are_told_apart(one: Any, other: Any) -> None:
    assert difference(rendered((), state=one), rendered((), state=other))
    assert not difference(rendered((), state=one), rendered((), state=one))


def test_one_list_in_two_places_is_told_from_two() -> None:
    shared: list[int] = [1]
    assert difference(rendered((), state=[shared, shared]), rendered((), state=[[1], [1]]))


def test_a_generator_counts_by_what_it_gives_next() -> None:
    one, same = np.random.default_rng(3), np.random.default_rng(3)
    assert not difference(rendered((), state={one}), rendered((), state={same}))
    same.random()
    assert difference(rendered((), state={one}), rendered((), state={same}))
    assert difference(rendered((), state=[one]), rendered((), state=[same]))


def test_sums_under_autocast_are_compared_as_rounded() -> None:
    one, other = rendered((), state=torch.tensor([1.0])), rendered((), state=torch.tensor([1.004]))
    assert difference(one, other)
    assert not difference(one, other, rounded=True)
    assert difference(one, rendered((), state=torch.tensor([1.1])), rounded=True)


def test_a_pattern_of_a_program_matches_its_key() -> None:
    form = readings.MATCHED_BY_NAME
    for key in ("Plain", "('k', 1)"):
        code = fill(form.prelude, h="held", k=key, t="found", d="None")
        scope: dict[str, Any] = {"Plain": int, "held": {int: 3, ("k", 1): 3}}
        exec(code, scope)
        assert scope["found"] == 3


def test_the_first_step_that_differs_gives_the_verdict() -> None:
    right, wrong = Observation("a call", {"x": "1"}), Observation("a call", {"x": "2"})
    assert compare([right, right], [right, right]).verdict == "right"
    assert (compare([right, right], [right, wrong]).verdict, compare([right, right], [right, wrong]).step) == (
        "silently wrong",
        1,
    )
    raised = Observation("a call", {}, "ValueError")
    assert compare([right], [raised]).verdict == "error"
    assert compare([raised], [right]).verdict == "no error"
    assert compare([raised], [Observation("a call", {}, "TypeError")]).verdict == "other error"


def test_nothing_of_a_program_stays_in_the_process(tmp_path: Path) -> None:
    import sys

    before = dict(os.environ), set(sys.modules), torch.get_default_dtype(), vars(torch)["tanh"]
    for number in range(60):
        run(program(5, number), [])
    assert before[0] == dict(os.environ)
    assert not [name for name in sys.modules if name.startswith("trust_")]
    assert (torch.get_default_dtype(), vars(torch)["tanh"]) == before[2:]
