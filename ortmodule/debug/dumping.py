"""Writes what nodes took and gave, of a model or a session: `with ortmodule.debug.dump(model, "dumps"): ...`.

Not here: what is written (node_dump.py), and the dump that options or environment variables ask for (DebugOptions).
"""

from __future__ import annotations

import os
import types
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import InvalidArgumentError
from ..globs import Choice
from ..ortmodule import ORTModule
from ..sessions import InferenceSession
from .following import FollowedSession, follow
from .node_dump import NodeDump, next_path

__all__ = ["Dump", "dump"]


class Dump:
    """What `dump` gives: a context manager, or ended by hand.

    Attributes:
        paths: the files so far, one per session that has run.
    """

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._dumps: list[NodeDump] = []
        self._stop: Callable[[], None] = lambda: None

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(dump.path for dump in self._dumps if dump.path.exists())

    def close(self) -> None:
        """Nothing more is written. Warns of globs that fitted nothing."""
        self._stop()
        for dump in self._dumps:
            dump.end()
        if idle := self._choice.idle():
            warnings.warn(f"dump: {idle}", stacklevel=2)

    def __enter__(self) -> Dump:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.close()


def dump(
    model: ORTModule | InferenceSession,
    folder: str | os.PathLike[str],
    *,
    runs: int = 1,
    names: str | Sequence[str] = (),
    operators: str | Sequence[str] = (),
    tensors: bool = False,
    prefix: str = "",
) -> Dump:
    """Writes inputs and outputs of nodes, forward and backward, as they run, until the Dump is closed.

    Each session writes `<folder>/<prefix>_nodes_<number>_<mode>.txt`; a line per value, with type, shape, smallest,
    largest, mean, standard deviation, NaN and infinities. Each line is on disk before the next node runs.

    Args:
        model: an ORTModule (with the sub-modules that run in the engine on their own) or an InferenceSession.
        folder: made if it is not there.
        runs: of how many runs of each session.
        names: globs, of which one has to fit the name of a node or of a value that it makes; a list, or one text with
            commas between. None: all.
        operators: the same for operators ("Gemm", "ai.ortmodule::*").
        tensors: write whole outputs too, each with torch.save, into a folder beside the text that is named like it.
        prefix: first part of the names; that of the module's class, or "session".

    Raises:
        InvalidArgumentError: an argument that does not fit.
    """
    if not isinstance(runs, int) or isinstance(runs, bool) or runs < 1:
        raise InvalidArgumentError(f"runs should be a whole number, 1 or more, got {runs!r}")
    if not isinstance(folder, str | os.PathLike):
        raise InvalidArgumentError(f"folder should be a path, got {type(folder).__name__}")
    made = Dump(choice := Choice(names, operators))
    whole = "session" if isinstance(model, InferenceSession) else ""

    def begin(one: FollowedSession) -> None:
        first = prefix or whole or type(getattr(model, "module", model)).__name__
        path = next_path(Path(folder), "_".join(filter(None, (first, one.module))), one.mode)
        made._dumps.append(NodeDump(one.session, path, runs, choice, bool(tensors)))

    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(f"cannot write to {folder}: {error}") from error
    made._stop = follow("dump", model, begin)
    return made
