"""The MPI engine: arrays go through mpi4py. Imported only when a process group with "mpi" is made.

Every transfer is a nonblocking call of MPI that is asked from time to time: a waiting process can be interrupted, sees
its time-out, and leaves the processor to the others where there are more ranks than processors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
from mpi4py import MPI

from wayfare.core.errors import DistributedError
from wayfare.distributed.engine import (
    Array,
    Engine,
    ReduceOp,
    Request,
    averaged,
    reduction_dtype,
)

__all__ = ["MPIEngine"]

_OPS = {
    ReduceOp.SUM: MPI.SUM, ReduceOp.AVG: MPI.SUM, ReduceOp.PRODUCT: MPI.PROD, ReduceOp.MIN: MPI.MIN,
    ReduceOp.MAX: MPI.MAX, ReduceOp.BAND: MPI.BAND, ReduceOp.BOR: MPI.BOR, ReduceOp.BXOR: MPI.BXOR,
}  # fmt: skip


def _plain(array: Array) -> Array:
    """The memory of an array as MPI can move it: it has no narrow floats, and a bool is a byte."""
    bits = {"float16": np.uint16, "bfloat16": np.uint16, "bool": np.uint8}
    return array.view(bits.get(array.dtype.name, array.dtype))


class _Farewells:
    """The notes of ranks that leave a group.

    They have a communicator that is never freed. In that of the group, a note that nobody takes would be found in the
    next communicator, which gets the number of the freed one.
    """

    def __init__(self) -> None:
        self._comm: Any = None
        self._found: dict[int, list[tuple[int, Array]]] = {}
        self._sent: list[Any] = []
        self._worlds = 0

    def new_world(self) -> str:
        """A name for the group of all processes, which is another one after each `init_process_group`."""
        if self._comm is None:
            self._comm = MPI.COMM_WORLD.Dup()
        self._worlds += 1
        return str(self._worlds)

    def send(self, group: int, rank: int, to: int, note: Array) -> None:
        """Tell the process `to` that a rank leaves a group. Small messages go out at once: nobody waits for them."""
        message = np.array([group, rank, *note], np.int64)
        self._sent.append((self._comm.Isend(message, to), message))

    def take(self, group: int, note: Array) -> int | None:
        """A rank that has left a group, and its note."""
        while self._comm.Iprobe():
            message = np.empty(2 + note.size, np.int64)
            self._comm.Recv(message)
            self._found.setdefault(int(message[0]), []).append((int(message[1]), message[2:]))
        mine = self._found.get(group)
        if not mine:
            return None
        rank, note[...] = mine.pop()
        return rank


_FAREWELLS = _Farewells()


class MPIEngine(Engine):
    """The processes of an MPI communicator."""

    name = "mpi"

    def __init__(self, comm: Any = None, path: str | None = None) -> None:
        # A communicator of our own: what the user sends through mpi4py never mixes with it.
        self._comm = MPI.COMM_WORLD.Dup() if comm is None else comm
        self.rank = self._comm.Get_rank()
        self.size = self._comm.Get_size()
        # The same on all ranks of the group: the world, and the number of each split on the way to this one.
        self._path = _FAREWELLS.new_world() if path is None else path
        self._splits = 0

    def _started(
        self, start: Callable[[], Any], finish: Callable[[], None] | None = None, *held: Any, status: Any = None
    ) -> Request:
        """The request of a nonblocking call. `held` are arrays that must live until it is through."""
        try:
            handle = start()
        except MPI.Exception as error:
            raise _failed(error) from None

        def poll(held: Any = held) -> bool:
            try:
                return bool(handle.Test(status))
            except MPI.Exception as error:
                raise _failed(error) from None

        return Request(poll, finish)

    def all_gather(self, source: Array, out: Array) -> Request:
        """`out[r]` becomes the source of rank r."""
        return self._started(lambda: self._comm.Iallgather(_plain(source), _plain(out)), None, source, out)

    def send(self, array: Array, to: int, tag: int = 0) -> Request:
        """Send to one rank."""
        return self._started(lambda: self._comm.Isend(_plain(array), to, tag), None, array)

    def receive(self, array: Array, source: int, tag: int = 0) -> Request:
        """Receive from one rank. A message that is too short is an error, as one that is too long is."""
        status = MPI.Status()

        def check() -> None:
            if status.Get_count(MPI.BYTE) != array.nbytes:
                raise _misfit("shorter")

        return self._started(lambda: self._comm.Irecv(_plain(array), source, tag), check, array, status=status)

    def split(self, ranks: Sequence[int]) -> Engine | None:
        """A communicator of these ranks, in this order."""
        inside = self.rank in ranks
        made = self._comm.Split(0 if inside else MPI.UNDEFINED, list(ranks).index(self.rank) if inside else 0)
        self._splits += 1
        return MPIEngine(made, f"{self._path}/{self._splits}") if inside else None

    def abort(self, code: int) -> None:
        """End all processes of this run."""
        MPI.COMM_WORLD.Abort(code)

    def close(self) -> None:
        """Give the communicator back."""
        if not MPI.Is_finalized():
            self._comm.Free()

    def leave(self, notes: Mapping[int, Array]) -> None:
        """Send each rank its note."""
        if notes:
            processes = self._comm.Get_group().Translate_ranks(list(notes), MPI.COMM_WORLD.Get_group())
            for to, note in zip(processes, notes.values(), strict=True):
                _FAREWELLS.send(crc32(self._path.encode()), self.rank, to, note)

    def departed(self, note: Array) -> int | None:
        """Whose note has arrived?"""
        return _FAREWELLS.take(crc32(self._path.encode()), note)

    def all_reduce(self, source: Array, out: Array, op: ReduceOp) -> Request:
        """`out` becomes the reduction of all sources."""
        wide, into = self._reducible(source), self._room(out)
        return self._started(lambda: self._comm.Iallreduce(wide, into, _OPS[op]), self._end(op, into, out), wide, into)

    def reduce(self, source: Array, out: Array, op: ReduceOp, root: int) -> Request:
        """The reduction, on one rank."""
        wide = self._reducible(source)
        into = self._room(out) if self.rank == root else None
        finish = None if into is None else self._end(op, into, out)
        return self._started(lambda: self._comm.Ireduce(wide, into, _OPS[op], root), finish, wide, into)

    def reduce_scatter(self, source: Array, out: Array, op: ReduceOp) -> Request:
        """`out` becomes the reduction of all `source[rank]`."""
        wide, into = self._reducible(source), self._room(out)
        return self._started(
            lambda: self._comm.Ireduce_scatter_block(wide, into, _OPS[op]), self._end(op, into, out), wide, into
        )

    def broadcast(self, array: Array, root: int) -> Request:
        """Every rank's array becomes that of `root`."""
        return self._started(lambda: self._comm.Ibcast(_plain(array), root), None, array)

    def barrier(self) -> Request:
        """Through when every rank has called it."""
        return self._started(self._comm.Ibarrier)

    @staticmethod
    def _reducible(source: Array) -> Array:
        return source.astype(reduction_dtype(source.dtype), copy=False)

    @staticmethod
    def _room(out: Array) -> Array:
        wide = reduction_dtype(out.dtype)
        return out if out.dtype == wide else np.empty(out.shape, wide)

    def _end(self, op: ReduceOp, into: Array, out: Array) -> Callable[[], None] | None:
        """What is left to do when the sum is there."""
        if op is not ReduceOp.AVG and into is out:
            return None

        def finish() -> None:
            if op is ReduceOp.AVG:
                averaged(into, self.size)
            if into is not out:
                out[...] = into

        return finish


def _failed(error: Any) -> DistributedError:
    if error.Get_error_class() == MPI.ERR_TRUNCATE:
        return _misfit("longer")
    return DistributedError(f"distributed: MPI says: {error.Get_error_string()}")


def _misfit(how: str) -> DistributedError:
    return DistributedError(f"distributed: a message is {how} than the tensor it is received in",
                            fix="Ranks must call with equal shapes and dtypes; WAYFARE_DISTRIBUTED_DEBUG=1 names the "
                            "calls that differ.")  # fmt: skip
