"""The table that a run ends with: by kind of place, of change and of moment, how each wrapper did."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

from .comparing import RIGHT, SILENT

__all__ = ["engine_share", "failures", "table"]

Result = dict[str, Any]


def engine_share(results: Iterable[Result], wrapper: str = "ortmodule") -> tuple[int, int]:
    """(ran in the engine before and after, programs that could have): those that are watchable and raise nothing."""
    could = [r for r in results if r["watchable"] and not r["raises"] and wrapper in r["outcomes"]]
    could = [r for r in could if r["outcomes"][wrapper]["verdict"] == RIGHT]
    return sum(r["outcomes"][wrapper]["before"] and r["outcomes"][wrapper]["after"] for r in could), len(could)


def failures(results: Iterable[Result], wrapper: str, verdict: str = SILENT) -> list[Result]:
    return [r for r in results if r["outcomes"].get(wrapper, {}).get("verdict") == verdict]


def _counts(results: list[Result], wrapper: str) -> tuple[int, int, int]:
    verdicts = collections.Counter(r["outcomes"][wrapper]["verdict"] for r in results if wrapper in r["outcomes"])
    return verdicts[RIGHT], verdicts[SILENT], sum(verdicts.values()) - verdicts[RIGHT] - verdicts[SILENT]


def _line(name: str, results: list[Result], wrappers: list[str]) -> str:
    text = f"{name[:46]:46} {len(results):5}"
    for wrapper in wrappers:
        text += "  |" + "".join(f"{n:6}" if n else "     ." for n in _counts(results, wrapper))
        if wrapper == "ortmodule":
            ran, could = engine_share(results)
            text += f" {100 * ran / could:5.0f}%" if could else "      -"
    return text


def _section(
    title: str, results: list[Result], wrappers: list[str], kinds: Callable[[Result], Iterable[str]]
) -> list[str]:
    groups: dict[str, list[Result]] = collections.defaultdict(list)
    for result in results:
        for kind in set(kinds(result)):
            groups[kind].append(result)
    return ["", title, *(_line(kind, groups[kind], wrappers) for kind in sorted(groups))]


def table(results: list[Result], wrappers: list[str]) -> str:
    """A program counts in each kind that it is made of, so that a kind's failures may be another's that it met."""
    first, second = " " * 52, f"{'':46} {'progs':>5}"
    for wrapper in wrappers:
        width = 25 if wrapper == "ortmodule" else 18
        first += "  |" + f"{wrapper:^{width}}"
        second += "  |" + f"{'right':>6}{'silent':>6}{'other':>6}" + (" engine" if wrapper == "ortmodule" else "")
    lines = [first, second]
    lines += _section("PLACE", results, wrappers, lambda r: r["places"])
    lines += _section("WRAPPED IN, VALUE, READ BY", results, wrappers, lambda r: r["readings"])
    lines += _section("CHANGE", results, wrappers, lambda r: r["changes"])
    lines += _section("WHEN", results, wrappers, lambda r: r["whens"])
    lines += ["", _line("all", results, wrappers), _line("watchable", [r for r in results if r["watchable"]], wrappers)]
    lines += [_line("one piece of state only", [r for r in results if len(r["places"]) == 1], wrappers)]
    lines += [_line("that raise in eager", [r for r in results if r["raises"]], wrappers)]
    return "\n".join(lines)
