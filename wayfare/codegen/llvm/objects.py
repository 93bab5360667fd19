"""Object code by key: read from the disk cache, or compiled by LLVM and stored there.

A cache file begins with the names of the library functions that its code calls, so that it can be loaded without the
loop it was made from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from wayfare.codegen.llvm.machine import machine
from wayfare.codegen.runtime.cache import default_store, key_of
from wayfare.core.counters import COUNTERS
from wayfare.core.version import __version__

_END = b"\n"


class ObjectCode(NamedTuple):
    """Machine code and the library functions it calls."""

    code: bytes
    symbols: frozenset[str]


def key(*parts: str) -> str:
    """The key of code that this code generator makes from these texts for this processor."""
    processor = machine().processor
    return key_of(*parts, processor.name, processor.features, processor.llvm, __version__, _generator())


def fetch(
    key: str,
    about: Callable[[], dict[str, str]],
    write: Callable[[], tuple[str, frozenset[str]]],
    counts: bool = True,
) -> ObjectCode:
    """The code of a key. If it is not in the cache, `write` gives its IR and the functions it calls.

    `counts`: count it as a kernel?
    """
    kept = default_store()
    found = kept.get(key)
    if found is not None:
        COUNTERS.kernels_loaded += counts
        names, _, code = found.partition(_END)
        return ObjectCode(code, frozenset(names.decode().split()))
    text, symbols = write()
    code = machine().object_code(text)
    COUNTERS.kernels_built += counts
    kept.put(key, " ".join(sorted(symbols)).encode() + _END + code, about() | {"cpu": machine().processor.name})
    return ObjectCode(code, symbols)


@cache
def _generator() -> str:
    """A hash of the code generator's source, so that code made by another version is not used."""
    digest = hashlib.sha256()
    room = Path(__file__).parents[1]
    for part in ("llvm/*.py", "math/*.py", "runtime/thread_pool*.py"):
        for path in sorted(room.glob(part)):
            digest.update(path.read_bytes())
    return digest.hexdigest()
