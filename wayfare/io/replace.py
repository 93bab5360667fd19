"""Replacing a file so that after any failure the old file or the new one is there, complete.

The new contents go to a temporary file in the same folder, are forced to the disk, and take the name of the old file
in one step. The temporary file is locked while its writer lives, so a leftover of a killed process can be told apart.
"""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from wayfare.core.errors import FileAccessError, MissingFileError

locks: Any
try:
    import fcntl as locks
except ImportError:  # Windows, where a file that is open cannot be deleted: that is lock enough
    locks = None

__all__ = ["replace_file", "replace_text", "write_all"]

PREFIX, SUFFIX = ".wayfare-save-", ".tmp"
# Small enough that an interrupt is noticed soon, large enough that a call costs nothing.
_CHUNK = 1 << 24
# What file systems answer that cannot force a folder to the disk.
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM}


def replace_file(path: str, write: Callable[[int], None], *, follow: bool = True) -> None:
    """Make what `write` writes to the descriptor it is given the contents of the file `path`.

    If it fails, the old file is as it was and nothing is left behind. A link is followed, and the file it names is
    replaced, where the caller of the library gave the path; a name that we have chosen ourselves somebody else may have
    made a link of: without `follow` it is refused. The new file has the permissions of the old one, or those the umask
    gives.
    """
    folder, name = os.path.split(path)
    try:
        target = os.path.realpath(path) if follow else os.path.join(os.path.realpath(folder or os.curdir), name)
    except OSError as error:  # the working directory is gone
        raise _failed(error, path, folder or os.curdir, path) from None
    # The path is resolved without a look at what it goes through: `nodir/..` would be this very folder.
    named = os.path.dirname(path)
    if named and not os.path.isdir(named):
        raise _no_folder(named, path)
    folder = os.path.dirname(target)
    if not follow and os.path.islink(target):
        refused = FileAccessError(f"save: {path!r} is a link, and what it names would be overwritten",
                                  fix="Delete the link, or write elsewhere.")  # fmt: skip
        refused.errno = errno.ELOOP
        raise refused
    mode = _check_target(path, target, folder)
    try:
        _remove_leftovers(folder)
        temporary, descriptor = _create(folder)
        try:
            try:
                if mode is not None and hasattr(os, "fchmod"):
                    os.fchmod(descriptor, mode)
                write(descriptor)
                _to_disk(descriptor)
                if locks is not None:
                    # Renamed while still locked, so that no other writer takes it for a leftover.
                    os.replace(temporary, target)
            finally:
                os.close(descriptor)
            if locks is None:
                os.replace(temporary, target)
        except BaseException:
            _unlink(temporary)
            raise
    except OSError as error:
        raise _failed(error, path, folder, target) from error
    _folder_to_disk(folder, path)


def replace_text(path: str, parts: Iterable[str]) -> None:
    """The same for a text, piece by piece, in UTF-8; half a character, which a file's name may have, becomes `?`.

    No link is followed: text from a run or a model can be made to mean something elsewhere.
    """

    def write(descriptor: int) -> None:
        for part in parts:
            write_all(descriptor, memoryview(part.encode("utf-8", "replace")))

    replace_file(path, write, follow=False)


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all the bytes; the system may take them in parts."""
    while len(data):
        data = data[os.write(descriptor, data[:_CHUNK]) :]


def _check_target(path: str, target: str, folder: str) -> int | None:
    """The permissions of the file to be replaced, None if there is none; an error if it cannot be replaced."""
    try:
        found = os.stat(target)
    except FileNotFoundError:
        if os.path.isdir(folder):
            return None
        raise _no_folder(folder, path) from None
    except OSError as error:
        raise _failed(error, path, folder, target) from None
    if stat.S_ISREG(found.st_mode):
        if not os.access(target, os.W_OK):
            raise _failed(PermissionError(errno.EACCES, "the file is write-protected"), path, folder, target)
        return stat.S_IMODE(found.st_mode)
    kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a device or pipe"
    refused = FileAccessError(f"save: {path!r} is {kind}, not a file", fix="Give the path of a file.")
    refused.errno = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
    raise refused


def _no_folder(folder: str, path: str) -> MissingFileError:
    missing = MissingFileError(f"save: the folder {folder!r} of {path!r} does not exist",
                               fix="Make it first with os.makedirs(folder, exist_ok=True).")  # fmt: skip
    missing.errno = errno.ENOENT
    return missing


def _create(folder: str) -> tuple[str, int]:
    """A new, locked temporary file: its path and descriptor."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    while True:
        temporary = os.path.join(folder, f"{PREFIX}{uuid.uuid4().hex}{SUFFIX}")
        descriptor = os.open(temporary, flags, 0o666)
        if locks is None:
            return temporary, descriptor
        try:
            locks.flock(descriptor, locks.LOCK_EX)
        except OSError:  # a file system without locks: leftovers cannot be told apart there, and stay
            return temporary, descriptor
        # Another writer may have taken it for a leftover before it was locked.
        if os.fstat(descriptor).st_nlink:
            return temporary, descriptor
        os.close(descriptor)


def _remove_leftovers(folder: str) -> None:
    """Delete the temporary files whose writers are dead. One that is locked, or not ours, stays."""
    with os.scandir(folder) as entries:
        names = [e.path for e in entries if e.name.startswith(PREFIX) and e.name.endswith(SUFFIX)]
    for name in names:
        try:
            if locks is None:
                os.unlink(name)
                continue
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                locks.flock(descriptor, locks.LOCK_EX | locks.LOCK_NB)
                os.unlink(name)
            finally:
                os.close(descriptor)
        except OSError:
            continue


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _to_disk(descriptor: int) -> None:
    full = getattr(locks, "F_FULLFSYNC", None)  # macOS: fsync alone stops at the drive's own cache
    if full is not None:
        locks.fcntl(descriptor, full)
    else:
        os.fsync(descriptor)


def _folder_to_disk(folder: str, path: str) -> None:
    """Force the new name to the disk: without it, a power cut may bring the old file back."""
    if os.name == "nt":
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in _NO_FOLDER_SYNC:
            return
        unsure = FileAccessError(
            f"save: {path!r} is written, but the system did not confirm that it is on the disk: {error.strerror}"
        )
        unsure.errno = error.errno
        raise unsure from error


def _failed(error: OSError, path: str, folder: str, target: str) -> OSError:
    """The sentence for an error of the system; one that is a sentence already stays."""
    if isinstance(error, FileAccessError):
        return error
    kept = " The old file is as it was." if os.path.lexists(target) else ""
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG):
        sentence, fix = f"save: no room for {path!r}: {error.strerror}", "Free some space or save elsewhere."
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        sentence = f"save: may not write {path!r} in {folder!r}: {error.strerror}"
        fix = "Save to a folder you may write to."
    else:
        sentence, fix = f"save: cannot write {path!r}: {error.strerror or error}", ""
    refused = FileAccessError(sentence, fix=(fix + kept).strip())
    refused.errno = error.errno
    return refused
