"""One self-contained HTML page of records: `page_of(records)`.

The page's own parts lie in assets/; the records are packed into it, so that it needs no network and no other file.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError

__all__ = ["page_of", "write_page"]

_STYLES = ("page.css", "views.css")
# In this order: each uses those before it.
_SCRIPTS = (
    "base.js", "model.js", "history.js", "list.js", "details.js", "drawing.js", "graph_view.js", "plan_view.js",
    "memory_data.js", "memory_view.js", "profile_view.js", "overview.js", "search.js", "main.js",
)  # fmt: skip


def page_of(records: Sequence[dict[str, Any]], title: str = "") -> str:
    """The page's text.

    Args:
        records: as `inspect_model` or `read` gives them, at least one.
        title: by default the records' own.

    Raises:
        InvalidArgumentError: there are no records.
    """
    if not records:
        raise InvalidArgumentError("there is no record to make a page of")
    title = title or ", ".join(dict.fromkeys(record["title"] for record in records))
    packed = base64.b64encode(gzip.compress(json.dumps(list(records)).encode(), 6, mtime=0)).decode()
    parts = {
        "title": html.escape(title),
        "style": "\n".join(map(_asset, _STYLES)),
        "script": "\n".join(map(_asset, _SCRIPTS)),
        "data": packed,
    }
    page = _asset("page.html")
    for name, text in parts.items():
        page = page.replace(f"{{{{{name}}}}}", text)
    return page


def write_page(records: Sequence[dict[str, Any]], path: str | os.PathLike[str], title: str = "") -> Path:
    """Writes `page_of(records, title)` to a file and returns its path.

    Raises:
        InvalidArgumentError: there are no records, or the file cannot be written.
    """
    text = page_of(records, title)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidArgumentError(f"the page {os.fspath(path)!r} cannot be written: {error}") from error
    return Path(path)


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")
