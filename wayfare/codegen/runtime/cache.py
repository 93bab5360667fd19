"""The kernel cache: object code on disk, so that a second start compiles nothing.

Native code is loaded from here, so only the user may be able to write here: see `cache_folder`. A file has a
description and an HMAC over key, description and code, keyed with the user's secret. A file that is truncated, damaged,
renamed or from another user is deleted and counts as missing. Files are written under another name and then renamed, so
processes can read and write at once without locks. A disk that cannot be read or written gives one warning, never an
error.
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
# An unfinished file older than this was left by a process that died.
_ABANDONED_SECONDS = 3600.0
# Other processes write too: after so many writes the folder's size is measured again.
_MEASURE_AFTER = 64


def key_of(*parts: str) -> str:
    """A key from everything that the code depends on; different lists of parts have different keys."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """The description of one file."""

    key: str
    size: int
    made: float
    used: float
    about: dict[str, str]


class Store:
    """A folder of byte strings by key, of at most `limit_bytes`; the least recently used are deleted first.

    With `folder` None nothing is stored. `secret` is the file of the user's secret.
    """

    def __init__(self, folder: Path | None, limit_bytes: int, secret: Path | None = None) -> None:
        self.folder = folder
        self.secret = secret
        self._known: set[tuple[int, int]] = set()
        self.limit_bytes = limit_bytes
        self._warned = False
        self._writable = folder is not None and limit_bytes > 0
        self._estimate = 0
        self._until_measured = 0

    def get(self, key: str) -> bytes | None:
        """The data of a key; None if there is none or its file is not authentic."""
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
                    # The next `put` replaces the file.
                    self._complain(f"{self.folder / name} is not loaded ({_reason(error)})", "A new one is built.")
                    return None
                found = _unpack(key, data, self._secret())
                if found is None:
                    folder.delete(name)
                    return None
                try:
                    folder.touch(name)
                except OSError:
                    pass  # only the order of deletion suffers
                return found[1]
        except OSError as error:
            self._refuse(error)
            return None

    def put(self, key: str, data: bytes, about: dict[str, str]) -> None:
        """Store data; `about` is shown by `wayfare cache`."""
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
            return  # the cache was cleared at this moment
        except Untrusted as error:
            self._refuse(error)
        except OSError as error:
            self._writable = False
            self._complain(f"cannot write to {self.folder} ({_reason(error)}), so new kernels are not kept")

    def entries(self) -> list[Entry]:
        """All entries, the most recently used first. Damaged files are left out."""
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
        """Delete all files of the store; returns their number and bytes. Other files in the folder stay."""
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
        """Open the folder; raises OSError if it is missing or others can write to it."""
        if self.folder is None:
            raise FileNotFoundError
        return opened(self.folder, self._known)

    def _secret(self) -> bytes:
        assert self.folder is not None
        return secret_in(self.secret, self.folder)

    def _ready(self) -> bool:
        """Create the folder if it is missing; False if that fails."""
        assert self.folder is not None
        try:
            make_private(self.folder)
        except OSError as error:
            self._writable = False
            self._complain(f"cannot make {self.folder} ({_reason(error)}), so kernels are not kept")
            return False
        return True

    def _refuse(self, error: OSError) -> None:
        """Warn about a folder that others can write to. A missing folder is no problem."""
        if isinstance(error, Untrusted):
            self._writable = False
            self._complain(_reason(error), error.fix)

    def _make_room(self, folder: Folder, added: int) -> None:
        """Delete the least recently used files if the store is too large."""
        self._estimate += added
        self._until_measured -= 1
        if self._estimate <= self.limit_bytes and self._until_measured > 0:
            return
        self._until_measured = _MEASURE_AFTER
        now = time.time()
        for item in folder.files(_UNFINISHED):
            if now - item.used > _ABANDONED_SECONDS:
                folder.delete(item.name)
        files = sorted(folder.files(_SUFFIX), key=lambda item: item.used)
        total = sum(item.size for item in files)
        if total > self.limit_bytes:
            # Down to 90%, so that a full cache is not measured at every write.
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
    """The store that the settings name."""
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
    """(description, data) of a file; None if it was not written by this user under this key."""
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
    """The description of a file, without checking the HMAC: only for display."""
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
