"""Object code on disk, so that a second start builds no kernel.

Native code is loaded from here, so nobody but the user may write here: the folder is made for its owner alone, and a
folder that others can write, a file of another owner or a symbolic link are refused (on systems with POSIX owners; on
Windows the folder lies in the user's own profile). A file holds its key, what it is about, and a checksum over all of
it: one that is truncated, damaged, renamed or foreign is deleted and counts as missing. Files appear complete or not at
all (written aside, then renamed), so any number of processes read and write at once without locks. A disk that cannot
be read or written is a reason for one warning and never for an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wayfare.settings import settings

_MAGIC = b"WAYFARE-KERNEL\0\0"
_FORMAT = 1
# Magic, format version, bytes of the description, bytes of the payload, SHA-256 of key, description and payload.
_HEADER = struct.Struct("<16sIIQ32s")
_SUFFIX, _UNFINISHED = ".kernel", ".part"
# A file being written for longer than this was left behind by a process that died.
_ABANDONED_SECONDS = 3600.0
# Other processes write too: after so many own writes the folder is looked at again.
_LOOK_AGAIN = 64
_BINARY = getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


def key_of(*parts: str) -> str:
    """A key from all that the code depends on; no two lists of parts have the same one."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of the store."""

    key: str
    size: int
    made: float
    used: float
    about: dict[str, str]


class Store:
    """A folder of byte strings by key, at most `limit_bytes` in all; the least recently used go first.

    `folder` None is a store that keeps nothing.
    """

    def __init__(self, folder: Path | None, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._warned = False
        self._writable = folder is not None and limit_bytes > 0
        self._estimate = 0
        self._until_look = 0

    def get(self, key: str) -> bytes | None:
        """What was put under a key, if it is there and sound."""
        path = self._path(key)
        if path is None or not self._trusted():
            return None
        try:
            data = _read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            # The next `put` puts a new file in its place.
            self._complain(f"{path} is not loaded ({_reason(error)})", "A new one is built.")
            return None
        found = _unpack(key, data)
        if found is None:
            _delete(path)
            return None
        try:
            os.utime(path)
        except OSError:
            pass  # it looks less recently used than it is
        return found[1]

    def put(self, key: str, data: bytes, about: dict[str, str]) -> None:
        """Keep a byte string; `about` is shown to people who look at the cache."""
        path = self._path(key)
        if path is None or not self._writable:
            return
        content = _pack(key, data, {"time": f"{time.time():.0f}", **about})
        if len(content) > self.limit_bytes or not self._ready():
            return
        unfinished = path.with_name(f"{key[:16]}-{os.getpid()}-{os.urandom(4).hex()}{_UNFINISHED}")
        try:
            _write(unfinished, content)
            os.replace(unfinished, path)
        except FileNotFoundError:
            return  # somebody cleared the cache, or removed the folder, at this moment
        except OSError as error:
            _delete(unfinished)
            self._writable = False
            self._complain(f"cannot write to {self.folder} ({_reason(error)}), so new kernels are not kept")
            return
        self._make_room(len(content))

    def entries(self) -> list[Entry]:
        """What is in the store, the most recently used first. Damaged files are left out."""
        found = [entry for item in self._files(_SUFFIX) if (entry := _entry(item)) is not None]
        return sorted(found, key=lambda entry: entry.used, reverse=True)

    def size(self) -> int:
        """Bytes of all files of the store."""
        return sum(item.size for item in self._files(_SUFFIX, _UNFINISHED))

    def clear(self) -> tuple[int, int]:
        """Delete everything; how many files and bytes went. Files of other kinds stay."""
        gone = [item.size for item in self._files(_SUFFIX, _UNFINISHED) if _delete(item.path)]
        self._estimate = 0
        return len(gone), sum(gone)

    # -- the folder ------------------------------------------------------------------------------------------------

    def _path(self, key: str) -> Path | None:
        if not (key.isascii() and key.isalnum()):
            raise ValueError(f"a key of the kernel cache has letters and digits only, not {key!r}; make it with key_of")
        return None if self.folder is None else self.folder / (key + _SUFFIX)

    def _ready(self) -> bool:
        """Make the folder if it is missing, and look whether it can be trusted."""
        assert self.folder is not None
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
        except OSError as error:
            self._writable = False
            self._complain(f"cannot make {self.folder} ({_reason(error)}), so kernels are not kept")
            return False
        return self._trusted()

    def _trusted(self) -> bool:
        """Is the folder there, and nobody else's to write?"""
        if self.folder is None:
            return False
        try:
            status = os.stat(self.folder)
        except OSError:
            return False
        if os.name != "posix" or _is_private(status):
            return True
        self._writable = False
        self._complain(
            f"{self.folder} belongs to another user or can be written by others, so native code is not loaded from it",
            f"Run `chmod go-w {self.folder}`, or name another folder in WAYFARE_CACHE.",
        )
        return False

    def _files(self, *suffixes: str) -> Iterator[_File]:
        if self.folder is None:
            return
        try:
            listed = list(os.scandir(self.folder))
        except OSError:
            return
        for item in listed:
            if item.name.endswith(suffixes):
                try:
                    status = item.stat(follow_symlinks=False)
                except OSError:
                    continue  # another process was quicker
                if stat.S_ISREG(status.st_mode):
                    yield _File(Path(item.path), status.st_size, status.st_mtime)

    def _make_room(self, added: int) -> None:
        """Delete what was not used for the longest time, if there is too much."""
        self._estimate += added
        self._until_look -= 1
        if self._estimate <= self.limit_bytes and self._until_look > 0:
            return
        self._until_look = _LOOK_AGAIN
        now = time.time()
        for item in self._files(_UNFINISHED):
            if now - item.used > _ABANDONED_SECONDS:
                _delete(item.path)
        files = sorted(self._files(_SUFFIX), key=lambda item: item.used)
        total = sum(item.size for item in files)
        if total > self.limit_bytes:
            # A little more than needed, so that a full cache is not looked through at every write.
            for item in files[:-1]:
                if total <= self.limit_bytes * 0.9:
                    break
                _delete(item.path)
                total -= item.size
        self._estimate = total

    def _complain(self, what: str, fix: str = "Set WAYFARE_CACHE to a folder of your own, or to off.") -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"kernel cache: {what}. {fix}", stacklevel=3)


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    size: int
    used: float


_store: Store | None = None


def default_store() -> Store:
    """The store of the settings."""
    global _store
    if _store is None or (_store.folder, _store.limit_bytes) != (settings.cache_folder, settings.cache_limit):
        _store = Store(settings.cache_folder, settings.cache_limit)
    return _store


# -- files -------------------------------------------------------------------------------------------------------------


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _open_trusted(path: Path) -> int:
    """Open a file for reading; OSError for what is not a plain file of ours, asked of the open file itself."""
    descriptor = os.open(path, os.O_RDONLY | _BINARY | _NO_LINK)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or (os.name == "posix" and not _is_private(status)):
        os.close(descriptor)
        raise PermissionError("it is not a plain file that only you can write")
    return descriptor


def _read(path: Path) -> bytes:
    with open(_open_trusted(path), "rb") as file:
        return file.read()


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY | _NO_LINK, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)


def _delete(path: Path) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _checksum(key: str, description: bytes, data: bytes) -> bytes:
    digest = hashlib.sha256(key.encode("ascii") + b"\0" + description)
    digest.update(data)
    return digest.digest()


def _pack(key: str, data: bytes, about: dict[str, str]) -> bytes:
    description = json.dumps(about, sort_keys=True).encode("ascii")
    checksum = _checksum(key, description, data)
    return _HEADER.pack(_MAGIC, _FORMAT, len(description), len(data), checksum) + description + data


def _unpack(key: str, content: bytes) -> tuple[dict[str, str], bytes] | None:
    """What a file holds, or None if it is not what was written under this key."""
    if len(content) < _HEADER.size:
        return None
    magic, version, described, length, checksum = _HEADER.unpack_from(content)
    start = _HEADER.size + described
    if magic != _MAGIC or version != _FORMAT or len(content) != start + length:
        return None
    description, data = content[_HEADER.size : start], content[start:]
    if _checksum(key, description, data) != checksum:
        return None
    return json.loads(description), data


def _entry(item: _File) -> Entry | None:
    """The description of a file, without its payload and so without the checksum: only for people to read."""
    try:
        with open(_open_trusted(item.path), "rb") as file:
            magic, version, described, length, _ = _HEADER.unpack(file.read(_HEADER.size))
            if magic != _MAGIC or version != _FORMAT or item.size != _HEADER.size + described + length:
                return None
            about = json.loads(file.read(described))
            made = float(about.get("time", item.used))
    except (OSError, ValueError, AttributeError, struct.error):
        return None
    texts = {str(name): str(value) for name, value in about.items()}
    return Entry(item.path.name.removesuffix(_SUFFIX), item.size, made, item.used, texts)
