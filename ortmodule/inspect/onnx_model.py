"""The record of an ONNX model by itself: compiled, and run some times on made-up inputs.

Not here: what a record holds (record.py), sessions as a program uses them (ortmodule/sessions).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from .. import _C
from ..errors import InvalidArgumentError, ORTModuleError, nearest
from ..sessions import InferenceSession, SessionOptions
from ..sessions.element_types import NodeArg
from .record import record_of

__all__ = ["inspect_model"]

_WARM_UP = 2  # the first run is recorded, from the second on values have their places


def inspect_model(
    path: str | os.PathLike[str],
    sizes: Mapping[str, int] | None = None,
    runs: int = 5,
    options: SessionOptions | None = None,
) -> dict[str, Any]:
    """The record of a model, as `page_of` takes it.

    Args:
        path: of a file with an ONNX model.
        sizes: of what the model leaves free, by its name, or as `input:axis` where it has none; 1 where none is given.
        runs: how many runs on made-up inputs are timed, behind two that are not; 0: nothing runs. Floats are normal
            random numbers, integers ones (zeros where the model fails with these), booleans true.
        options: how the model is compiled.

    Raises:
        InvalidArgumentError: no such file, or a size that the model does not have.
        InvalidGraphError, UnsupportedError: as `InferenceSession`. That a model cannot be run on such inputs is no
            error: the record says so.
    """
    _check(path, dict(sizes or {}), runs)
    settings = copy.copy(options) if options is not None else SessionOptions()
    settings._keep_history = True
    session = InferenceSession(path, settings)
    shapes = _shapes(session.get_inputs(), dict(sizes or {}))
    (engine,) = session._sessions()
    notes: dict[str, str] = {}
    known: dict[str, int] = {}
    try:
        feeds = _feeds(session, shapes, np.ones)
        known = session._sizes_of(feeds)
        if runs:
            notes["runs"] = _run(session, feeds, lambda: _feeds(session, shapes, np.zeros), runs)
    except ORTModuleError as error:
        notes["runs"] = f"it does not run on made-up inputs: {error}"
    return record_of(engine, Path(path).name, "inference", known, None, notes)


def _check(path: Any, sizes: dict[str, Any], runs: Any) -> None:
    if not isinstance(path, str | os.PathLike):
        raise InvalidArgumentError(f"inspect_model takes the path of a model, got {type(path).__name__}")
    for what, number in (("runs", runs), *((f"the size {name!r}", size) for name, size in sizes.items())):
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise InvalidArgumentError(f"{what} should be a number from 0 on, got {number!r}")


def _shapes(inputs: list[NodeArg], sizes: dict[str, int]) -> dict[str, list[int]]:
    """The sizes of each tensor among the inputs."""
    out: dict[str, list[int]] = {}
    names: set[str] = set()
    for value in inputs:
        shape = []
        for axis, size in enumerate(value.shape or ()):
            name = size if isinstance(size, str) else f"{value.name}:{axis}"
            if not isinstance(size, int):
                names.add(name)
            shape.append(size if isinstance(size, int) else sizes.get(name, 1))
        out[value.name] = shape
    for name in sizes:
        if name not in names:
            there = f"; it leaves free: {', '.join(sorted(names))}" if names else "; it leaves none free"
            raise InvalidArgumentError(f"the model has no free size {name!r}{there}{nearest(name, names)}")
    return out


def _feeds(
    session: InferenceSession, shapes: Mapping[str, list[int]], integers: Callable[..., np.ndarray[Any, Any]]
) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {}
    for value in session.get_inputs():
        if value.is_optional:
            feeds[value.name] = None
            continue
        if value.element_type == onnx.TensorProto.STRING:
            raise InvalidArgumentError(f"the input {value.name!r} holds strings")
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.element_type)
        shape = shapes[value.name]
        if kind == np.bool_:
            one = np.ones(shape, kind)
        elif kind.kind in "iu":
            one = integers(shape, kind)
        else:
            one = rng.standard_normal(shape).astype(kind)
        feeds[value.name] = [one] if value.is_sequence else one
    return feeds


def _run(session: InferenceSession, feeds: dict[str, Any], others: Callable[[], dict[str, Any]], runs: int) -> str:
    """Runs the model; says how."""
    try:
        session.run(None, feeds)
    except ORTModuleError:  # ones may be no indices of a table
        feeds = others()
        session.run(None, feeds)
    for _ in range(_WARM_UP):
        session.run(None, feeds)
    for engine in session._sessions():
        engine.take_times()  # of runs so far, where the process times all of them
    _C.profile(True)
    try:
        for _ in range(runs):
            session.run(None, feeds)
    finally:
        _C.profile(False)
    return f"{runs} runs on made-up inputs"
