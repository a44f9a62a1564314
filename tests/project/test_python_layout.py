"""The shape of the Python sources: short functions, small folders, no circle of imports, and one place that patches.

Not here: the layers of the C++ core (test_layering.py), what any file must be like (test_files.py).
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ortmodule.capture.trace import patching

from .test_files import tracked

ROOT = Path(__file__).parents[2]
MOST_LINES = 60
MOST_FILES = 20
# Import name -> folder of the checkout, as in setup.py.
PACKAGES = {"ortmodule.graph_transition": "graph_transition", "ortmodule": "ortmodule"}
CAPTURE = ROOT / "ortmodule" / "capture"


def python_files(*folders: str) -> list[Path]:
    return [p for folder in folders for p in sorted((ROOT / folder).rglob("*.py")) if p.name != "_build_info.py"]


def long_functions(paths: list[Path]) -> list[str]:
    found = []
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > MOST_LINES:
                    found.append(f"{path.relative_to(ROOT)}: {node.name} has {lines} lines")
    return found


def test_no_function_is_longer_than_a_screen() -> None:
    paths = python_files("ortmodule", "graph_transition")
    assert len(paths) > 100
    assert long_functions(paths) == []


def test_no_folder_of_the_package_holds_more_than_twenty_files() -> None:
    folders = Counter(path.parent.relative_to(ROOT) for path in tracked())
    assert len(folders) > 20
    mine = {str(f): n for f, n in folders.items() if f.parts[:1] in {("ortmodule",), ("graph_transition",)}}
    assert {folder: n for folder, n in mine.items() if n > MOST_FILES} == {}


# -- imports ----------------------------------------------------------------------------------------------------------


def module_name(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    name = next(package for package, folder in PACKAGES.items() if folder == parts[0])
    return ".".join([name, *(part for part in parts[1:] if part != "__init__")])


def imported(path: Path, name: str, modules: set[str]) -> Iterator[str]:
    """The modules that a file imports, wherever in it: also in a function, also for types alone."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                yield inner if inner in modules else source


def import_graph() -> dict[str, set[str]]:
    stubs = [path for folder in PACKAGES.values() for path in (ROOT / folder).rglob("*.pyi")]
    paths = {module_name(path): path for path in [*stubs, *python_files(*PACKAGES.values())]}
    return {name: {m for m in imported(path, name, set(paths)) if m in paths} for name, path in paths.items()}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Some circle of a graph; empty where there is none."""
    done: set[str] = set()

    def walk(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph[name]):
            if found := walk(other, [*way, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := walk(name, []))), [])


def test_the_imports_are_read() -> None:
    graph = import_graph()
    assert "ortmodule.capture.convert.emitter" in graph["ortmodule.capture.convert.converter"]
    assert "ortmodule.capture" in graph["ortmodule.graph_transition.attempts"]
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_no_circle_of_imports_not_even_for_types() -> None:
    assert circle(import_graph()) == []


@pytest.mark.parametrize(("low", "high"), [("rewrite", "trace"), ("rewrite", "convert"), ("trace", "convert")])
def test_a_stage_of_capture_knows_no_later_one(low: str, high: str) -> None:
    stage = "ortmodule.capture."
    wrong = [
        f"{name} imports {other}"
        for name, others in import_graph().items()
        for other in others
        if name.startswith(stage + low) and other.startswith(stage + high)
    ]
    assert wrong == []


# -- patches ----------------------------------------------------------------------------------------------------------


def test_every_file_of_patches_is_found_by_the_installer() -> None:
    patches = CAPTURE / "trace" / "patches"
    paths = [path.relative_to(patches).with_suffix("") for path in patches.rglob("*.py") if path.stem != "__init__"]
    files = [".".join(path.parts) for path in paths]
    assert len(files) > 10
    found = Counter(getattr(e, "enter", None) or e.make for e in patching.entries())
    for name in files:
        module = __import__(f"ortmodule.capture.trace.patches.{name}", fromlist=["PATCHES"])
        assert module.PATCHES, name
        assert all(found[getattr(e, "enter", None) or e.make] for e in module.PATCHES), name


def test_every_patched_attribute_is_one_of_this_torch() -> None:
    for entry in patching.entries():
        if isinstance(entry, patching.Patch) and not isinstance(entry.owner, str):
            known = hasattr(entry.owner, entry.name) or entry.default is not patching._MISSING
            assert known, f"{entry.owner}.{entry.name}"


def test_only_the_installer_replaces_attributes_and_knows_threads() -> None:
    allowed = {"patching.py", "tracing.py"}
    wrong = []
    for path in python_files("ortmodule/capture/trace"):
        if path.name in allowed:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in getattr(node, "names", ())] if isinstance(node, ast.Import) else []
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if "threading" in names or called == "delattr":
                wrong.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}")
    assert wrong == []
