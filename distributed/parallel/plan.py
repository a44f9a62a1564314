"""A plan: which module of a model is divided how. Plain data, checked against a model before anything is done.

Not here: what is done with it (parallelize.py), and a plan that is made from sizes and bandwidths (propose.py).
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from ortmodule.distributed.parallel import styles as kinds
from ortmodule.distributed.parallel.division import divisions_of
from ortmodule.distributed.parallel.experts import MixtureOfExperts
from ortmodule.distributed.parallel.styles import Style
from ortmodule.errors import InvalidArgumentError

__all__ = ["Plan", "pattern_of"]

Styles = Style | tuple[Style, ...]


@dataclasses.dataclass(frozen=True)
class Plan:
    """Names of modules, and how each is divided.

    Attributes:
        styles: by pattern: a module's dotted name, in which `*` stands for one part of it and `**` for any number; what
            matches gets the style, or several.

    Raises:
        InvalidArgumentError: a value is no style.
    """

    styles: Mapping[str, Styles]

    def __post_init__(self) -> None:
        for pattern, given in self.styles.items():
            for style in _several(given):
                if not isinstance(style, Style):
                    raise InvalidArgumentError(f"the plan has for '{pattern}' {style!r}, which is no style")

    def match(self, model: nn.Module) -> dict[str, tuple[Style, ...]]:
        """The styles of each module by its name, in the model's order.

        Raises:
            InvalidArgumentError: a pattern matches no module, or two match the same.
        """
        names = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
        by: dict[str, str] = {}
        for pattern in self.styles:
            found = [name for name in names if _regex(pattern).fullmatch(name)]
            if not found:
                near = difflib.get_close_matches(pattern, list(dict.fromkeys(map(pattern_of, names))), n=2)
                said = f": did you mean {' or '.join(near)}?" if near else ""
                raise InvalidArgumentError(f"the plan's '{pattern}' matches no module of {type(model).__name__}{said}")
            for name in found:
                if name in by:
                    raise InvalidArgumentError(f"the plan's '{by[name]}' and '{pattern}' both match {name}")
                by[name] = pattern
        return {name: _several(self.styles[by[name]]) for name in names if name in by}

    def check(self, model: nn.Module, world: int) -> dict[str, tuple[Style, ...]]:
        """`match`, and that each module can be divided so among `world` ranks.

        Raises:
            InvalidArgumentError: it cannot; the text names the module and what to do.
        """
        found = self.match(model)
        for name, given in found.items():
            for style in given:
                problem = _problem(model.get_submodule(name), style, world)
                if problem is not None:
                    raise InvalidArgumentError(f"{name} ({type(style).__name__}): {problem}")
        return found

    def describe(self, model: nn.Module, world: int) -> str:
        """A line for each module that the plan divides: its name, how, and how many of its elements a rank holds."""
        lines = []
        for name, given in self.check(model, world).items():
            module = model.get_submodule(name)
            how = {own: division for style in given for own, division in divisions_of(module, style).items()}
            whole = sum(p.numel() for p in module.parameters())
            held = sum(
                how[own].elements(p.shape, world) if own in how else p.numel() for own, p in module.named_parameters()
            )
            lines.append((name, " + ".join(map(_text, given)), f"{whole:,} -> {held:,}" if how else f"{whole:,}"))
        widths = [max((len(line[i]) for line in lines), default=0) for i in range(2)]
        return "\n".join(f"{name:<{widths[0]}}  {how:<{widths[1]}}  {held}" for name, how, held in lines)

    def to_dict(self) -> dict[str, Any]:
        """The plan as dicts, lists, texts and numbers (for JSON)."""
        return {
            pattern: [{"style": type(style).__name__, **dataclasses.asdict(style)} for style in _several(given)]
            for pattern, given in self.styles.items()
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Plan:
        """The plan that `to_dict` made this of.

        Raises:
            InvalidArgumentError: a style is not known, or has other fields.
        """
        styles: dict[str, Styles] = {}
        for pattern, given in data.items():
            made = []
            for one in given:
                fields = {k: tuple(v) if isinstance(v, list) else v for k, v in one.items() if k != "style"}
                kind = getattr(kinds, str(one.get("style")), None) if one.get("style") in kinds.__all__ else None
                try:
                    made.append(kind(**fields))  # type: ignore[misc]
                except TypeError as error:
                    raise InvalidArgumentError(f"the plan's '{pattern}' has no style that is {one}") from error
            styles[pattern] = tuple(made)
        return Plan(styles)

    def __str__(self) -> str:
        return "\n".join(f"{pattern}: {' + '.join(map(_text, _several(s)))}" for pattern, s in self.styles.items())


def pattern_of(name: str) -> str:
    """The name of a module with `*` in the place of numbers."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def _several(given: Styles) -> tuple[Style, ...]:
    return given if isinstance(given, tuple) else (given,)


def _text(style: Style) -> str:
    changed = [
        f"{f.name}={getattr(style, f.name)!r}"
        for f in dataclasses.fields(style)
        if f.default is dataclasses.MISSING or getattr(style, f.name) != f.default
    ]
    return type(style).__name__ + (f"({', '.join(changed)})" if changed else "")


def _regex(pattern: str) -> re.Pattern[str]:
    parts = [{"*": "[^.]+", "**": ".+"}.get(part, re.escape(part)) for part in re.split(r"(\*\*|\*)", pattern)]
    return re.compile("".join(parts))


def _problem(module: nn.Module, style: Style, world: int) -> str | None:
    check = _CHECKS.get(type(style))
    return check(module, style, world) if check is not None else None


def _is(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether it computes as `kind` does: its forward is that one's."""
    return isinstance(module, kind) and type(module).forward is kind.forward


def _column(module: nn.Module, style: Any, world: int) -> str | None:
    if not _is(module, nn.Linear):
        return f"expected an nn.Linear, got {type(module).__name__}"
    outputs = module.out_features
    if outputs % (world * style.parts):
        parts = f" of {style.parts} blocks" if style.parts > 1 else ""
        return f"{outputs} outputs{parts} cannot be divided among {world} ranks"
    return None


def _row(module: Any, style: Any, world: int) -> str | None:
    del style
    if not _is(module, nn.Linear):
        return f"expected an nn.Linear, got {type(module).__name__}"
    return f"{module.in_features} inputs cannot be divided among {world} ranks" if module.in_features % world else None


def _vocabulary(module: nn.Module, style: Any, world: int) -> str | None:
    del world
    if _is(module, nn.Linear):
        return None
    if not _is(module, nn.Embedding):
        return f"expected an nn.Embedding or nn.Linear, got {type(module).__name__}"
    if style.gather:
        return "gather= is for a Linear: an Embedding's result is whole"
    for option in ("max_norm", "sparse", "scale_grad_by_freq"):
        if getattr(module, option):
            return f"an Embedding with {option} cannot be divided: make it without"
    return None


def _loss(module: nn.Module, style: Any, world: int) -> str | None:
    del style, world
    if not _is(module, nn.CrossEntropyLoss):
        return f"expected an nn.CrossEntropyLoss, got {type(module).__name__}"
    if module.weight is not None or module.label_smoothing:
        return "weights of classes and label_smoothing need all scores: use Vocabulary(gather=True) and no style here"
    return None


def _divide(module: nn.Module, style: Any, world: int) -> str | None:
    for name in style.attributes:
        value = getattr(module, name, None)
        if type(value) is not int:
            return f"{type(module).__name__} has no number '{name}'"
        if value % world:
            return f"{name} = {value} cannot be divided among {world} ranks"
    return None


def _experts(module: nn.Module, style: Any, world: int) -> str | None:
    del style
    if not isinstance(module, MixtureOfExperts):
        return f"expected a MixtureOfExperts, got {type(module).__name__}"
    for name, p in module.experts.named_parameters():
        if p.dim() == 0 or p.shape[0] % world:
            return f"experts.{name} of shape {[*p.shape]} cannot be divided among {world} ranks along its first axis"
    return None


_CHECKS: dict[type[Style], Callable[[nn.Module, Any, int], str | None]] = {
    kinds.Column: _column,
    kinds.Row: _row,
    kinds.Vocabulary: _vocabulary,
    kinds.VocabularyLoss: _loss,
    kinds.Divide: _divide,
    kinds.Experts: _experts,
}
