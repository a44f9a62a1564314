"""Source text with places to fill in: `$h` and the like, one letter each.

In a row: $n the piece's number, $v and $w a value, $e the expression that reads it, $h what it is read from, $k its
name there, $d a value for where it is absent, $t a name for a local variable, $o one for a further result.
"""

from __future__ import annotations

import re
import textwrap

__all__ = ["fill", "indent", "one_line"]

_PLACE = re.compile(r"\$([a-z])")


def fill(template: str, **values: object) -> str:
    """The template with its places filled in; one that has no value stays. Later lines of a value are indented too."""

    def value(match: re.Match[str]) -> str:
        return str(values[match[1]]) if match[1] in values else match[0]

    return _PLACE.sub(value, template)


def indent(lines: str, levels: int = 1) -> str:
    return textwrap.indent(lines, "    " * levels)


def one_line(template: str) -> bool:
    return "\n" not in template
