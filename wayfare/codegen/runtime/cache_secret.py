"""The user's secret, with which the kernel cache authenticates its files.

It is stored outside the cache folder, so that a cache folder copied from elsewhere is not trusted.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from wayfare.codegen.runtime.cache_folder import Folder, make_private, opened

_BYTES = 32


@cache
def secret_in(preferred: Path | None, otherwise: Path) -> bytes:
    """The secret in the file `preferred`, created if missing; if that fails, in a file of the folder `otherwise`.

    OSError if both fail.
    """
    for path in (preferred, otherwise / "secret.key"):
        if path is not None:
            try:
                make_private(path.parent)
                with opened(path.parent, set()) as folder:
                    return _secret(folder, path.name)
            except OSError:
                continue
    raise PermissionError("the secret of the kernel cache cannot be stored")


def _secret(folder: Folder, name: str) -> bytes:
    found = _read(folder, name)
    if found is None:
        aside = f"{name}-{os.getpid()}-{os.urandom(4).hex()}"
        folder.write(aside, os.urandom(_BYTES))
        try:
            folder.link(aside, name)
        except FileExistsError:
            pass  # another process created it first
        except OSError:  # a file system without hard links
            folder.rename(aside, name)
        folder.delete(aside)
        found = _read(folder, name)
    if found is None:
        raise PermissionError("the secret cannot be read back")
    return found


def _read(folder: Folder, name: str) -> bytes | None:
    """The secret; None if it is missing. An invalid file is deleted."""
    try:
        found = folder.read(name, _BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError:
        found = b""
    if len(found) == _BYTES:
        return found
    folder.delete(name)
    return None
