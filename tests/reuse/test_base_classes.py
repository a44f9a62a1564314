"""Members of base classes that one before them has too: `super()`, a class's bases, a base by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn

from ortmodule import Options, ORTModule

CLASSES = """
class A(Linear):
    K = 2.0
    def g(self):
        return self.K
    def forward(self, x):
        return self.linear(x) * self.K
    @property
    def p(self):
        return self.K + 1
    @classmethod
    def c(cls):
        return cls.K + 2
    def __getitem__(self, i):
        return self.K * i
    def __len__(self):
        return 3

class B(A):
    K = 3.0
    def g(self):
        return super().g() + 1
    @property
    def p(self):
        return super().p * 2
    @classmethod
    def c(cls):
        return super().c() * 3
    def __getitem__(self, i):
        return super().__getitem__(i) + 1
    def __len__(self):
        return super().__len__() + 1

class C(B):
    def forward(self, x):
        y = self.linear(x)
        return EXPRESSION
"""
EXPRESSIONS = (
    "super().forward(x)", "super(B, self).forward(x)", "A.forward(self, x)", "y * super().K", "y * super(B, self).K",
    "y * self.g()", "y * super(B, self).g()", "y * getattr(super(B, self), 'g')()", "y * self.p", "y * self.c()",
    "y * self[1]", "y * super().__getitem__(2)", "y * len(self)", "y * type(self).__mro__[2].K", "y * B.__base__.K",
    "y * B.__bases__[0].g(self)", "y * len(type(self).__mro__)", "y * (lambda one: one.K)(super(B, self))",
)  # fmt: skip
CHANGES = (
    "A.K = 5.0", "A.g = lambda self: 7.0", "A.p = property(lambda self: 9.0)", "A.c = classmethod(lambda cls: 11.0)",
    "A.__getitem__ = lambda self, i: 17.0", "A.__len__ = lambda self: 19",
    "A.forward = lambda self, x: self.linear(x) * 23", "B.K = 29.0", "B.g = lambda self: 31.0", "C.K = 37.0",
    "model.K = 41.0", "model.g = lambda: 43.0",
    # Classes that say no module: these names have no `__name__` among them.
    "B.__bases__ = (type('D', (A,), {'K': 47.0, 'g': lambda s: 53.0, 'forward': lambda s, x: s.linear(x) * 59}),)",
    "del B.g", "A.g = lambda self: 61.0",
)  # fmt: skip


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)


def checked(wrapped: ORTModule, module: Callable[..., torch.Tensor], change: str) -> None:
    x = torch.randn(2, 3)
    for _ in range(2):
        torch.testing.assert_close(wrapped(x), module(x), msg=lambda text: f"after {change}: {text}")


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_changes_of_bases_are_seen(expression: str) -> None:
    names: dict[str, Any] = {"Linear": Linear}
    exec(CLASSES.replace("EXPRESSION", expression), names)
    module = names["model"] = names["C"]()
    wrapped = ORTModule(module, options=Options(fallback="error"))
    checked(wrapped, module, "nothing")
    for change in CHANGES:
        exec(change, names)
        checked(wrapped, module, change)


def test_what_no_base_finds_costs_no_graph() -> None:
    names: dict[str, Any] = {"Linear": Linear}
    exec(CLASSES.replace("EXPRESSION", "y * super(B, self).g()"), names)
    wrapped = ORTModule(names["C"](), options=Options(fallback="error"))
    for _ in range(3):
        wrapped(torch.randn(2, 3))
        names["A"].unread = object()
    assert len(wrapped.report().exports) == 1


class Root:
    pass


class Kept(Root):
    pass


class Kind(Kept):
    pass


class Elsewhere:
    pass


def test_bases_that_are_asked_for_and_not_named() -> None:
    class Checked(Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.linear(x)
            return y * (2.0 if isinstance(Kind(), Kept) else 3.0) * (5.0 if issubclass(Kind, Root) else 7.0)

    module = Checked()
    wrapped = ORTModule(module, options=Options(fallback="error"))
    checked(wrapped, module, "nothing")
    for bases in ((Root,), (Elsewhere,), (Kept, Elsewhere), (Kept,)):
        Kind.__bases__ = bases
        checked(wrapped, module, f"{bases} as bases")


class Asked(Linear):
    """As wrappers of models are: attributes that it has not are the inner module's."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.linear, name)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = super().__call__(x) * 3
        return result

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        return y * self.in_features


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Asked()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x)
        return result


def test_special_methods_that_call_those_of_modules() -> None:
    module = Around()
    wrapped = ORTModule(module, options=Options(fallback="error"))
    checked(wrapped, module, "nothing")
    module.inner.linear.in_features = 5
    checked(wrapped, module, "the inner module's attribute")
    assert len(wrapped.report().exports) == 2
