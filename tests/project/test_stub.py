"""The stub of the extension says what the extension has: same names, same parameters."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import ortmodule
from ortmodule import _C

STUB = Path(__file__).parents[2] / "ortmodule" / "_C.pyi"


def tree() -> ast.Module:
    return ast.parse(STUB.read_text())


def public(names: list[str]) -> set[str]:
    return {n for n in names if not n.startswith("_")}


def members(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {f.name: f for f in node.body if isinstance(f, ast.FunctionDef)}


def test_the_stub_names_what_the_module_exports() -> None:
    stub = {n.name for n in tree().body if isinstance(n, (ast.ClassDef, ast.FunctionDef))}
    assert stub == public(dir(_C))


def test_every_class_has_the_members_of_its_stub() -> None:
    for node in tree().body:
        if isinstance(node, ast.ClassDef):
            real = public(list(vars(getattr(_C, node.name))))
            assert public(list(members(node))) == real, node.name


def parameters(doc: str, name: str) -> list[str]:
    """Parameter names in the signature that pybind11 writes into a docstring."""
    match = re.match(rf"{name}\((.*)\) -> ", doc)
    assert match, doc
    return re.findall(r"(?:^|, )(\w+):", match.group(1))


def test_every_function_takes_the_parameters_of_its_stub() -> None:
    checked = 0
    for node in tree().body:
        real = getattr(_C, getattr(node, "name", ""), None)
        if real is None:
            continue
        functions = members(node) if isinstance(node, ast.ClassDef) else {node.name: node}
        for name, function in functions.items():
            target = getattr(real, name) if isinstance(node, ast.ClassDef) else real
            if isinstance(inspect.getattr_static(real, name, None), property) or isinstance(target, property):
                continue
            wanted = [a.arg for a in function.args.args]
            doc = target.__doc__ or ""
            if doc.startswith(f"{name}("):
                assert parameters(doc, name) == wanted, f"{node.name}.{name}"
                checked += 1
    assert checked >= 5


def test_public_names_are_exported() -> None:
    assert all(hasattr(ortmodule, name) for name in ortmodule.__all__)
