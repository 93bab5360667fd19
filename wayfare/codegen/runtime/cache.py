"""Object code on disk, so that a second start builds no kernel.

Native code is loaded from here, so nobody but the user may write here: see `cache_folder`. A file holds its key, what
it is about, and a hash over all of it that is keyed with the user's own secret: one that is truncated, damaged,
renamed or foreign is deleted and counts as missing. Files appear complete or not at all (written aside, then renamed),
so any number of processes read and write at once without locks. A disk that cannot be read or written is a reason for
one warning and never for an error.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import struct
import time
import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from wayfare.codegen.runtime.cache_folder import File, Folder, Untrusted, make_private, opened
from wayfare.codegen.runtime.cache_secret import secret_in
from wayfare.core.config import settings

_MAGIC = b"WAYFARE-KERNEL\0\0"
_FORMAT = 2
# Magic, format version, bytes of the description, bytes of the payload, HMAC-SHA-256 of key, description and payload.
_HEADER = struct.Struct("<16sIIQ32s")
_SUFFIX, _UNFINISHED = ".kernel", ".part"
# A file being written for longer than this was left behind by a process that died.
_ABANDONED_SECONDS = 3600.0
# Other processes write too: after so many own writes the folder is looked at again.
_LOOK_AGAIN = 64


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

    `folder` None is a store that keeps nothing. `secret` is the file of the user's secret.
    """

    def __init__(self, folder: Path | None, limit_bytes: int, secret: Path | None = None) -> None:
        self.folder = folder
        self.secret = secret
        self._known: set[tuple[int, int]] = set()
        self.limit_bytes = limit_bytes
        self._warned = False
        self._writable = folder is not None and limit_bytes > 0
        self._estimate = 0
        self._until_look = 0

    def get(self, key: str) -> bytes | None:
        """What was put under a key, if it is there and sound."""
        name = _name(key)
        if self.folder is None:
            return None
        try:
            with self._opened() as folder:
                try:
                    data = folder.read(name)
                except FileNotFoundError:
                    return None
                except OSError as error:
                    # The next `put` puts a new file in its place.
                    self._complain(f"{self.folder / name} is not loaded ({_reason(error)})", "A new one is built.")
                    return None
                found = _unpack(key, data, self._secret())
                if found is None:
                    folder.delete(name)
                    return None
                try:
                    folder.touch(name)
                except OSError:
                    pass  # it looks less recently used than it is
                return found[1]
        except OSError as error:
            self._refuse(error)
            return None

    def put(self, key: str, data: bytes, about: dict[str, str]) -> None:
        """Keep a byte string; `about` is shown to people who look at the cache."""
        name = _name(key)
        if self.folder is None or not self._writable or not self._ready():
            return
        unfinished = f"{key[:16]}-{os.getpid()}-{os.urandom(4).hex()}{_UNFINISHED}"
        try:
            content = _pack(key, data, {"time": f"{time.time():.0f}", **about}, self._secret())
            if len(content) > self.limit_bytes:
                return
            with self._opened() as folder:
                try:
                    folder.write(unfinished, content)
                    folder.rename(unfinished, name)
                except OSError:
                    folder.delete(unfinished)
                    raise
                self._make_room(folder, len(content))
        except FileNotFoundError:
            return  # somebody cleared the cache, or removed the folder, at this moment
        except Untrusted as error:
            self._refuse(error)
        except OSError as error:
            self._writable = False
            self._complain(f"cannot write to {self.folder} ({_reason(error)}), so new kernels are not kept")

    def entries(self) -> list[Entry]:
        """What is in the store, the most recently used first. Damaged files are left out."""
        found = []
        try:
            with self._opened() as folder:
                found = [entry for item in folder.files(_SUFFIX) if (entry := _entry(folder, item)) is not None]
        except OSError as error:
            self._refuse(error)
        return sorted(found, key=lambda entry: entry.used, reverse=True)

    def size(self) -> int:
        """Bytes of all files of the store."""
        try:
            with self._opened() as folder:
                return sum(item.size for item in folder.files(_SUFFIX, _UNFINISHED))
        except OSError as error:
            self._refuse(error)
            return 0

    def clear(self) -> tuple[int, int]:
        """Delete everything; how many files and bytes went. Files of other kinds stay."""
        gone: list[int] = []
        try:
            with self._opened() as folder:
                gone = [item.size for item in folder.files(_SUFFIX, _UNFINISHED) if folder.delete(item.name)]
        except OSError as error:
            self._refuse(error)
        self._estimate = 0
        return len(gone), sum(gone)

    # -- the folder ------------------------------------------------------------------------------------------------

    def _opened(self) -> AbstractContextManager[Folder]:
        """The folder, if it is there and nobody else's to write."""
        if self.folder is None:
            raise FileNotFoundError
        return opened(self.folder, self._known)

    def _secret(self) -> bytes:
        assert self.folder is not None
        return secret_in(self.secret, self.folder)

    def _ready(self) -> bool:
        """Make the folder if it is missing."""
        assert self.folder is not None
        try:
            make_private(self.folder)
        except OSError as error:
            self._writable = False
            self._complain(f"cannot make {self.folder} ({_reason(error)}), so kernels are not kept")
            return False
        return True

    def _refuse(self, error: OSError) -> None:
        """A folder that is not there is no reason for a word; one that others can write is."""
        if isinstance(error, Untrusted):
            self._writable = False
            self._complain(_reason(error), error.fix)

    def _make_room(self, folder: Folder, added: int) -> None:
        """Delete what was not used for the longest time, if there is too much."""
        self._estimate += added
        self._until_look -= 1
        if self._estimate <= self.limit_bytes and self._until_look > 0:
            return
        self._until_look = _LOOK_AGAIN
        now = time.time()
        for item in folder.files(_UNFINISHED):
            if now - item.used > _ABANDONED_SECONDS:
                folder.delete(item.name)
        files = sorted(folder.files(_SUFFIX), key=lambda item: item.used)
        total = sum(item.size for item in files)
        if total > self.limit_bytes:
            # A little more than needed, so that a full cache is not looked through at every write.
            for item in files[:-1]:
                if total <= self.limit_bytes * 0.9:
                    break
                folder.delete(item.name)
                total -= item.size
        self._estimate = total

    def _complain(self, what: str, fix: str = "Set WAYFARE_CACHE to a folder of your own, or to off.") -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"kernel cache: {what}. {fix}", stacklevel=3)


_store: Store | None = None


def default_store() -> Store:
    """The store of the settings."""
    global _store
    wanted = settings.cache_folder, settings.cache_limit, settings.cache_secret
    if _store is None or (_store.folder, _store.limit_bytes, _store.secret) != wanted:
        _store = Store(*wanted)
    return _store


# -- files -------------------------------------------------------------------------------------------------------------


def _name(key: str) -> str:
    if not (key.isascii() and key.isalnum()):
        raise ValueError(f"a key of the kernel cache has letters and digits only, not {key!r}; make it with key_of")
    return key + _SUFFIX


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _checksum(key: str, description: bytes, data: bytes, secret: bytes) -> bytes:
    digest = hmac.new(secret, key.encode("ascii") + b"\0" + struct.pack("<Q", len(description)), hashlib.sha256)
    digest.update(description)
    digest.update(data)
    return digest.digest()


def _pack(key: str, data: bytes, about: dict[str, str], secret: bytes) -> bytes:
    description = json.dumps(about, sort_keys=True).encode("ascii")
    checksum = _checksum(key, description, data, secret)
    return _HEADER.pack(_MAGIC, _FORMAT, len(description), len(data), checksum) + description + data


def _unpack(key: str, content: bytes, secret: bytes) -> tuple[dict[str, str], bytes] | None:
    """What a file holds, or None if it is not what was written under this key by this user."""
    if len(content) < _HEADER.size:
        return None
    magic, version, described, length, checksum = _HEADER.unpack_from(content)
    start = _HEADER.size + described
    if magic != _MAGIC or version != _FORMAT or len(content) != start + length:
        return None
    description, data = content[_HEADER.size : start], content[start:]
    if not hmac.compare_digest(_checksum(key, description, data, secret), checksum):
        return None
    return json.loads(description), data


def _entry(folder: Folder, item: File) -> Entry | None:
    """The description of a file, without its payload and so without the checksum: only for people to read."""
    try:
        magic, version, described, length, _ = _HEADER.unpack(folder.read(item.name, _HEADER.size))
        if magic != _MAGIC or version != _FORMAT or item.size != _HEADER.size + described + length:
            return None
        about = json.loads(folder.read(item.name, _HEADER.size + described)[_HEADER.size :])
        made = float(about.get("time", item.used))
    except (OSError, ValueError, AttributeError, struct.error):
        return None
    texts = {str(name): str(value) for name, value in about.items()}
    return Entry(item.name.removesuffix(_SUFFIX), item.size, made, item.used, texts)
