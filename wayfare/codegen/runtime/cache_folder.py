"""Safe access to the folder that native code is loaded from.

A path may refer to another folder at each use. So the folder is opened once, owner and mode of the open folder are
checked, and files are accessed relative to it. Whoever can write to a parent folder could replace this one, so all
parents are checked, too. (On POSIX systems; on Windows the folder is in the user's own profile.)
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
    """Another user could have written there; `fix` says what to do."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(errno.EPERM, why)
        self.fix = fix


@dataclass(frozen=True, slots=True)
class File:
    """A regular file of the folder."""

    name: str
    size: int
    used: float


class Folder:
    """An open folder. Its methods always access this folder, even if the path is replaced."""

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self._path = path
        self._descriptor = descriptor

    def _named(self, name: str) -> str:
        return name if self._descriptor is not None else os.path.join(self._path, name)

    def read(self, name: str, count: int = -1) -> bytes:
        """The bytes of a file. OSError if the opened file is not a regular file that only the user can write."""
        descriptor = os.open(self._named(name), os.O_RDONLY | _BINARY | _NO_LINK, dir_fd=self._descriptor)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or (_POSIX and not _is_private(status)):
            os.close(descriptor)
            raise PermissionError("it is not a plain file that only you can write")
        with open(descriptor, "rb") as file:
            return file.read(count)

    def write(self, name: str, content: bytes) -> None:
        """Create a file with mode 600, whatever the umask."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY | _NO_LINK
        descriptor = os.open(self._named(name), flags, 0o600, dir_fd=self._descriptor)
        with open(descriptor, "wb") as file:
            if hasattr(os, "fchmod"):
                os.fchmod(descriptor, 0o600)
            file.write(content)

    def rename(self, old: str, new: str) -> None:
        """Rename a file atomically, replacing another."""
        os.replace(self._named(old), self._named(new), src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def link(self, old: str, new: str) -> None:
        """Make a hard link; FileExistsError if the new name is taken."""
        os.link(self._named(old), self._named(new), src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def touch(self, name: str) -> None:
        """Set the modification time to now."""
        os.utime(self._named(name), dir_fd=self._descriptor)

    def delete(self, name: str) -> bool:
        """Delete a file; False if that failed."""
        try:
            os.unlink(self._named(name), dir_fd=self._descriptor)
        except OSError:
            return False
        return True

    def files(self, *suffixes: str) -> Iterator[File]:
        """The regular files with these suffixes."""
        with os.scandir(self._path if self._descriptor is None else self._descriptor) as listed:
            items = list(listed)
        for item in items:
            if item.name.endswith(suffixes):
                try:
                    status = item.stat(follow_symlinks=False)
                except OSError:
                    continue  # another process deleted it
                if stat.S_ISREG(status.st_mode):
                    yield File(item.name, status.st_size, status.st_mtime)


@contextmanager
def opened(path: Path, known: set[tuple[int, int]]) -> Iterator[Folder]:
    """Open the folder. OSError if it is missing, Untrusted if others can change its content.

    `known` are the (device, inode) of folders whose parents were checked before.
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
    """Create a folder and its missing parents with mode 700, whatever the umask."""
    missing = []
    while not os.path.lexists(path):
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            continue  # another process created it
        if _POSIX:
            os.chmod(folder, 0o700, follow_symlinks=os.chmod not in os.supports_follow_symlinks)
    if (missing and not os.path.isdir(missing[0])) or (not missing and not os.path.isdir(path)):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS


def _check_above(path: Path) -> None:
    """Raise Untrusted if another user could replace one of the parent folders."""
    # In a container, root may have another id than 0.
    allowed = {0, os.geteuid(), os.stat("/").st_uid}
    for folder in Path(os.path.realpath(path)).parents:
        status = os.lstat(folder)
        writers = status.st_mode & _OTHERS
        if writers & stat.S_IWGRP and status.st_gid == _own_group():
            writers &= ~stat.S_IWGRP
        # In a folder with the sticky bit, such as /tmp, everybody can write but only owners can rename.
        if status.st_uid not in allowed or (writers and not status.st_mode & stat.S_ISVTX):
            raise Untrusted(
                f"{folder}, which {path} lies in, belongs to another user or can be written by others, so native code "
                "is not loaded from it", "Name a folder of your own in WAYFARE_CACHE.",
            )  # fmt: skip


@cache
def _own_group() -> int | None:
    """The user's primary group if nobody else is in it. Many systems create one for each user."""
    try:
        import grp
        import pwd

        user = pwd.getpwuid(os.geteuid())
        alone = set(grp.getgrgid(user.pw_gid).gr_mem) <= {user.pw_name}
        shared = any(other.pw_gid == user.pw_gid and other.pw_uid != user.pw_uid for other in pwd.getpwall())
    except (ImportError, KeyError, OSError):
        return None
    return user.pw_gid if alone and not shared else None
