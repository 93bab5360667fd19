"""What carries arrays between processes: the protocol that MPI (mpi.py) and other engines speak.

An engine knows arrays only: C-contiguous NumPy arrays, no tensors. Every method starts a transfer and returns a
`Request`; the arrays belong to the transfer until `test()` has said True. Ranks are those of the engine, 0 … size - 1.

A new engine must have `all_gather`, `send`, `receive` and `split`. The other methods are written with these, and are
there to be overridden where the engine has something better.
"""

from __future__ import annotations

import ctypes
import enum
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from wayfare.core.errors import DistributedError

__all__ = ["Array", "Engine", "ReduceOp", "Request"]

Array = np.ndarray[Any, np.dtype[Any]]

# Tags of messages: a message of the user with the tag t has 4 t; what its two ends say of it in debug mode has 4 t + 1
# (the sender) and 4 t + 3 (the receiver); this one is ours.
AGREEMENT_TAG = 2


class ReduceOp(enum.Enum):
    """How the numbers of all ranks become one; the names are PyTorch's."""

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "prod"
    MIN = "min"
    MAX = "max"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"


_STEPS: dict[ReduceOp, Callable[..., Any]] = {
    ReduceOp.SUM: np.add, ReduceOp.AVG: np.add, ReduceOp.PRODUCT: np.multiply, ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum, ReduceOp.BAND: np.bitwise_and, ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}  # fmt: skip


def reduction_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that numbers are reduced in: narrow floats would lose digits, and a bool does not add up."""
    if dtype.name in ("float16", "bfloat16"):
        return np.dtype(np.float32)
    return np.dtype(np.uint8) if dtype == np.bool_ else dtype


def averaged(total: Array, count: int) -> Array:
    """A sum over `count` ranks as their mean, in place; whole numbers are rounded towards zero, as in PyTorch."""
    if total.dtype.kind == "f":
        total /= count
    else:
        total[...] = np.trunc(total / count).astype(total.dtype)
    return total


class Request:
    """A transfer that is under way. `poll` asks the engine whether it is through; `finish` then runs once."""

    __slots__ = ("_done", "_error", "_finish", "_lock", "_poll")

    def __init__(self, poll: Callable[[], bool] | None = None, finish: Callable[[], None] | None = None) -> None:
        self._poll = poll
        self._finish = finish
        self._done = False
        self._error: Exception | None = None
        # The waiting thread and the one that drives transfers in the background may ask at the same time.
        self._lock = threading.Lock()

    def test(self) -> bool:
        """Is it through? Also drives the transfer."""
        if self._done:
            return True
        with self._lock:
            if self._error is not None:
                raise self._error
            try:
                if not self._done and (self._poll is None or self._poll()):
                    if self._finish is not None:
                        self._finish()
                    self._poll = self._finish = None  # what they hold (arrays) can go
                    self._done = True
            except Exception as error:
                self._error = error  # the thread in the background may have met it first
                raise
        return self._done


def keep(request: Request) -> None:
    """Never free the arrays of a transfer that was given up: the engine may write to them until the process has ended.

    A list of them would not do: the interpreter empties it before MPI ends.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(request))


def all_of(requests: Sequence[Request], finish: Callable[[], None] | None = None) -> Request:
    """Several requests as one."""
    waiting = list(requests)

    def poll() -> bool:
        while waiting and waiting[-1].test():
            waiting.pop()
        return not waiting

    return Request(poll, finish)


class Engine:
    """Carries arrays between the processes of a group. See the module's text for what a subclass must have."""

    name = ""
    rank = 0
    size = 1

    # -- what every engine has

    def all_gather(self, source: Array, out: Array) -> Request:
        """`out[r]` becomes the source of rank r, on every rank."""
        raise NotImplementedError

    def send(self, array: Array, to: int, tag: int = 0) -> Request:
        """Send to one rank. Messages to one rank with one tag arrive in their order."""
        raise NotImplementedError

    def receive(self, array: Array, source: int, tag: int = 0) -> Request:
        """Fill an array with what a rank sends."""
        raise NotImplementedError

    def split(self, ranks: Sequence[int]) -> Engine | None:
        """The engine of a group of these ranks, None outside it. Every rank calls it."""
        raise NotImplementedError

    def abort(self, code: int) -> None:
        """End all processes now."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing more will be sent."""

    def leave(self, notes: Mapping[int, Array]) -> None:
        """Give ranks a last note, to be found by `departed`: this one makes no more calls. Some engines know anyway."""

    def departed(self, note: Array) -> int | None:
        """A rank that has left, once, and its note; None if nobody else has."""
        return None

    # -- what may be done better

    def all_reduce(self, source: Array, out: Array, op: ReduceOp) -> Request:
        """`out` becomes the reduction of all sources, added up in the order of the ranks."""
        wide = source.astype(reduction_dtype(source.dtype), copy=False)
        every = np.empty((self.size, *wide.shape), wide.dtype)

        def finish() -> None:
            total = every[0, ...]  # an array also where there are no dimensions
            for part in every[1:]:
                _STEPS[op](total, part, out=total)
            out[...] = averaged(total, self.size) if op is ReduceOp.AVG else total

        return all_of([self.all_gather(wide, every)], finish)

    def broadcast(self, array: Array, root: int) -> Request:
        """Every rank's array becomes that of rank `root`."""
        if self.rank == root:
            return all_of([self.send(array, to) for to in range(self.size) if to != root])
        return self.receive(array, root)

    def reduce(self, source: Array, out: Array, op: ReduceOp, root: int) -> Request:
        """The reduction on rank `root`; the `out` of other ranks is not touched."""
        if self.rank == root:
            return self.all_reduce(source, out, op)
        return self.all_reduce(source, np.empty_like(source), op)

    def reduce_scatter(self, source: Array, out: Array, op: ReduceOp) -> Request:
        """`source` is [size, …]: `out` becomes the reduction of all `source[rank]`."""
        every = np.empty_like(source)

        def finish() -> None:
            out[...] = every[self.rank]

        return all_of([self.all_reduce(source, every, op)], finish)

    def gather(self, source: Array, outs: Sequence[Array] | None, root: int) -> Request:
        """Rank `root` gets the sources of all ranks, in `outs`."""
        if outs is None:
            return self.send(source, root)
        return all_of([self._to_itself(source, out) if r == root else self.receive(out, r)
                       for r, out in enumerate(outs)])  # fmt: skip

    def scatter(self, sources: Sequence[Array] | None, out: Array, root: int) -> Request:
        """Rank r gets `sources[r]` of rank `root`."""
        if sources is None:
            return self.receive(out, root)
        return all_of([self._to_itself(source, out) if r == root else self.send(source, r)
                       for r, source in enumerate(sources)])  # fmt: skip

    def all_to_all(self, sources: Sequence[Array], outs: Sequence[Array]) -> Request:
        """Rank r gets `sources[r]` of each rank, in `outs`."""
        requests = [self.receive(out, r) for r, out in enumerate(outs) if r != self.rank]
        requests += [self.send(source, r) for r, source in enumerate(sources) if r != self.rank]
        return all_of([*requests, self._to_itself(sources[self.rank], outs[self.rank])])

    def barrier(self) -> Request:
        """Through when every rank has called it."""
        return self.all_gather(np.zeros(1, np.uint8), np.empty((self.size, 1), np.uint8))

    @staticmethod
    def _to_itself(source: Array, out: Array) -> Request:
        out[...] = source
        return Request()


class LocalEngine(Engine):
    """The engine of one process alone: what is sent arrives at once."""

    name = "local"

    def all_gather(self, source: Array, out: Array) -> Request:
        """Its own source."""
        return self._to_itself(source, out[0, ...])

    def send(self, array: Array, to: int, tag: int = 0) -> Request:
        """There is nobody to send to."""
        raise _alone("send")

    def receive(self, array: Array, source: int, tag: int = 0) -> Request:
        """There is nobody to receive from."""
        raise _alone("recv")

    def split(self, ranks: Sequence[int]) -> Engine | None:
        """Itself."""
        return LocalEngine() if 0 in ranks else None

    def abort(self, code: int) -> None:
        """There is nobody else to end."""


def _alone(call: str) -> DistributedError:
    return DistributedError(f"{call}: this process is alone in its group: there is no other rank",
                            fix="Start several with wayfare launch -n 2 …, or copy the tensor.")  # fmt: skip
