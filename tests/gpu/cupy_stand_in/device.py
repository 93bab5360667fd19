"""The memory, streams, events and devices of the stand-in, with counts."""

from __future__ import annotations

import time
import weakref
from functools import partial
from itertools import count
from types import ModuleType


class OutOfMemoryError(MemoryError):
    """CuPy's error of a full device."""


class CUDARuntimeError(RuntimeError):
    """An error of the CUDA runtime."""


class CUDADriverError(RuntimeError):
    """An error of the CUDA driver."""


class Counts:
    """How often data crossed between host and device, how often the host waited, kernels launched."""

    def __init__(self):
        self.reset()

    def reset(self):
        """Count from zero."""
        self.to_host = self.to_device = self.synchronised = self.launched = 0
        self.largest = 0  # elements of the largest copy to the host

    def crossings(self):
        """Copies in either direction, and waits."""
        return self.to_host + self.to_device + self.synchronised


COUNTS = Counts()


class _Pool:
    """The memory pool: bytes in use, and what may be taken at most."""

    def __init__(self):
        # By number: a weak reference to each living block, and its bytes. They are taken out by `dict.pop` itself: no
        # Python runs when a block dies, as none does in CuPy.
        self._living = {}
        self._numbers = count()
        self.held = 0
        self.limit = self.allocator = None

    def set_allocator(self, allocator=None):
        """`cupy.cuda.set_allocator`: called for every new memory."""
        self.allocator = allocator

    def malloc(self, size):
        """What the pool's own allocator does; here arrays count themselves."""

    def take(self, owner, size):
        """Count a block of memory until it is gone."""
        if self.limit is not None and self.used_bytes() + size > self.limit:
            raise OutOfMemoryError(f"Out of memory allocating {size} bytes (allocated so far: {self.used} bytes).")
        number = next(self._numbers)
        self._living[number] = weakref.ref(owner, partial(self._living.pop, number)), size
        if self.allocator is not None:
            self.allocator(size)
        self.held = max(self.held, self.used)

    @property
    def used(self):
        """Bytes of living blocks."""
        return sum([size for _, size in list(self._living.values())])

    def used_bytes(self):
        """Bytes of living blocks on the current device."""
        living = [(reference(), size) for reference, size in list(self._living.values())]
        return sum([size for block, size in living if block is not None and block._device == _CURRENT[0]])

    def total_bytes(self):
        """Bytes that the pool holds."""
        return self.held

    def free_all_blocks(self, stream=None):
        """Give free memory back."""
        self.held = self.used

    def get_limit(self):
        """The most it may take; 0: no limit."""
        return self.limit or 0

    def set_limit(self, size=None, fraction=None):
        """The most it may take."""
        self.limit = size or (None if fraction is None else int(fraction * (1 << 30)))


POOL = _Pool()
_CURRENT = [0]
DEVICES = 2


class Device:
    """One device, and a `with` block that makes it the current one."""

    def __init__(self, device=None):
        self.id = _CURRENT[0] if device is None else int(device)
        self._before = []

    def __enter__(self):
        self._before.append(_CURRENT[0])
        self.use()
        return self

    def __exit__(self, *error):
        _CURRENT[0] = self._before.pop()

    def use(self):
        """Make it the current device."""
        if not 0 <= self.id < DEVICES:
            raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
        _CURRENT[0] = self.id

    def synchronize(self):
        """Wait for the device."""
        COUNTS.synchronised += 1

    @property
    def mem_info(self):
        """(free, all) bytes."""
        return (1 << 30) - POOL.used, 1 << 30

    @property
    def compute_capability(self):
        """As CuPy writes it."""
        return "90"

    def __int__(self):
        return self.id

    def __eq__(self, other):
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self):
        return hash(self.id)


class Stream:
    """A queue of work; here everything is done at once."""

    def __init__(self, null=False, non_blocking=False, ptds=False, priority=None):
        self.ptr = 0 if null else id(self)
        self.device_id = -1 if null else _CURRENT[0]
        self.priority = priority
        self._before = []

    def __enter__(self):
        self._before.append(_STREAM[0])
        _STREAM[0] = self
        return self

    def __exit__(self, *error):
        _STREAM[0] = self._before.pop()

    def use(self):
        """Make it the current stream."""
        _STREAM[0] = self

    def synchronize(self):
        """Wait for its work."""
        COUNTS.synchronised += 1

    @property
    def done(self):
        """Is all its work done?"""
        return True

    @classmethod
    def from_external(cls, stream):
        """A stream of somebody else's, who tells its address."""
        made = cls()
        _, made.ptr = stream.__cuda_stream__()
        return made

    def is_capturing(self):
        """Is it being captured?"""
        return False

    def record(self, event=None):
        """Record an event."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event):
        """Let later work wait for an event."""


Stream.null = Stream(null=True)
_STREAM = [Stream.null]


class Event:
    """A point in a stream."""

    def __init__(self, block=False, disable_timing=False, interprocess=False):
        self.at, self.device = None, _CURRENT[0]

    def record(self, stream=None):
        """Now; the stream must be of the event's device."""
        stream = _STREAM[0] if stream is None else stream
        if self.device != (_CURRENT[0] if stream.device_id < 0 else stream.device_id):
            raise CUDARuntimeError("cudaErrorInvalidResourceHandle: invalid resource handle")
        self.at = time.perf_counter()

    def synchronize(self):
        """Wait for it."""
        COUNTS.synchronised += 1

    @property
    def done(self):
        """Has it happened?"""
        return True


def _elapsed(start, end):
    if start.at is None or end.at is None or start.device != end.device:
        raise CUDARuntimeError("cudaErrorInvalidResourceHandle: invalid resource handle")
    return (end.at - start.at) * 1000


def module():
    """`cupy.cuda`."""
    cuda, runtime, memory = ModuleType("cupy.cuda"), ModuleType("cupy.cuda.runtime"), ModuleType("cupy.cuda.memory")
    cuda.Device, cuda.Stream, cuda.Event, cuda.runtime, cuda.memory = Device, Stream, Event, runtime, memory
    memory.OutOfMemoryError = OutOfMemoryError
    cuda.is_available = lambda: True
    runtime.deviceCanAccessPeer = lambda device, peer: 1
    cuda.get_current_stream = lambda device_id=-1: _STREAM[0]
    cuda.get_elapsed_time = _elapsed
    cuda.MemoryPool = _Pool
    runtime.CUDARuntimeError = CUDARuntimeError
    cuda.driver = ModuleType("cupy.cuda.driver")
    cuda.driver.CUDADriverError = CUDADriverError
    runtime.getDeviceCount = lambda: DEVICES
    runtime.driverGetVersion, runtime.runtimeGetVersion = lambda: 13010, lambda: 13000
    runtime.getDevice = lambda: _CURRENT[0]
    runtime.setDevice = lambda number: Device(number).use()
    runtime.deviceSynchronize = Device().synchronize
    runtime.getDeviceProperties = lambda number: {
        "name": b"Stand-in", "totalGlobalMem": 1 << 30, "major": 9, "minor": 0, "multiProcessorCount": 132,
        "warpSize": 32, "maxThreadsPerMultiProcessor": 2048, "sharedMemPerBlock": 49152, "l2CacheSize": 1 << 20,
    }  # fmt: skip
    runtime.memGetInfo = lambda: Device().mem_info
    cuda.alloc_pinned_memory = lambda size: bytearray(size)
    cuda.set_allocator = POOL.set_allocator
    cuda.get_allocator = lambda: POOL.allocator or POOL.malloc
    return cuda
