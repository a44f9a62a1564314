"""What sessions log, to the logger "ortmodule.sessions".

How much is a matter of a session's options, not of the logger's level; where it goes, of its handlers. Without any it
is written to the standard error stream.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator

from .. import _C
from .session_options import RunOptions, SessionOptions

__all__ = ["log_build", "log_run"]

_LOGGER = logging.getLogger("ortmodule.sessions")
_VERBOSE, _INFO = 0, 1  # severities, as the options count them
_LEVELS = {_VERBOSE: logging.DEBUG, _INFO: logging.INFO}
_FORMATTER = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")


def log_build(session: _C.Session, settings: SessionOptions, fed: frozenset[str]) -> None:
    """What was made of a model, and how long it took."""
    if settings.log_severity_level > _INFO:
        return
    made = session.statistics()
    seconds = sum(made["seconds"].values())
    given = f", given {sorted(fed)}" if fed else ""
    _say(
        _INFO,
        settings.logid,
        f"{made['forward_nodes']} nodes{given}, compiled in {seconds:.3f} s; {made['fused_kernels']} fused kernels of "
        f"{made['fused_nodes']} nodes; {settings.execution_mode.value}",
    )
    if settings.log_severity_level > _VERBOSE:
        return
    for stage, took in made["seconds"].items():
        _say(_VERBOSE, settings.logid, f"stage {stage}: {took:.4f} s")
    for stage, name, runs, modifications, took in made["passes"]:
        if modifications:
            _say(_VERBOSE, settings.logid, f"pass {name} ({stage}): {modifications} in {runs} runs, {took:.4f} s")
    if settings.log_verbosity_level > 0:
        _say(_VERBOSE, settings.logid, session.plan_text())


@contextlib.contextmanager
def log_run(options: RunOptions | None, settings: SessionOptions) -> Iterator[None]:
    """What the run inside takes, and that it fails."""
    if options is None or options.log_severity_level > _VERBOSE:
        yield
        return
    name = f"run {options.tag!r}" if options.tag else "run"
    logid = options.logid or settings.logid
    begin = time.perf_counter()
    try:
        yield
    except Exception as error:
        _say(_VERBOSE, logid, f"{name} failed after {1e3 * (time.perf_counter() - begin):.3f} ms: {error}")
        raise
    _say(_VERBOSE, logid, f"{name}: {1e3 * (time.perf_counter() - begin):.3f} ms")


def _say(severity: int, logid: str, message: str) -> None:
    text = f"[{logid}] {message}" if logid else message
    record = _LOGGER.makeRecord(_LOGGER.name, _LEVELS[severity], __file__, 0, text, (), None)
    if _LOGGER.hasHandlers():
        _LOGGER.handle(record)
    else:
        print(_FORMATTER.format(record), file=sys.stderr)
