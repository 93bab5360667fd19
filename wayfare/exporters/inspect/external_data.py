"""External data: weights in files next to a model. Which file names are safe, and whether the files exist and fit.

The files are checked by their size and never opened. A name that leads out of the model's folder, or a link, is
refused: loading the model could read or overwrite a file of somebody else.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from typing import Any, NamedTuple

from wayfare.core.errors import FileAccessError, FileFormatError, MissingFileError

_DRIVE = re.compile("[A-Za-z]:")
_NUMBER = re.compile("[0-9]{1,19}")
# What a path may be, with the test for it.
_KINDS = ((stat.S_ISLNK, "a symbolic link"), (stat.S_ISDIR, "a folder"), (stat.S_ISREG, "a file"))


class _Range(NamedTuple):
    begin: int
    end: int
    name: str


class ExternalData:
    """The external files of the model `path`, and which byte ranges of them hold which weights."""

    def __init__(self, path: str) -> None:
        self._where = repr(path)
        self._folder = os.path.dirname(path)
        self._files: dict[str, os.stat_result] = {}
        self._taken: dict[tuple[int, int], list[_Range]] = {}

    def take(self, tensor: Any, size: int) -> str:
        """Check that a weight of `size` bytes is where the model says; returns the name of the file."""
        name = f"{tensor.name!r:.60}"
        entries: dict[str, str] = {}
        for entry in tensor.external_data:
            if entry.key in entries:
                raise self._refused(name, f"has two entries {entry.key!r:.30} for where it lies")
            entries[entry.key] = entry.value
        location = entries.get("location", "")
        fault = fault_of(location)
        if fault:
            raise self._refused(name, f"is said to lie in {location!r:.80}, which {fault}", fix=(
                "Nothing outside the model's folder is looked at: have its weights written beside it."))  # fmt: skip
        found = self._file(location, name)
        begin, length = self._number(entries, "offset", 0, name), self._number(entries, "length", size, name)
        if length != size:
            raise self._refused(name, f"takes {size:,} bytes by its shape, and {length:,} in {location!r:.80}")
        if begin + length > found.st_size:
            raise self._refused(name, f"should end at byte {begin + length:,} of {location!r:.80}, which has "
                                f"{found.st_size:,}")  # fmt: skip
        if length:
            self._taken.setdefault((found.st_dev, found.st_ino), []).append(_Range(begin, begin + length, name))
        return location

    def check_overlaps(self) -> None:
        """No byte of a file may belong to two weights."""
        for ranges in self._taken.values():
            ranges.sort()
            for before, after in itertools.pairwise(ranges):
                if after.begin < before.end:
                    raise self._refused(after.name, f"overlaps the weight {before.name} in their file")

    def _file(self, location: str, name: str) -> os.stat_result:
        """The status of a file; every folder on the way to it is checked too."""
        if location not in self._files:
            parts = [part for part in location.split("/") if part not in ("", ".")]
            path, found = self._folder, None
            for number, part in enumerate(parts):
                path = os.path.join(path, part)
                found = self._status(path, name)
                wanted = "a file" if number == len(parts) - 1 else "a folder"
                kind = next((kind for test, kind in _KINDS if test(found.st_mode)), "a device or pipe")
                if kind != wanted:
                    raise self._refused(name, f"is said to lie in {location!r:.80}, where {part!r:.60} is {kind}, "
                                        f"not {wanted}", fix="Copy the file to where the link is."
                                        if kind == "a symbolic link" else "")  # fmt: skip
            assert found is not None  # a location without parts is refused before
            if found.st_nlink > 1:
                raise self._refused(name, f"is said to lie in {location!r:.80}, which has another name elsewhere (a "
                                    "hard link)", fix="Copy the file.")  # fmt: skip
            self._files[location] = found
        return self._files[location]

    def _status(self, path: str, name: str) -> os.stat_result:
        try:
            return os.lstat(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            missing = MissingFileError(f"inspect: the weight {name} of {self._where} lies in {path!r}, and there is no "
                                       "such file", fix="Put it beside the model.")  # fmt: skip
            missing.errno = error.errno
            raise missing from None
        except (OSError, ValueError) as error:
            refused = FileAccessError(f"inspect: the weight {name} of {self._where} lies in {path!r:.200}, which the "
                                      f"system cannot find: {getattr(error, 'strerror', error)}")  # fmt: skip
            refused.errno = getattr(error, "errno", None)
            raise refused from None

    def _number(self, entries: dict[str, str], key: str, default: int, name: str) -> int:
        text = entries.get(key)
        if text is None:
            return default
        if not _NUMBER.fullmatch(text):
            raise self._refused(name, f"has the {key} {text!r:.40}, which is not a number of bytes")
        return int(text)

    def _refused(self, name: str, what: str, fix: str = "") -> FileFormatError:
        return FileFormatError(f"inspect: the weight {name} of {self._where} {what}", fix=fix)


def fault_of(location: str) -> str:
    """Why an external file cannot have this name, as the end of a sentence; empty if it can.

    A name that is unsafe on one operating system is refused on all.
    """
    parts = location.split("/")
    if not any(part not in ("", ".") for part in parts):
        return "names no file"
    if not location.isprintable():
        return "has a character in it that cannot be printed"
    if "\\" in location or _DRIVE.match(location):
        return "is a path of Windows"
    if location.startswith("/"):
        return "is not relative to the model's folder"
    if ".." in parts:
        return "leads out of the model's folder"
    return ""
