"""A device that is full, or that has failed: what is tried, and what is said."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from wayfare.core.errors import OperationError, OutOfMemoryError
from wayfare.core.format import bytes_text
from wayfare.core.public_modules import later_name
from wayfare.ir.target import release_arenas


def attempt(b: Any, function: Callable[[], Any], name: str) -> Any:
    """What the function makes on the device; if memory is short, once more after a cleanup."""
    try:
        return function()
    except b.out_of_memory:
        pass
    except b.device_errors as error:
        raise _lost(b, name, error) from error
    # What reference cycles held is freed, and what the pool holds for arrays of other sizes.
    gc.collect()
    release_arenas()
    b.free_read()
    b.xp.get_default_memory_pool().free_all_blocks()
    try:
        return function()
    except b.out_of_memory as error:
        raise _full(b, name, error) from None


@contextmanager
def answering(b: Any, name: str) -> Iterator[None]:
    """`with` block in which Python waits for the device: errors of all that it had to do come out here."""
    try:
        yield
    except b.device_errors as error:
        raise _lost(b, name, error) from error


class Faults:
    """A part of `CudaBackend`."""

    out_of_memory: Any
    device_errors: Any

    def explained(self, name: str, error: BaseException) -> Exception | None:
        """A fault of the device as an error of ours; None for any other error."""
        if isinstance(error, self.out_of_memory):
            return _full(self, name, error)
        return _lost(self, name, error) if isinstance(error, self.device_errors) else None

    def copied(self, array: Any, order: Any) -> Any:
        """A copy on the current device."""
        return attempt(self, lambda: array.copy(order), "clone")


def _full(b: Any, name: str, error: Any) -> OutOfMemoryError:
    """The error of a device without memory: how much is in use, and who made it."""
    pool = b.xp.get_default_memory_pool()
    free, total = b.xp.cuda.runtime.memGetInfo()
    held: Any = later_name("wayfare.ops", "held_on")
    words, listed = held("cuda")
    most = f"; most of it by {words}" if words else ""
    made = OutOfMemoryError(
        f"{name}: not enough memory on the GPU ({error}); tensors take {bytes_text(pool.used_bytes())}, "
        f"{bytes_text(pool.total_bytes())} are reserved, {bytes_text(free)} of {bytes_text(total)} are free{most}",
        fix="Compute fewer elements at a time (a smaller batch), or keep less: wf.no_grad() where no gradient is "
        "wanted, wf.utils.checkpoint.checkpoint where one is.",
    )
    if listed:
        made.add_note(listed)
    return made


def _lost(b: Any, name: str, error: Any) -> OperationError:
    """The error of a device that does not answer."""
    number = b.current()
    found = b.xp.cuda.runtime.getDeviceProperties(number)["name"]
    which = found.decode() if isinstance(found, bytes) else str(found)
    return OperationError(
        f"{name}: cuda:{number} ({which}) has failed ({error}), maybe in an earlier op",
        fix="What is on it is lost: start the process again. With CUDA_LAUNCH_BLOCKING=1 in its environment the error "
        "comes with the op that caused it.",
    )
