"""`python -m ortmodule.inspect DIR|model.onnx [-o page.html]`: one HTML page of what the engine makes of a model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import ORTModuleError
from .folder import read
from .onnx_model import inspect_model
from .page import write_page


def _size(text: str) -> tuple[str, int]:
    name, equals, number = text.rpartition("=")
    if not equals or not name or not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} should be NAME=NUMBER, for example batch=4")
    return name, int(number)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} should be a number from 0 on")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ortmodule.inspect",
        description="Writes one HTML page that shows the graphs of a model before and after each pass, its plan, its "
        "memory and the times of its nodes. It needs no network, and holds no weights.",
    )
    parser.add_argument(
        "source",
        metavar="DIR|model.onnx",
        help="a folder that a program has filled (DebugOptions.inspect_path, SessionOptions.inspect_path, "
        "ORTMODULE_INSPECT_PATH), or an ONNX model, which is compiled and run",
    )
    parser.add_argument("-o", "--output", metavar="page.html", help="default: DIR/inspect.html, or model.inspect.html")
    parser.add_argument(
        "-s",
        "--size",
        metavar="NAME=N",
        action="append",
        type=_size,
        default=[],
        help="a size that the model leaves free, by its name, or INPUT:AXIS=N where it has none (default: 1)",
    )
    parser.add_argument("--runs", metavar="N", type=_count, default=5, help="timed runs of the model (default: 5)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    source = Path(asked.source)
    if source.is_dir() and asked.size:
        parser.error("--size is for a model; what is in a folder has run with sizes of its own")
    try:
        if source.is_dir():
            records, output = read(source), Path(asked.output or source / "inspect.html")
        else:
            records = [inspect_model(source, dict(asked.size), asked.runs)]
            output = Path(asked.output or f"{source.stem}.inspect.html")
        path = write_page(records, output)
    except ORTModuleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    for record in records:
        print(f"{record['title']} ({record['mode']}): {record['notes'].get('runs') or _said(record)}")
    print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
    return 0


def _said(record: dict[str, Any]) -> str:
    return "times of runs" if record["times"] else "no times: nothing has run"


if __name__ == "__main__":
    sys.exit(main())
