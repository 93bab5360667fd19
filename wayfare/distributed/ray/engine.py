"""The Ray engine: arrays go through Ray's object store, and an actor tells ranks where they are.

Every transfer costs two calls of the actor, about 5 ms, whatever its size up to some megabytes: send few large arrays
rather than many small ones.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wayfare.core.errors import DistributedError
from wayfare.distributed.engine import Array, Engine, Request

try:
    import ray
except ModuleNotFoundError as error:
    if error.name != "ray":
        raise
    raise DistributedError("wayfare.ray: Ray is not installed", fix='Install it with: pip install "wayfare[ray]".'
                           ) from None  # fmt: skip

# Arrays up to this many bytes travel inside the calls of the actor.
_SMALL = 64 * 1024


class Exchange:
    """The actor: ranks bring an array, or a reference to one, and get those of the others when all are there."""

    def __init__(self) -> None:
        self._waiting: dict[Any, tuple[dict[int, Any], asyncio.Event]] = {}

    def _place(self, key: Any) -> tuple[dict[int, Any], asyncio.Event]:
        found = self._waiting.get(key)
        if found is None:
            found = self._waiting[key] = {}, asyncio.Event()
        return found

    async def gather(self, key: Any, rank: int, size: int, box: Any) -> list[Any]:
        """Bring one, and take those of all ranks."""
        brought, complete = self._place(key)
        brought[rank] = box
        if len(brought) == size:
            complete.set()
            self._waiting.pop(key, None)
        await complete.wait()
        return [brought[r] for r in range(size)]

    async def give(self, key: Any, box: Any) -> None:
        """Bring one for another rank; returns when it was taken, so that memory does not pile up."""
        brought, complete = self._place(key)
        brought[0] = box
        complete.set()

    async def take(self, key: Any) -> Any:
        """Take what another rank brings."""
        brought, complete = self._place(key)
        await complete.wait()
        self._waiting.pop(key, None)
        return brought[0]


def new_exchange() -> Any:
    """Start the actor of a run. It lives as long as somebody has this handle."""
    return ray.remote(Exchange).options(num_cpus=0, max_concurrency=10_000).remote()


class RayEngine(Engine):
    """The workers of a Ray run, as a process group."""

    name = "ray"

    def __init__(self, exchange: Any, rank: int, size: int, group: str = "world") -> None:
        self._exchange = exchange
        self.rank, self.size = rank, size
        self._group = group
        self._calls = 0
        self._groups = 0
        # Messages between two ranks with one tag are numbered, so that they keep their order.
        self._messages: dict[Any, int] = {}

    def all_gather(self, source: Array, out: Array) -> Request:
        """`out[r]` becomes the source of rank r."""
        self._calls += 1
        asked = self._exchange.gather.remote((self._group, self._calls), self.rank, self.size, _boxed(source))

        def finish() -> None:
            for r, array in enumerate(_opened(ray.get(asked))):
                out[r] = array

        return Request(_is_there(asked), finish)

    def send(self, array: Array, to: int, tag: int = 0) -> Request:
        """Send to one rank."""
        return Request(_is_there(self._exchange.give.remote(self._next(self.rank, to, tag), _boxed(array))))

    def receive(self, array: Array, source: int, tag: int = 0) -> Request:
        """Receive from one rank."""
        asked = self._exchange.take.remote(self._next(source, self.rank, tag))

        def finish() -> None:
            (found,) = _opened([ray.get(asked)])
            if found.shape != array.shape or found.dtype != array.dtype:
                raise DistributedError(f"distributed: rank {source} sent {found.dtype}{list(found.shape)}, and "
                                       f"{array.dtype}{list(array.shape)} was to be received")  # fmt: skip
            array[...] = found

        return Request(_is_there(asked), finish)

    def _next(self, source: int, to: int, tag: int) -> Any:
        place = (source, to, tag)
        number = self._messages[place] = self._messages.get(place, 0) + 1
        return (self._group, place, number)

    def split(self, ranks: Sequence[int]) -> Engine | None:
        """The same actor with keys of its own."""
        self._groups += 1
        name = f"{self._group}/{self._groups}"
        return RayEngine(self._exchange, list(ranks).index(self.rank), len(ranks), name) if self.rank in ranks else None

    def abort(self, code: int) -> None:
        """End this worker: Ray ends the others, and starts all of them anew."""
        os._exit(code)

    def close(self) -> None:
        """Let the actor go."""
        self._exchange = None


def _boxed(array: Array) -> Any:
    """An array for the actor: small ones themselves, others as a reference, inside a list so that it stays one."""
    return np.array(array) if array.nbytes <= _SMALL else [ray.put(array)]


def _opened(boxes: Sequence[Any]) -> list[Array]:
    large = iter(ray.get([box[0] for box in boxes if isinstance(box, list)]))
    return [next(large) if isinstance(box, list) else box for box in boxes]


def _is_there(asked: Any) -> Callable[[], bool]:
    """Whether a call of the actor has been answered."""

    def poll() -> bool:
        ready, _ = ray.wait([asked], timeout=0)
        return bool(ready)

    return poll
