"""A file of records, each with its length and two checksums: what TensorBoard reads while it still grows."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

from wayfare.core.errors import FileAccessError

__all__ = ["RecordFile", "masked_checksum"]


def _table() -> list[int]:
    """The checksum of each byte: CRC-32C, whose polynomial is 0x1EDC6F41, here from the low bit up."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def masked_checksum(data: bytes) -> int:
    """CRC-32C, turned and shifted, so that a checksum of data that holds checksums is still a good one."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


class RecordFile:
    """A new file to which whole records are appended. A record that does not fit on the disk leaves no part behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            self._descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o666)
        except OSError as error:
            raise self._failed(error) from error

    def append(self, data: bytes) -> None:
        """Write one record. It has reached the operating system when this returns, so it survives a crash."""
        length = struct.pack("<Q", len(data))
        record = b"".join((
            length, struct.pack("<I", masked_checksum(length)), data, struct.pack("<I", masked_checksum(data)),
        ))  # fmt: skip
        start = os.fstat(self._descriptor).st_size
        left = memoryview(record)
        try:
            while len(left):
                left = left[os.write(self._descriptor, left) :]
        except OSError as error:
            os.ftruncate(self._descriptor, start)
            raise self._failed(error) from error

    def flush(self) -> None:
        """Force everything to the disk."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()

    def _failed(self, error: OSError) -> FileAccessError:
        what = f"SummaryWriter: cannot write {str(self.path)!r}: {error.strerror}"
        fix = "Free some space or name another folder; what was written before is whole."
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            what = f"SummaryWriter: {str(self.path.parent)!r} cannot be a folder, for a file of that name is in the way"
            fix = "Name another folder."
        found = FileAccessError(what, fix=fix)
        found.errno = error.errno
        return found
