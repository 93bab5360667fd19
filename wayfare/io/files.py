"""`wf.save` and `wf.load`: any nesting of tensors and plain values in one safetensors file."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

import wayfare as wf
from wayfare.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    FileAccessError,
    FileFormatError,
    MissingFileError,
    OutOfMemoryError,
)
from wayfare.io.header import Header, Stored, header_bytes, read_header, strict_json
from wayfare.io.kinds import kind_of_file
from wayfare.io.replace import replace_file, write_all
from wayfare.io.structure import Plan, decode, plan

__all__ = ["load", "save"]

FORMAT = "1"
# The names of our texts in a file's metadata.
FORMAT_KEY, WRITER_KEY, STRUCTURE_KEY = "wayfare.format", "wayfare.version", "wayfare.structure"
_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def save(obj: Any, path: str | os.PathLike[str]) -> None:
    """Write `obj` to the file `path`, as safetensors; the file that was there is replaced in one step, or kept.

    `obj` is a state dict, or any nesting of dict (keys str or int), list and tuple with tensors, numbers, str, bytes,
    bool, None, dtypes and sizes. A flat dict of tensors becomes a plain safetensors file with those names.
    """
    name = path_text("save", path, obj)
    write(plan(obj), name, {})


def load(path: str | os.PathLike[str], map_location: Any = None, *, weights_only: bool = True) -> Any:
    """Read a file of `wf.save`, or any safetensors file, which gives a dict of tensors.

    Tensors come back without `requires_grad`, each with memory of its own, on the CPU or on the device `map_location`.
    Pickles are refused for every `weights_only`, which exists for scripts that pass it.
    """
    name = path_text("load", path)
    if map_location is not None and not isinstance(map_location, (str, int, wf.device)):
        raise ArgumentTypeError(f"load: map_location must be a device, not {type(map_location).__name__}",
                                fix="Give map_location='cpu' or 'cuda'; files do not know where tensors were, so there "
                                "is nothing to map.")  # fmt: skip
    place = None if map_location is None else wf.device(map_location)
    with open_for_reading(name) as file:
        found = read(file, os.fstat(file.fileno()).st_size, repr(name))[0]
    return found if place is None or place.type == "cpu" else _placed(found, place)


def _placed(value: Any, device: wf.device) -> Any:
    """What was read, with its tensors on a device."""
    if isinstance(value, wf.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _placed(item, device) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_placed(item, device) for item in value)
    return value


def write(planned: Plan, path: str, texts: dict[str, str], *, follow: bool = True) -> None:
    """Write what was planned, with these texts in the metadata; without `follow`, through no link."""
    parts = contents(planned, texts)  # the header is checked before the file is opened
    first = next(parts)

    def fill(descriptor: int) -> None:
        write_all(descriptor, first)
        for part in parts:
            write_all(descriptor, part)

    replace_file(path, fill, follow=follow)


def contents(planned: Plan, texts: dict[str, str]) -> Iterator[memoryview]:
    """The bytes of a file: its header, then one tensor at a time, so that at most one copy is alive."""
    metadata = dict(texts)
    if planned.structure is not None:
        metadata |= {FORMAT_KEY: FORMAT, WRITER_KEY: wf.__version__, STRUCTURE_KEY: planned.structure}
    else:
        metadata |= {"format": "pt"}  # what libraries built on PyTorch look for
    header, order = header_bytes(planned.arrays, metadata)
    yield memoryview(header)
    for name in order:
        array = planned.arrays[name]
        dense = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        if dense.dtype == bool:  # undefined memory may hold any bytes
            dense = dense.view(np.uint8) != 0
        yield _bytes_of(dense)


def open_for_reading(path: str, op: str = "load") -> BinaryIO:
    """The file, opened; a sentence if it is not there or no file."""
    try:
        # Without waiting: opening a pipe without a writer would wait.
        descriptor = os.open(path, os.O_RDONLY | _NO_WAIT | getattr(os, "O_BINARY", 0))
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            return _Reading(descriptor, path, op)
        os.close(descriptor)
        raise _no_file(op, path, stat.S_ISDIR(mode))
    except FileNotFoundError:
        missing = MissingFileError(f"{op}: there is no file {path!r}", fix=f"The working directory is {_here()}.")
        missing.errno = errno.ENOENT
        raise missing from None
    except FileAccessError:
        raise
    except OSError as error:
        if os.path.isdir(path) or error.errno == errno.ENXIO:  # Windows cannot open a folder, and no system a socket
            raise _no_file(op, path, os.path.isdir(path)) from None
        refused = FileAccessError(f"{op}: cannot open {path!r}: {error.strerror}")
        refused.errno = error.errno
        raise refused from None


class _Reading(io.FileIO):
    """A file whose errors are sentences."""

    def __init__(self, descriptor: int, path: str, op: str) -> None:
        super().__init__(descriptor, "rb")
        self._path, self._op = path, op

    def read(self, size: int | None = -1) -> bytes:
        """So many bytes at most."""
        with self._told():
            return super().read(-1 if size is None else size)

    def readall(self) -> bytes:
        """All that is left."""
        with self._told():
            return super().readall()

    def readinto(self, buffer: Any) -> int:
        """As many bytes as there is room for at most; how many there were."""
        with self._told():
            return super().readinto(buffer)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            refused = FileAccessError(f"{self._op}: cannot read {self._path!r}: {error.strerror}")
            refused.errno = error.errno
            raise refused from None


def _no_file(op: str, path: str, folder: bool) -> FileAccessError:
    kind = "a folder" if folder else "a device or pipe"
    refused = FileAccessError(f"{op}: {path!r} is {kind}, not a file", fix="Give the path of a file.")
    refused.errno = errno.EISDIR if folder else errno.EINVAL
    return refused


def _here() -> str:
    """The working directory, which may be gone."""
    try:
        return repr(os.getcwd())
    except OSError:
        return "not there any more"


def read(file: BinaryIO, size: int, where: str) -> tuple[Any, dict[str, str]]:
    """The value in a file of `size` bytes, and its metadata. All is checked before any tensor is read."""
    header = checked_header(file, size, where)
    try:
        arrays = {name: np.empty(stored.shape, stored.dtype.name) for name, stored in header.tensors.items()}
    except MemoryError:
        raise OutOfMemoryError(f"load: not enough memory for the tensors of {where}",
                               fix="Load it on a machine with more memory, or in several files.") from None  # fmt: skip
    tensors = {name: wf.from_numpy(array) for name, array in arrays.items()}
    value = _structured(header, tensors, where) if _has_structure(header, where) else tensors
    for name, stored in sorted(header.tensors.items(), key=lambda item: item[1].begin):
        file.seek(header.start + stored.begin)
        _fill(file, arrays[name], stored, name, where)
    return value, header.metadata


def checked_header(file: BinaryIO, size: int, where: str) -> Header:
    """The header of a file; a file of another kind is refused by its name."""
    try:
        return read_header(file, size, where)
    except FileFormatError:
        file.seek(0)
        start = file.read(64)
        file.seek(max(size - 1, 0))
        known = None if start[8:9] == b"{" else kind_of_file(start, file.read(1), where.strip("'\""))
        if known is None:
            raise
        kind, fix = known
        raise FileFormatError(f"load: {where} is {kind}; Wayfare reads safetensors only", fix=fix) from None


def _has_structure(header: Header, where: str) -> bool:
    version = header.metadata.get(FORMAT_KEY)
    if version is None and STRUCTURE_KEY not in header.metadata:
        return False
    if version is None or STRUCTURE_KEY not in header.metadata:
        missing = FORMAT_KEY if version is None else STRUCTURE_KEY
        raise FileFormatError(f"load: {where} has no {missing!r} in its metadata, so it cannot be understood",
                              fix="Save it again with wf.save.")  # fmt: skip
    if version != FORMAT:
        writer = header.metadata.get(WRITER_KEY, "an unknown version")
        raise FileFormatError(f"load: {where} has format {version!r:.30}, and this version reads {FORMAT!r}",
                              fix=f"It was written by Wayfare {writer:.30}: use that or a newer one.")  # fmt: skip
    return True


def _structured(header: Header, tensors: dict[str, wf.Tensor], where: str) -> Any:
    """The value of a file with a structure. Each tensor has one place in it: a small file cannot take much memory."""
    left = dict(tensors)

    def take(name: str) -> wf.Tensor:
        if name not in left:
            fault = "has no" if name not in tensors else "uses twice the"
            raise FileFormatError(f"load: the structure of {where} {fault} tensor {name!r:.60}")
        return left.pop(name)

    value = decode(strict_json(header.metadata[STRUCTURE_KEY], f"the structure of {where}"), take)
    if left:
        raise FileFormatError(f"load: tensor {next(iter(left))!r:.60} of {where} has no place in its structure")
    return value


def _fill(file: BinaryIO, array: np.ndarray[Any, Any], stored: Stored, name: str, where: str) -> None:
    """Read the bytes of one tensor into its array."""
    _read_into(file, _bytes_of(array), where)
    if sys.byteorder == "big":
        array.byteswap(inplace=True)
    if stored.code == "BOOL" and array.size and array.view(np.uint8).max() > 1:
        raise FileFormatError(f"load: tensor {name!r:.60} of {where} has bytes that are neither True nor False")


def _read_into(file: BinaryIO, target: memoryview, where: str) -> None:
    while len(target):
        count = file.readinto(target)  # type: ignore[attr-defined]
        if not count:
            raise FileFormatError(f"load: {where} became shorter while it was read")
        target = target[count:]


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    """The memory of a contiguous array as bytes."""
    flat: Any = array.reshape(-1).view(np.uint8)
    return memoryview(flat)


def path_text(op: str, path: Any, obj: Any = None) -> str:
    """The path as text; an error for anything else."""
    try:
        text = os.fspath(path)
    except TypeError:
        swapped = op == "save" and isinstance(obj, (str, os.PathLike))
        raise ArgumentTypeError(f"{op}: the path must be a str or a pathlib.Path, not {type(path).__name__}",
                                fix="The value comes first: wf.save(value, path)." if swapped else "") from None
    if not isinstance(text, str):
        raise ArgumentTypeError(f"{op}: the path must be a str or a pathlib.Path, not {type(text).__name__}")
    if not text or "\0" in text:
        raise ArgumentError(f"{op}: {text!r} is not a path")
    return text
