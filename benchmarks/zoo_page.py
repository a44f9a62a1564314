"""The page about a run of the model zoo: counts, and a reason for everything that is not one graph.

Written by `model_zoo.py --page`; nothing is run here.
"""

from __future__ import annotations

import collections
import textwrap
from typing import Any

__all__ = ["page", "summary"]

Result = dict[str, Any]
_OPENING = """# Architectures of transformers

What happens when every architecture of the `transformers` package that has a causal, masked, sequence-to-sequence or
image-classification model takes a training step as `ORTModule(model)`: a tiny random model, loss and all gradients
compared with eager PyTorch, at two input sizes. """
_CLOSING = """
## What a reader should know

- Gradients may differ from eager's by 1e-4 of their largest element; models that route by top-k are as sensitive to
  rounding here as they are in eager.
- Reformer draws fresh random hashes on every step unless `hash_seed` is set; without it two eager runs differ as well.
- A branch on inputs or buffers (`if mask.any():`, `if x.sum() > 0:`, `for row in mask.nonzero():`) does not break a
  graph: it is asked at each call, and there is a graph for each of the first eight answers. So does
  `float(scales[0])` of a buffer, for three values. Where one way of a branch on activations only raises, it is a check
  in the graph.
- Where a size that varies cannot be symbolic (Longformer and LED count their chunks in a tensor), there is a graph for
  each of the first few sizes.
"""


def summary(results: dict[str, Result]) -> dict[str, list[str]]:
    """The architectures by how they fared: passed, failed, one graph, partial, whole, one size, left out."""
    tried = {key: r for key, r in sorted(results.items()) if r["state"] != "skipped"}
    passed = {key: r for key, r in tried.items() if r["state"] == "passed"}
    return {
        "left out": sorted(key for key in results if key not in tried),
        "tried": list(tried),
        "passed": list(passed),
        "failed": [key for key in tried if key not in passed],
        "partial": [key for key, r in tried.items() if r.get("fallback") == "partial"],
        "whole": [key for key, r in tried.items() if r.get("fallback") == "whole"],
        "one graph": [key for key, r in passed.items() if r.get("fallback", "none") == "none"],
        "one size": [key for key, r in tried.items() if r.get("sizes") == 1],
    }


def page(results: dict[str, Result], candidates: int, source: str) -> str:
    """The page as Markdown.

    Args:
        results: by task and architecture, as model_zoo.py writes them.
        candidates: how many architectures there are in all.
        source: the name of the file of results, in benchmarks/results.
    """
    found = summary(results)
    rows = [
        ("candidates", candidates),
        ("tried", len(found["tried"])),
        ("same loss and gradients", len(found["passed"])),
        ("one graph", len(found["one graph"])),
        ("partly in PyTorch", len(found["partial"])),
        ("wholly in PyTorch", len(found["whole"])),
        ("failed", len(found["failed"])),
        ("left out: no tiny model that trains in eager", len(found["left out"])),
        ("tried at the first input size only", len(found["one size"])),
        ("not tried", candidates - len(results)),
    ]
    text = _OPENING + "The results are those of\n" + f"`benchmarks/results/{source}`; a full run is\n\n"
    text += "    python benchmarks/model_zoo.py --json zoo.json --resume\n\n"
    text += "which writes after each architecture, and goes on where it was stopped.\n\n"
    text += "| | architectures |\n| --- | --- |\n"
    text += "".join(f"| {name} | {count} |\n" for name, count in rows)
    sections = (
        ("Failed", "failed", ""),
        ("Wholly in PyTorch", "whole", ""),
        (
            "Partly in PyTorch", "partial",
            "Their largest sub-modules run as graphs and the rest in PyTorch, because the model's own Python decides "
            "by what\nonly the data say, or keeps a state of its own:\n\n",
        ),
        ("Left out", "left out", ""),
    )  # fmt: skip
    for title, kind, words in sections:
        if found[kind]:
            text += f"\n## {title}\n\n{words}| architecture | reason |\n| --- | --- |\n"
            text += _reasons({key: results[key] for key in found[kind]})
    return text + _CLOSING


def _reasons(chosen: dict[str, Result]) -> str:
    together: dict[str, list[str]] = collections.defaultdict(list)
    for key, result in chosen.items():
        together[_reason(result)].append(key)
    return "".join(f"| {', '.join(keys)} | {reason} |\n" for reason, keys in sorted(together.items()))


def _reason(result: Result) -> str:
    why, (place, _, code) = result.get("why", ""), result.get("line", "").partition(": ")
    if "GuardOnDataDependentSymNode" in why:
        why = "a branch, a loop or a size that only the data say"
    why = textwrap.shorten(why, 160, placeholder=" ...").replace("|", "\\|")
    code = code.replace("|", "\\|")
    return f"{why}: `{code}` ({place})" if code else why
