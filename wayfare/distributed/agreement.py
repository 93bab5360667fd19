"""Do all ranks make the same call? A comparison of what each is about to do, before it does it.

In debug mode every collective call is compared: each rank sends the others one line of text (the call, shapes, dtypes,
its own source line). Ranks that differ are an error on every rank, and ranks that do not come are named.
"""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from wayfare.core.errors import DistributedError
from wayfare.distributed.engine import Engine

if TYPE_CHECKING:
    from wayfare.distributed.process_group import ProcessGroup

__all__ = ["Agreement", "differing_ranks"]

_LENGTH = 512
# The user's messages have even tags (collectives.py), these an odd one.
_TAG = 1


def differing_ranks(group: ProcessGroup, content: bytes) -> list[int]:
    """The ranks whose content is not that of rank 0. Every rank must call it."""
    digest = np.frombuffer(hashlib.sha256(content).digest(), np.uint8).copy()
    every = np.empty((group.size(), digest.size), np.uint8)
    group.work(group.engine.all_gather(digest, every), "the comparison of ranks").wait()
    return [r for r in range(group.size()) if not np.array_equal(every[r], every[0])]


class Agreement:
    """Compares the calls of the ranks of one group."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._number = 0

    def check(self, call: str, about: str, site: Any, timeout: float) -> None:
        """Raise, on every rank, unless all ranks make this call now."""
        self._number += 1
        line = "\n".join((str(self._number), call, about, str(site or "?")))
        lines = exchange(self._engine, line, timeout, call)
        mine = line.split("\n")
        for rank, other in enumerate(lines):
            theirs = other.split("\n")
            if theirs[:3] != mine[:3]:
                raise DistributedError(
                    f"distributed: the ranks make different calls: rank {self._engine.rank} calls {_shown(mine)} and "
                    f"rank {rank} calls {_shown(theirs)}",
                    fix="Every rank must make the same calls in the same order, with equal shapes and dtypes.",
                )


def _shown(parts: list[str]) -> str:
    number, call, about, site = parts
    return f"{call}({about}) at {site} as its call number {number}"


def exchange(engine: Engine, line: str, timeout: float, call: str) -> list[str]:
    """The line of every rank. If ranks do not come in time, an error that names them."""
    sent = np.zeros(_LENGTH, np.uint8)
    data = line.encode()[:_LENGTH]
    sent[: len(data)] = np.frombuffer(data, np.uint8)
    others = [rank for rank in range(engine.size) if rank != engine.rank]
    lines = {rank: np.zeros(_LENGTH, np.uint8) for rank in others}
    coming = {rank: engine.receive(lines[rank], rank, _TAG) for rank in others}
    going = [engine.send(sent, rank, _TAG) for rank in others]
    start, polls = time.perf_counter(), 0
    while missing := [rank for rank, request in coming.items() if not request.test()]:
        polls += 1
        if polls > 50:
            time.sleep(5e-5)
        if time.perf_counter() - start > timeout:
            late = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
            raise DistributedError(f"distributed: {call} has waited {timeout:g} s, and {late} did not come",
                                   fix="It may be slow, dead, finished, or waiting somewhere else.")  # fmt: skip
    while not all(request.test() for request in going):
        time.sleep(5e-5)
    found = {rank: bytes(array).rstrip(b"\0").decode(errors="replace") for rank, array in lines.items()}
    return [found.get(rank, data.decode(errors="replace")) for rank in range(engine.size)]
