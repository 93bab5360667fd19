"""Arrays that CuPy shares with others: memory of the host that a GPU reads directly, arrays of other libraries, and
memory that other streams read."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import numpy as np

from wayfare.core.device import Array
from wayfare.core.write_clock import owner_of


class Exchange:
    """A part of `CudaBackend`."""

    xp: Any
    cupyx: Any

    def __init__(self) -> None:
        super().__init__()
        self._pinned: dict[int, Any] = {}
        # Memory whose array is gone, and a point in a stream that may still read it: it is free when that has passed.
        self._read: list[tuple[Any, Any]] | None = []

    def pinned(self, array: Array) -> Array:
        """A copy on the host, in memory that the GPU reads directly."""
        made: Array = self.cupyx.empty_pinned(array.shape, array.dtype)
        np.copyto(made, array)
        owner = owner_of(made)
        self._pinned[id(owner)] = weakref.ref(owner, partial(self._pinned.pop, id(owner)))
        return made

    def is_pinned(self, array: Array) -> bool:
        """Is a NumPy array, or what it is a view of, one of `pinned`?"""
        return id(owner_of(array)) in self._pinned

    def from_dlpack(self, other: Any) -> Any:
        """An array on the memory of an object of another library."""
        return self.xp.from_dlpack(other)

    def from_interface(self, other: Any) -> Any:
        """An array on the memory of an object that has `__cuda_array_interface__`; its stream is waited for."""
        return self.xp.asarray(other)

    def read_by(self, array: Any, stream: Any) -> None:
        """A stream other than the current one reads an array: when the array is gone, its memory stays until the stream
        has done what it was asked for by then."""
        owner = array if array.base is None else array.base
        weakref.finalize(owner, self._keep, owner.data, stream).atexit = False

    def _keep(self, memory: Any, stream: Any) -> None:
        self.free_read()
        if self._read is not None:  # not in a fork
            self._read.append((stream.record_event(), memory))

    def free_read(self) -> None:
        """Free memory of arrays that are gone, where the streams that read it are done."""
        if self._read:
            self._read = [(point, memory) for point, memory in self._read if not point.query()]
