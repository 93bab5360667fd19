"""A folder that native code is loaded from: looked at from the root on, opened once, and used through that opening.

A path can mean another folder at each look. So the folder is opened, what was opened is asked for its owner and mode,
and files are named relative to it. Whoever can write a folder above could put another one in its place: those are
looked at too. (On systems with POSIX owners; on Windows the folder lies in the user's own profile.)
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_BINARY = getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_POSIX = os.name == "posix"
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Untrusted(OSError):
    """Somebody else could have written there; `fix` says what to do."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(errno.EPERM, why)
        self.fix = fix


@dataclass(frozen=True, slots=True)
class File:
    """A plain file of the folder."""

    name: str
    size: int
    used: float


class Folder:
    """An open folder; `folder.read(name)` and the others cannot be led elsewhere."""

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self._path = path
        self._descriptor = descriptor

    def _named(self, name: str) -> str:
        return name if self._descriptor is not None else os.path.join(self._path, name)

    def read(self, name: str, count: int = -1) -> bytes:
        """The bytes of a file; OSError for what is not a plain file of ours, asked of the open file itself."""
        descriptor = os.open(self._named(name), os.O_RDONLY | _BINARY | _NO_LINK, dir_fd=self._descriptor)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or (_POSIX and not _is_private(status)):
            os.close(descriptor)
            raise PermissionError("it is not a plain file that only you can write")
        with open(descriptor, "rb") as file:
            return file.read(count)

    def write(self, name: str, content: bytes) -> None:
        """A new file, for its owner alone whatever the umask."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY | _NO_LINK
        descriptor = os.open(self._named(name), flags, 0o600, dir_fd=self._descriptor)
        with open(descriptor, "wb") as file:
            if hasattr(os, "fchmod"):
                os.fchmod(descriptor, 0o600)
            file.write(content)

    def rename(self, old: str, new: str) -> None:
        """One file in the place of another, in one step."""
        os.replace(self._named(old), self._named(new), src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def keep_first(self, old: str, new: str) -> None:
        """A second name for a file, if nobody has it yet; FileExistsError if somebody has."""
        os.link(self._named(old), self._named(new), src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def touch(self, name: str) -> None:
        """It is used now."""
        os.utime(self._named(name), dir_fd=self._descriptor)

    def delete(self, name: str) -> bool:
        """Is it gone now, and was there before?"""
        try:
            os.unlink(self._named(name), dir_fd=self._descriptor)
        except OSError:
            return False
        return True

    def files(self, *suffixes: str) -> Iterator[File]:
        """The plain files with such names."""
        with os.scandir(self._path if self._descriptor is None else self._descriptor) as listed:
            items = list(listed)
        for item in items:
            if item.name.endswith(suffixes):
                try:
                    status = item.stat(follow_symlinks=False)
                except OSError:
                    continue  # another process was quicker
                if stat.S_ISREG(status.st_mode):
                    yield File(item.name, status.st_size, status.st_mtime)


@contextmanager
def opened(path: Path, known: set[tuple[int, int]]) -> Iterator[Folder]:
    """The folder, open; OSError if it is not there, Untrusted if others can change what is in it.

    `known` are folders whose places were found safe before.
    """
    if not _POSIX:
        if not path.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        yield Folder(path, None)
        return
    if stat.S_ISLNK(os.lstat(path).st_mode):
        raise Untrusted(f"{path} is a link, so native code is not loaded from it", "Name the folder itself in "
                        "WAYFARE_CACHE.")  # fmt: skip
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not _is_private(status):
            raise Untrusted(
                f"{path} belongs to another user or can be written by others, so native code is not loaded from it",
                f"Run `chmod go-w {path}`, or name another folder in WAYFARE_CACHE.",
            )
        if (status.st_dev, status.st_ino) not in known:
            _check_above(path)
            known.add((status.st_dev, status.st_ino))
        yield Folder(path, descriptor)
    finally:
        os.close(descriptor)


def make_private(path: Path) -> None:
    """Make a folder, and those missing above it, for the owner alone whatever the umask."""
    missing = []
    while not os.path.lexists(path):
        missing.append(path)
        path = path.parent
    for place in reversed(missing):
        try:
            os.mkdir(place, 0o700)
        except FileExistsError:
            continue  # another process was quicker
        if _POSIX:
            os.chmod(place, 0o700, follow_symlinks=os.chmod not in os.supports_follow_symlinks)
    if (missing and not os.path.isdir(missing[0])) or (not missing and not os.path.isdir(path)):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS


def _check_above(path: Path) -> None:
    """Can anybody but the user and the system put another folder in the place of one above?"""
    # In a container the system may have another number than 0.
    allowed = {0, os.geteuid(), os.stat("/").st_uid}
    for place in Path(os.path.realpath(path)).parents:
        status = os.lstat(place)
        writers = status.st_mode & _OTHERS
        if writers & stat.S_IWGRP and status.st_gid == _own_group():
            writers &= ~stat.S_IWGRP
        # In a folder such as /tmp everybody can write, but only owners can rename what is theirs.
        if status.st_uid not in allowed or (writers and not status.st_mode & stat.S_ISVTX):
            raise Untrusted(
                f"{place}, which {path} lies in, belongs to another user or can be written by others, so native code "
                "is not loaded from it", "Name a folder of your own in WAYFARE_CACHE.",
            )  # fmt: skip


@cache
def _own_group() -> int | None:
    """The user's group if nobody else is in it: many systems give each user one, and make folders writable for it."""
    try:
        import grp
        import pwd

        user = pwd.getpwuid(os.geteuid())
        alone = set(grp.getgrgid(user.pw_gid).gr_mem) <= {user.pw_name}
        shared = any(other.pw_gid == user.pw_gid and other.pw_uid != user.pw_uid for other in pwd.getpwall())
    except (ImportError, KeyError, OSError):
        return None
    return user.pw_gid if alone and not shared else None
