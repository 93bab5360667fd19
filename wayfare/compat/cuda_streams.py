"""Streams and events of `wf.cuda`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import wayfare as wf
from wayfare.compat.cuda_devices import backend, number_of, on
from wayfare.core.errors import OperationError
from wayfare.ops.cuda.faults import answering

__all__ = [
    "Event", "ExternalStream", "Stream", "StreamContext", "current_stream", "default_stream",
    "is_current_stream_capturing", "set_stream", "stream",
]  # fmt: skip


class Event:
    """A point in the work of a GPU, which can be waited for and timed."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        backend().current()  # says what is missing
        self._options = blocking, not enable_timing, interprocess
        self._timed = enable_timing
        # Made when it is first recorded: an event belongs to the GPU of its stream.
        self._event: Any = None
        self._index = 0

    def record(self, stream: Stream | None = None) -> None:
        """Put it into a stream, or the current one."""
        stream = current_stream() if stream is None else stream
        if self._event is None:
            with on(stream.device_index):
                self._event = backend().xp.cuda.Event(*self._options)
            self._index = stream.device_index
        elif self._index != stream.device_index:
            raise OperationError(f"record: this event was recorded on {wf.device('cuda', self._index)}, and the stream "
                                 f"is on {stream.device}", fix="Make an event for each GPU.")  # fmt: skip
        self._event.record(stream._stream)

    def query(self) -> bool:
        """Has it happened? True if it was never recorded."""
        return self._event is None or bool(self._event.done)

    def synchronize(self) -> None:
        """Wait for it."""
        if self._event is not None:
            with answering(backend(), "synchronize"):
                self._event.synchronize()

    def wait(self, stream: Stream | None = None) -> None:
        """Let later work of a stream wait for it."""
        (current_stream() if stream is None else stream).wait_event(self)

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds between two events made with `enable_timing=True`."""
        if not (self._timed and end_event._timed):
            raise OperationError("elapsed_time: both events must be made with enable_timing=True")
        if self._event is None or end_event._event is None:
            raise OperationError("elapsed_time: both events must be recorded first", fix="Use event.record().")
        if self._index != end_event._index:
            raise OperationError("elapsed_time: the events are of different GPUs", fix="Record both on one.")
        if not (self.query() and end_event.query()):
            raise OperationError("elapsed_time: the GPU has not passed both events yet",
                                 fix="Wait with end_event.synchronize() first.")  # fmt: skip
        return float(backend().xp.cuda.get_elapsed_time(self._event, end_event._event))


class Stream:
    """A queue of work of a GPU; what is in different ones may run at the same time."""

    def __init__(self, device: Any = None, priority: int = 0, *, _stream: Any = None) -> None:
        with on(device):
            self._index = number_of(None)
            made = backend().xp.cuda.Stream
            self._stream = made(non_blocking=True, priority=priority) if _stream is None else _stream
        self._priority = priority
        self._inside: list[StreamContext] = []  # the blocks of `with`, which may be nested

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
        with answering(backend(), "synchronize"):
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
        """Let its later work wait for an event; one that was never recorded holds nothing up."""
        if event._event is not None:
            self._stream.wait_event(event._event)

    def wait_stream(self, stream: Stream) -> None:
        """Let its later work wait for the work of another stream so far."""
        self.wait_event(stream.record_event())

    def __enter__(self) -> Stream:
        inside = stream(self)
        inside.__enter__()
        self._inside.append(inside)
        return self

    def __exit__(self, *error: object) -> None:
        self._inside.pop().__exit__(*error)

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
        self._entered: list[ExitStack] = []

    def __enter__(self) -> None:
        given, entered = self.stream, ExitStack()
        if given is not None:
            entered.enter_context(on(given.device_index))
            entered.enter_context(given._stream)
        self._entered.append(entered)

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().close()


def stream(stream: Stream | None) -> StreamContext:
    """`with wf.cuda.stream(s):` — work goes into this stream inside the block."""
    return StreamContext(stream)


def set_stream(stream: Stream | None) -> None:
    """Let work go into this stream from now on, on its GPU."""
    if stream is not None:
        backend().xp.cuda.Device(stream.device_index).use()
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
