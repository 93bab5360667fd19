"""The user's own secret, by which the kernel cache tells its files from those that somebody else put there.

It lies apart from the kernels: who copies a folder of kernels from elsewhere does not bring their secret along.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from wayfare.codegen.runtime.cache_folder import Folder, make_private, opened

_BYTES = 32


@cache
def secret_in(place: Path | None, otherwise: Path) -> bytes:
    """The secret in a file, made if there is none; in a file of the folder `otherwise` if that place cannot be used.

    OSError if neither can.
    """
    for path in (place, otherwise / "secret.key"):
        if path is not None:
            try:
                make_private(path.parent)
                with opened(path.parent, set()) as folder:
                    return _secret(folder, path.name)
            except OSError:
                continue
    raise PermissionError("there is no place for a secret")


def _secret(folder: Folder, name: str) -> bytes:
    found = _read(folder, name)
    if found is None:
        aside = f"{name}-{os.getpid()}-{os.urandom(4).hex()}"
        folder.write(aside, os.urandom(_BYTES))
        try:
            folder.keep_first(aside, name)
        except FileExistsError:
            pass  # another process was quicker
        except OSError:  # a file system without second names
            folder.rename(aside, name)
        folder.delete(aside)
        found = _read(folder, name)
    if found is None:
        raise PermissionError("the secret cannot be read back")
    return found


def _read(folder: Folder, name: str) -> bytes | None:
    """The secret; None if there is none, or something else in its place, which goes away."""
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
