"""Streams and events of `wf.cuda`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import wayfare as wf
from wayfare.compat.cuda_devices import backend, number_of, on
from wayfare.core.errors import OperationError

__all__ = [
    "Event", "ExternalStream", "Stream", "StreamContext", "current_stream", "default_stream",
    "is_current_stream_capturing", "set_stream", "stream",
]  # fmt: skip


class Event:
    """A point in the work of a GPU, which can be waited for and timed."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._event = backend().xp.cuda.Event(blocking, not enable_timing, interprocess)
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
        return float(backend().xp.cuda.get_elapsed_time(self._event, end_event._event))


class Stream:
    """A queue of work of a GPU; what is in different ones may run at the same time."""

    def __init__(self, device: Any = None, priority: int = 0, *, _stream: Any = None) -> None:
        with on(device):
            self._index = number_of(None)
            made = backend().xp.cuda.Stream
            self._stream = made(non_blocking=True, priority=priority) if _stream is None else _stream
        self._priority = priority

    @property
    def device(self) -> Any:
        """Its GPU."""
        return wf.device("cuda", self._index)

    @property
    def device_index(self) -> int:
        """The number of its GPU."""
        return self._index

    @property
    def priority(self) -> int:
        """The lower, the sooner its work is done."""
        return self._priority

    @property
    def cuda_stream(self) -> int:
        """The address of the CUDA stream."""
        return int(self._stream.ptr)

    def synchronize(self) -> None:
        """Wait for its work."""
        self._stream.synchronize()
        backend().check_now()

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

    def __enter__(self) -> Stream:
        self._inside = stream(self)
        self._inside.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._inside.__exit__(*error)

    def __repr__(self) -> str:
        return f"<wayfare.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.cuda_stream == self.cuda_stream

    def __hash__(self) -> int:
        return hash(self.cuda_stream)


class ExternalStream(Stream):
    """A stream of another library, by its address. It must live as long as this is used."""

    def __init__(self, stream_ptr: int, device: Any = None) -> None:
        with on(device):
            super().__init__(device, _stream=backend().xp.cuda.Stream.from_external(_Address(int(stream_ptr))))


class _Address:
    """The address of a stream, as libraries ask each other for it."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address


class StreamContext:
    """`with wf.cuda.stream(s):` — work goes into this stream inside the block, on its GPU. None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self._entered: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> None:
        given = self.stream
        self._entered = [nullcontext()] if given is None else [on(given.device_index), given._stream]
        for each in self._entered:
            each.__enter__()

    def __exit__(self, *error: Any) -> None:
        for each in reversed(self._entered):
            each.__exit__(*error)


def stream(stream: Stream | None) -> StreamContext:
    """`with wf.cuda.stream(s):` — work goes into this stream inside the block."""
    return StreamContext(stream)


def set_stream(stream: Stream | None) -> None:
    """Let work go into this stream from now on."""
    if stream is not None:
        stream._stream.use()


def current_stream(device: Any = None) -> Stream:
    """The stream that work goes into now."""
    with on(device):
        return Stream(device, _stream=backend().xp.cuda.get_current_stream())


def default_stream(device: Any = None) -> Stream:
    """The stream that work goes into if nobody names one."""
    return Stream(device, _stream=backend().xp.cuda.Stream.null)


def is_current_stream_capturing() -> bool:
    """Is the current stream being captured into a CUDA graph?"""
    return bool(backend().xp.cuda.get_current_stream().is_capturing())
