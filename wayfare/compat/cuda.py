"""`wf.cuda`: GPUs, as `torch.cuda` shows them. Without CuPy or a GPU `is_available()` is False; seeding and freeing do
nothing then, and what needs a device says what to install."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import wayfare as wf
from wayfare.core import device as devices
from wayfare.core.errors import OperationError, OutOfMemoryError
from wayfare.core.format import bytes_text
from wayfare.core.missing_names import LEFT_OUT, no_such_name

__all__ = [
    "Event", "OutOfMemoryError", "Stream", "current_device", "current_stream", "default_stream", "device",
    "device_count", "empty_cache", "get_device_capability", "get_device_name", "get_device_properties",
    "get_rng_state", "init", "initial_seed", "is_available", "is_bf16_supported", "is_initialized",
    "manual_seed", "manual_seed_all", "max_memory_allocated", "max_memory_reserved", "mem_get_info",
    "memory_allocated", "memory_reserved", "memory_summary", "reset_peak_memory_stats", "seed", "seed_all",
    "set_device", "set_rng_state", "stream", "synchronize",
]  # fmt: skip

# As a package it may be asked for modules: `import wayfare.compat.cuda.amp` is answered with advice.
__path__: list[str] = []
_NO_SUCH = "it is not part of wf.cuda"


def _backend() -> Any:
    return devices.backend("cuda")


def _maybe() -> Any:
    """The backend if it is in use already; asking for memory or freeing it must not start CUDA."""
    return devices.started("cuda")


def is_available() -> bool:
    """Is there a GPU that CuPy can use?"""
    try:
        return bool(_backend().count)
    except OperationError:
        return False


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Can GPUs here work with bfloat16? All can: ops load it, compute in float32 and round once."""
    return is_available()


def is_initialized() -> bool:
    """Was CUDA asked for in this process?"""
    return _maybe() is not None


def init() -> None:
    """Start CUDA now, and not with the first tensor."""
    _backend()


def device_count() -> int:
    """How many GPUs there are."""
    return int(_backend().count) if is_available() else 0


# -- which one --------------------------------------------------------------------------------------------------------


def _number(device: Any) -> int:
    """The number of a device: an int, a `wf.device` or a text; None is the current one."""
    backend = _backend()
    if device is None:
        return int(backend.current())
    found = wf.device(device)
    if found.type != "cuda":
        raise OperationError(f"cuda: '{found}' is no GPU", fix="Give a number, or a device such as 'cuda:0'.")
    return int(backend.current()) if found.index is None else found.index


def current_device() -> int:
    """The number of the GPU on which new tensors of "cuda" are made."""
    return _number(None)


def set_device(device: Any) -> None:
    """Make a GPU the current one."""
    _backend().xp.cuda.Device(_number(device)).use()


class device:
    """`with wf.cuda.device(1):` — a GPU as the current one inside the block."""

    def __init__(self, device: Any) -> None:
        self._inner = _backend().xp.cuda.Device(_number(device))
        self.idx = self._inner.id

    def __enter__(self) -> device:
        self._inner.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._inner.__exit__(*error)


@dataclass(frozen=True)
class _Properties:
    """What a GPU is."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    warp_size: int


def get_device_properties(device: Any = None) -> _Properties:
    """Name, capability, memory and processors of a GPU."""
    found = _backend().xp.cuda.runtime.getDeviceProperties(_number(device))
    name = found["name"]
    return _Properties(
        name.decode() if isinstance(name, bytes) else str(name), int(found["major"]), int(found["minor"]),
        int(found["totalGlobalMem"]), int(found["multiProcessorCount"]), int(found["warpSize"]),
    )  # fmt: skip


def get_device_name(device: Any = None) -> str:
    """The name of a GPU."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """The compute capability of a GPU, as (major, minor)."""
    found = get_device_properties(device)
    return found.major, found.minor


# -- waiting, streams and events ------------------------------------------------------------------------------------


def synchronize(device: Any = None) -> None:
    """Wait until all that was asked of a GPU is done. Errors of earlier ops (an index out of range) come here."""
    _backend().synchronize(_number(device))


class Event:
    """A point in the work of a GPU, which can be waited for and timed."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._event = _backend().xp.cuda.Event(blocking, not enable_timing, interprocess)
        self._timed = enable_timing

    def record(self, stream: Stream | None = None) -> None:
        """Put it into a stream, or the current one."""
        self._event.record(None if stream is None else stream._stream)

    def query(self) -> bool:
        """Has it happened?"""
        return bool(self._event.done)

    def synchronize(self) -> None:
        """Wait for it."""
        self._event.synchronize()

    def wait(self, stream: Stream | None = None) -> None:
        """Let later work of a stream wait for it."""
        (current_stream() if stream is None else stream).wait_event(self)

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds between two events made with `enable_timing=True`."""
        if not (self._timed and end_event._timed):
            raise OperationError("elapsed_time: both events must be made with enable_timing=True")
        return float(_backend().xp.cuda.get_elapsed_time(self._event, end_event._event))


class Stream:
    """A queue of work of a GPU; what is in different ones may run at the same time."""

    def __init__(self, device: Any = None, priority: int = 0, *, _stream: Any = None) -> None:
        self._stream = _backend().xp.cuda.Stream(non_blocking=True) if _stream is None else _stream

    @property
    def cuda_stream(self) -> int:
        """The address of the CUDA stream."""
        return int(self._stream.ptr)

    def synchronize(self) -> None:
        """Wait for its work."""
        self._stream.synchronize()
        _backend().check_now()

    def query(self) -> bool:
        """Is its work done?"""
        return bool(self._stream.done)

    def record_event(self, event: Event | None = None) -> Event:
        """Put an event behind its work so far."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Let its later work wait for an event."""
        self._stream.wait_event(event._event)

    def wait_stream(self, stream: Stream) -> None:
        """Let its later work wait for the work of another stream so far."""
        self.wait_event(stream.record_event())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.cuda_stream == self.cuda_stream

    def __hash__(self) -> int:
        return hash(self.cuda_stream)


@contextmanager
def stream(stream: Stream | None) -> Any:
    """`with wf.cuda.stream(s):` — work goes into this stream inside the block."""
    if stream is None:
        yield
        return
    with stream._stream:
        yield


def current_stream(device: Any = None) -> Stream:
    """The stream that work goes into now."""
    return Stream(_stream=_backend().xp.cuda.get_current_stream())


def default_stream(device: Any = None) -> Stream:
    """The stream that work goes into if nobody names one."""
    return Stream(_stream=_backend().xp.cuda.Stream.null)


# -- memory ----------------------------------------------------------------------------------------------------------


class _Peak:
    """The most memory in use, measured from the first time that somebody asks: it costs a little for each new array."""

    def __init__(self) -> None:
        self.allocated: int | None = None

    def follow(self, backend: Any) -> int:
        """Measure from now on, if that is not done yet; the most so far."""
        pool = backend.xp.get_default_memory_pool()
        if self.allocated is None:
            self.allocated = pool.used_bytes()
            inner: Callable[[int], Any] = backend.xp.cuda.get_allocator()

            def measured(size: int) -> Any:
                memory = inner(size)
                self.allocated = max(self.allocated or 0, pool.used_bytes())
                return memory

            backend.xp.cuda.set_allocator(measured)
        self.allocated = max(self.allocated, pool.used_bytes())
        return self.allocated


_PEAK = _Peak()


def _pool() -> Any:
    return _backend().xp.get_default_memory_pool()


def memory_allocated(device: Any = None) -> int:
    """Bytes that tensors take."""
    return 0 if _maybe() is None else int(_pool().used_bytes())


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that tensors took since `reset_peak_memory_stats()`, or since this was first asked."""
    return 0 if _maybe() is None else _PEAK.follow(_backend())


def memory_reserved(device: Any = None) -> int:
    """Bytes that are held, in use or to be used again."""
    return 0 if _maybe() is None else int(_pool().total_bytes())


def max_memory_reserved(device: Any = None) -> int:
    """Bytes that are held: the pool gives nothing back unless `empty_cache()` is called."""
    return memory_reserved(device)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let `max_memory_allocated` count from now on."""
    if _maybe() is not None:
        _PEAK.follow(_backend())
        _PEAK.allocated = memory_allocated()


def empty_cache() -> None:
    """Give memory back that is held and not in use."""
    if _maybe() is not None:
        _pool().free_all_blocks()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Bytes of a GPU: free ones, and all."""
    free, total = _backend().xp.cuda.Device(_number(device)).mem_info
    return int(free), int(total)


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Memory in a few lines."""
    if _maybe() is None:
        return "CUDA was not used so far."
    rows = {"in use by tensors": memory_allocated(), "the most so far": max_memory_allocated(),
            "reserved": memory_reserved()}  # fmt: skip
    free, total = mem_get_info(device)
    rows |= {"free on the GPU": free, "of the GPU": total}
    return "\n".join(f"{name:<20}{bytes_text(size):>12}" for name, size in rows.items())


# -- random numbers: one generator for all devices, so that they draw the same ---------------------------------------


def manual_seed(seed: int) -> None:
    """Seed the generator. There is one for all devices: the same seed draws the same numbers on each."""
    if _maybe() is not None:
        wf.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """The same as `manual_seed`."""
    manual_seed(seed)


def seed() -> None:
    """Seed the generator from the operating system."""
    if _maybe() is not None:
        wf.seed()


def seed_all() -> None:
    """The same as `seed`."""
    seed()


def initial_seed() -> int:
    """The seed of the generator."""
    return wf.initial_seed()


def get_rng_state(device: Any = "cuda") -> wf.Tensor:
    """The state of the generator."""
    return wf.get_rng_state()


def set_rng_state(new_state: wf.Tensor, device: Any = "cuda") -> None:
    """Continue the generator from a state of `get_rng_state`."""
    wf.set_rng_state(new_state)


def __getattr__(name: str) -> NoReturn:
    raise no_such_name("wayfare.cuda", name, LEFT_OUT["wayfare.cuda"].get(name, _NO_SUCH))
