"""Ranks compare what they are about to do, and name the one that does not come.

Both go through the store of the process group, not through collectives: a key can be waited for with a limit of time,
and says by whom it was set. What was compared, or who is missing, is one text on every rank.
Not here: the collectives themselves (collectives.py).
"""

from __future__ import annotations

import datetime
import json
import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from ortmodule.distributed.errors import LostRankError, RankDisagreementError

__all__ = ["Agreement"]

_LOGGER = logging.getLogger("ortmodule")
_MOST_LINES = 100_000
_LOOK_SECONDS = 0.25  # between two looks whether a rank that is waited for has failed


class Agreement:
    """What a set of ranks agrees on.

    Args:
        ranks: their global ranks.
        seconds: how long they wait for one another.
        hang_seconds: how long one may stay behind until the others say so.

    All ranks must make their agreements in the same order.

    Attributes:
        seconds, hang_seconds: as given.
        waited: seconds that this rank has spent in `wait`.
    """

    _made = 0

    def __init__(self, ranks: Sequence[int], seconds: float, hang_seconds: float) -> None:
        self._ranks, self.seconds, self.hang_seconds = list(ranks), seconds, hang_seconds
        self._me = dist.get_rank()
        name = f"ortmodule/{Agreement._made}/{'-'.join(map(str, self._ranks))[:64]}"
        Agreement._made += 1
        self._store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())
        self._count = self._reached = 0
        self.waited = 0.0
        self._on_host = dist.get_backend() == "gloo"
        self._watch: _Watch | None = None
        self._waiter: _Waiter | None = None

    # -- the same on all ranks --------------------------------------------------------------------------------------

    def compare(self, topic: str, text: str, note: str = "") -> None:
        """Returns when every rank has come here with the same text; `note` is told where one has not, and not compared.

        Raises:
            RankDisagreementError: with the first line that differs.
            LostRankError: a rank did not come within the time.
        """
        key = f"compare/{self._count}"
        self._count += 1
        self._store.set(f"{key}/{self._me}", json.dumps([note, topic, *text.split("\n")[:_MOST_LINES]]))
        keys = [f"{key}/{rank}" for rank in self._ranks]
        self._raise_if_failed(key)
        try:
            self._store.wait(keys, datetime.timedelta(seconds=self.seconds))
        except RuntimeError as error:  # DistStoreError is one
            missing = [rank for rank, k in zip(self._ranks, keys, strict=True) if not self._store.check([k])]
            if not missing:
                raise
            said = f"{_ranks_text(missing)} did not come to '{topic}' within {self.seconds:g} s of the others"
            self._store.set(f"{key}/failed", said)
            raise LostRankError(said) from error
        self._raise_if_failed(key)
        notes, texts = [], []
        for k in keys:
            said, *lines = json.loads(self._store.get(k))
            notes.append(said)
            texts.append(lines)
        found = _difference(texts)
        if found is None:
            return
        first, other, difference = found
        told = "; ".join(f"rank {self._ranks[i]}: {notes[i]}" for i in (first, other) if notes[i])
        difference = difference.format(first=self._ranks[first], other=self._ranks[other])
        raise RankDisagreementError(difference + (f" ({told})" if told else ""))

    def _raise_if_failed(self, key: str) -> None:
        if self._store.check([f"{key}/failed"]):
            raise LostRankError(self._store.get(f"{key}/failed").decode())

    # -- who is behind ----------------------------------------------------------------------------------------------

    def reached(self, what: str) -> None:
        """Notes that this rank has come to the next place that all ranks pass."""
        self._reached += 1
        self._store.set(f"at/{self._me}", json.dumps([self._reached, what, time.time()]))

    def behind(self) -> str | None:
        """Which ranks have not come to where this one is; None: none is behind."""
        said = []
        for rank in self._ranks:
            if rank == self._me:
                continue
            if not self._store.check([f"at/{rank}"]):
                said.append(f"rank {rank} has not begun")
                continue
            count, what, when = json.loads(self._store.get(f"at/{rank}"))
            if count < self._reached:
                said.append(f"rank {rank} was last seen at '{what}', {time.time() - when:.1f} s ago")
        return "; ".join(said) or None

    def fail(self, topic: str, text: str) -> None:
        """Tells ranks that wait for one another about `topic` why this one does not come."""
        if self.failure(topic) is None:
            self._store.set(f"failed/{topic}", text)

    def failure(self, topic: str) -> str | None:
        """Why a rank does not come; None: none has said so."""
        return self._store.get(f"failed/{topic}").decode() if self._store.check([f"failed/{topic}"]) else None

    def wait(self, work: Any, what: str, topic: str | None = None) -> None:
        """Waits for a collective or a message. (On a GPU the stream waits, and who is behind is told in the log.)

        Args:
            work: what torch.distributed gave.
            what: it is.
            topic: what it is about: it ends where a rank has failed at that.

        Raises:
            LostRankError: it failed, or takes longer than ranks may hang; the text names those that are behind.
        """
        start = time.perf_counter()
        try:
            if self._on_host:
                self._wait_on_host(work, topic)
            else:
                with self.watched(what):
                    work.wait()
        except (RuntimeError, TimeoutError) as error:
            if topic is not None and (said := self.failure(topic)) is not None:
                raise LostRankError(said) from None
            behind = self.behind() or f"no rank is behind ({str(error).splitlines()[0]})"
            raise LostRankError(f"{what} did not come to its end: {behind}") from error
        self.waited += time.perf_counter() - start

    def _wait_on_host(self, work: Any, topic: str | None) -> None:
        if self._waiter is None:
            self._waiter = _Waiter()
        self._waiter.begin(work)
        end = time.monotonic() + self.hang_seconds
        while not self._waiter.is_done(min(_LOOK_SECONDS, max(end - time.monotonic(), 0.0))):
            if time.monotonic() >= end or (topic is not None and self.failure(topic) is not None):
                self._waiter = None  # it waits on
                raise TimeoutError(f"it takes more than {self.hang_seconds:g} s")

    @contextmanager
    def watched(self, what: str) -> Iterator[None]:
        """Has the ranks that are behind named in the log where what is done within takes longer than ranks may hang:
        for waits that cannot be ended from outside.
        """
        before = self.watch(what)
        try:
            yield
        finally:
            self.watch(before)

    def watch(self, what: str | tuple[float, str] | None) -> tuple[float, str] | None:
        """From now on is under way what is named, or nothing (None), or what was (a result of this method); what was
        under way before.
        """
        if self._watch is None:
            self._watch = _Watch(self, self.hang_seconds)
        before, self._watch.since = self._watch.since, (time.monotonic(), what) if isinstance(what, str) else what
        return before


class _Waiter:
    """A thread that waits for collectives: gloo's own wait with a limit goes on for longer than that."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="ortmodule waits", daemon=True).start()

    def begin(self, work: Any) -> None:
        self._asked.put(work)

    def is_done(self, seconds: float) -> bool:
        """Whether it is within that time. Raises what the collective raises."""
        try:
            error = self._done.get(timeout=seconds)
        except queue.Empty:
            return False
        if error is not None:
            raise error
        return True

    def _run(self) -> None:
        while True:
            work = self._asked.get()
            failure = None
            try:
                work.wait()
            except RuntimeError as error:
                failure = error
            # It holds the operands. Torch lets go of it without the interpreter's lock: a thread that wants that back
            # while the process ends is ended within C++ code, and the process with it.
            del work
            self._done.put(failure)
            del failure


class _Watch:
    """A thread that looks how long something has been under way."""

    def __init__(self, agreement: Agreement, seconds: float) -> None:
        self._agreement, self._seconds = agreement, seconds
        self.since: tuple[float, str] | None = None
        threading.Thread(target=self._run, name="ortmodule ranks", daemon=True).start()

    def _run(self) -> None:
        said: tuple[float, str] | None = None
        while True:
            time.sleep(min(self._seconds / 4, 1.0))
            since = self.since
            if since is None or since is said or time.monotonic() - since[0] < self._seconds:
                continue
            said = since
            try:
                behind = self._agreement.behind() or "no rank is behind"
            except RuntimeError as error:  # the store is gone, and with it the job
                behind = f"the store does not answer ({str(error).splitlines()[0]})"
            _LOGGER.error("%s takes more than %g s: %s", since[1], self._seconds, behind)


def _ranks_text(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))


def _difference(texts: Sequence[Sequence[str]]) -> tuple[int, int, str] | None:
    """The first text, one that differs from it, and how, with {first} and {other} for the ranks."""
    first = texts[0]
    for i, lines in enumerate(texts):
        if lines == first:
            continue
        if lines[0] != first[0]:
            return (
                0,
                i,
                f"rank {{other}} has come to '{_quoted(lines[0])}' while rank {{first}} is at '{_quoted(first[0])}'",
            )
        topic = _quoted(first[0])
        for mine, theirs in zip(lines, first, strict=False):
            if mine != theirs:
                said = f"rank {{other}} has '{_quoted(mine)}' where rank {{first}} has '{_quoted(theirs)}'"
                return 0, i, f"ranks disagree on {topic}: {said}"
        more, fewer = ("{other}", "{first}") if len(lines) > len(first) else ("{first}", "{other}")
        extra = max(lines, first, key=len)[min(len(lines), len(first))]
        return 0, i, f"ranks disagree on {topic}: rank {more} has '{_quoted(extra)}', which rank {fewer} does not have"
    return None


def _quoted(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
