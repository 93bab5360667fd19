"""Messages between a worker and its parent: through a pipe, and the numbers of large arrays through memory that both
see.

A parent gives every task a slot of shared memory that nobody else uses until the answer was read, so there is nothing
to lock and nothing a killed worker could leave locked. Where there is no such memory (workers that were not forked),
or a message does not fit, the arrays follow the message through the pipe.
"""

from __future__ import annotations

import mmap
import pickle
import struct
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

# Only the addresses are reserved; memory is used as far as batches reach.
SLOT_BYTES = 256 * 2**20
# Arrays below this travel inside the message.
_SMALL = 2048
_ALIGN = 64
_HEAD = struct.Struct("<I")
# Linux: do not count untouched memory against the limit. Newer Pythons name it.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


def shared_slots(count: int) -> list[mmap.mmap]:
    """Memory that processes forked from this one will share; none if the system refuses."""
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return []
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _NO_RESERVE
    try:
        return [mmap.mmap(-1, SLOT_BYTES, flags=flags) for _ in range(count)]
    except (OSError, ValueError):
        return []


class Parcel:
    """A message ready to be sent: a head, which is small and plain, and a body, whose large arrays lie in the slot."""

    def __init__(self, head: Any, body: Any, slot: mmap.mmap | None) -> None:
        self._buffers: list[memoryview] = []
        data = pickle.dumps(body, protocol=5, buffer_callback=self._keep_small)
        self._places: list[tuple[int, int]] = []
        used = 0
        for buffer in self._buffers:
            size = buffer.nbytes
            if slot is not None and used + size <= len(slot):
                # NumPy lets other threads run while it copies.
                _array(slot, used, size)[:] = np.frombuffer(buffer, np.uint8)
                self._places.append((used, size))
                used += -(-size // _ALIGN) * _ALIGN
            else:
                self._places.append((-1, size))
        described = pickle.dumps((head, self._places), protocol=5)
        self._message = b"".join((_HEAD.pack(len(described)), described, data))

    def _keep_small(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= _SMALL:
            self._buffers.append(raw)
        return raw.nbytes < _SMALL

    def send(self, pipe: Connection) -> None:
        """Send it, and after it the arrays that do not lie in the slot."""
        pipe.send_bytes(self._message)
        for buffer, (place, _) in zip(self._buffers, self._places, strict=True):
            if place < 0:
                pipe.send_bytes(buffer)


class Message:
    """What came through a pipe: the head at once, the body when `body()` is called, which must happen before the slot
    is used again."""

    def __init__(self, pipe: Connection, slot_of: Any) -> None:
        received = pipe.recv_bytes()
        (size,) = _HEAD.unpack_from(received)
        view = memoryview(received)[_HEAD.size :]
        self.head, places = pickle.loads(view[:size])
        self._data = view[size:]
        slot = slot_of(self.head)
        self._buffers = [_copied(slot, *place) if place[0] >= 0 else bytearray(pipe.recv_bytes()) for place in places]

    def body(self) -> Any:
        """The body, on memory of its own."""
        return pickle.loads(self._data, buffers=self._buffers)


def _array(slot: mmap.mmap, place: int, size: int) -> Any:
    return np.ndarray((size,), np.uint8, slot, place)


def _copied(slot: mmap.mmap, place: int, size: int) -> Any:
    return _array(slot, place, size).copy()
