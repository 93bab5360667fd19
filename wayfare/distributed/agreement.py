"""Do all ranks make the same call? A comparison of what each is about to do, before it does it.

In debug mode every collective call is compared: each rank sends the others one line of text (the call, shapes, dtypes,
its own source line). Ranks that differ are an error on every rank, and ranks that do not come are named. So are the two
ends of a message compared: a send then ends when the receiver has come.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from wayfare.core.errors import DistributedError
from wayfare.distributed.departures import Departures
from wayfare.distributed.engine import AGREEMENT_TAG, Array, Engine, Request, keep
from wayfare.distributed.work import wait_until

if TYPE_CHECKING:
    from wayfare.distributed.process_group import ProcessGroup

__all__ = ["Agreement", "differing_ranks"]

_LENGTH = 512


def differing_ranks(group: ProcessGroup, content: bytes) -> list[int]:
    """The ranks whose content is not that of rank 0. Every rank must call it."""
    digest = np.frombuffer(hashlib.sha256(content).digest(), np.uint8).copy()
    every = np.empty((group.size(), digest.size), np.uint8)
    group.work(group.engine.all_gather(digest, every), "the comparison of ranks").wait()
    return [r for r in range(group.size()) if not np.array_equal(every[r], every[0])]


class Agreement:
    """Compares the calls of the ranks of one group."""

    def __init__(self, engine: Engine, departures: Departures) -> None:
        self._engine = engine
        self._departures = departures
        self._number = 0

    def check(self, call: str, about: str, site: Any, timeout: float) -> None:
        """Raise, on every rank, unless all ranks make this call now."""
        self._number += 1
        mine = [str(self._number), call, about, str(site or "?")]
        lines = exchange(self._engine, "\n".join(mine), timeout, call, self._departures.call(call))
        for rank, other in enumerate(lines):
            theirs = other.split("\n")
            if theirs[:3] != mine[:3]:
                raise DistributedError(
                    f"distributed: the ranks make different calls: rank {self._engine.rank} calls {_shown(mine)} and "
                    f"rank {rank} calls {_shown(theirs)}",
                    fix="Every rank must make the same calls in the same order, with equal shapes and dtypes.",
                )

    def of_pair(self, request: Request, rank: int, tag: int, what: str, site: Any, *, sends: bool) -> Request:
        """A message that is an error on both of its ends unless they mean the same by it: `what` it holds."""
        mine, theirs = f"{what}\n{site or '?'}", np.zeros(_LENGTH, np.uint8)
        said, heard = (4 * tag + 1, 4 * tag + 3) if sends else (4 * tag + 3, 4 * tag + 1)
        coming = self._engine.receive(theirs, rank, heard)
        going = self._engine.send(_line(mine), rank, said)

        def poll() -> bool:
            # Before the message itself is asked for: one that is too long would be an error that names nothing.
            if not coming.test():
                return False
            other = _text(theirs)
            if other.split("\n")[0] != what:
                keep(request)
                ends = [(self._engine.rank, mine), (rank, other)]
                (source, sent), (to, wanted) = ends if sends else reversed(ends)
                raise DistributedError(f"distributed: rank {source} sends {_place(sent)} and rank {to} receives "
                                       f"{_place(wanted)}", fix="Receive a tensor in one of its shape and dtype, in "
                                       "the order of sending.")  # fmt: skip
            return going.test() and request.test()

        return Request(poll)


def _place(line: str) -> str:
    what, _, site = line.partition("\n")
    return f"{what} at {site}"


def _shown(parts: list[str]) -> str:
    number, call, about, site = parts
    return f"{call}({about}) at {site} as its call number {number}"


def _line(text: str) -> Array:
    data = text.encode()[:_LENGTH]
    sent = np.zeros(_LENGTH, np.uint8)
    sent[: len(data)] = np.frombuffer(data, np.uint8)
    return sent


def _text(line: Array) -> str:
    return bytes(line).rstrip(b"\0").decode(errors="replace")


def exchange(engine: Engine, text: str, timeout: float, call: str, look: Callable[[], None]) -> list[str]:
    """The line of every rank. If ranks do not come in time, an error that names them."""
    others = [rank for rank in range(engine.size) if rank != engine.rank]
    mine = _line(text)
    lines = {rank: np.zeros(_LENGTH, np.uint8) for rank in others} | {engine.rank: mine}
    coming = {rank: engine.receive(lines[rank], rank, AGREEMENT_TAG) for rank in others}
    going = [engine.send(mine, rank, AGREEMENT_TAG) for rank in others]

    def late() -> list[int]:
        return [rank for rank, request in coming.items() if not request.test()]

    if wait_until(lambda: not late(), timeout, look) is None:
        for request in (*coming.values(), *going):
            keep(request)
        missing = f"rank{'s' if len(late()) > 1 else ''} {', '.join(map(str, late()))}"
        raise DistributedError(f"distributed: {call} has waited {timeout:g} s, and {missing} did not come",
                               fix="It may be slow, dead, finished, or waiting somewhere else.")  # fmt: skip
    wait_until(lambda: all(request.test() for request in going), timeout, look)
    return [_text(lines[rank]) for rank in range(engine.size)]
