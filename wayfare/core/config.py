"""The settings object. All environment variables of ours are read here, but for WAYFARE_NATIVE (native.py) and those of
the launcher (launched.py)."""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from wayfare.core.launched import LAUNCHERS

_MB = 2**20


def _number(name: str, default: int, least: int = 0) -> int:
    """A number from an environment variable; a warning and the default if it is not one."""
    text = os.environ.get(name, "").strip()
    try:
        number = int(text or default)
    except ValueError:
        number = least - 1
    if text and number < least:
        warnings.warn(f"settings: {name}={text!r} is not a whole number of at least {least}, so the default holds",
                      stacklevel=2)  # fmt: skip
    return number if text == "" or number >= least else default


def _cache_folder() -> Path | None:
    """The folder of the kernel cache: the user's, or one in the system's cache folder; None for no cache."""
    said = os.environ.get("WAYFARE_CACHE", "").strip()
    if said.lower() in ("off", "no", "none", "0"):
        return None
    try:
        if said:
            return Path(said).expanduser().absolute()
        return _system_caches() / "wayfare" / "kernels"
    except (RuntimeError, OSError):  # a user without a home, a working folder that is gone
        return None


def _cache_secret() -> Path | None:
    """The file of the kernel cache's secret key. It is not in the cache folder, which may be shared."""
    try:
        if sys.platform in ("win32", "darwin"):
            base = _system_caches() if sys.platform == "win32" else Path.home() / "Library" / "Application Support"
        else:
            named = os.environ.get("XDG_STATE_HOME", "")
            base = Path(named) if os.path.isabs(named) else Path.home() / ".local" / "state"
        return base / "wayfare" / "kernels.key"
    except (RuntimeError, OSError):
        return None


def _system_caches() -> Path:
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    # The XDG specification says to ignore a relative path.
    named = os.environ.get("XDG_CACHE_HOME", "")
    return Path(named) if os.path.isabs(named) else Path.home() / ".cache"


def _launched_ranks() -> int | None:
    """How many processes were started together with this one; None if it was started alone."""
    return next((_number(names[1], 1, 1) for names in LAUNCHERS if names[1] in os.environ), None)


def _pool_limit() -> int:
    """The user's limit in MB, or an eighth of the memory and at most 1 GB."""
    said = _number("WAYFARE_POOL_LIMIT", -1)
    if said >= 0:
        return said * _MB
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows does not say
        memory = 4096 * _MB
    return min(1024 * _MB, memory // 8)


def _processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(slots=True)
class PrintOptions:
    """How `repr(tensor)` writes numbers; the names and defaults are PyTorch's."""

    precision: int = 4
    threshold: int = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


@dataclass(slots=True)
class Settings:
    """Settings for the whole process."""

    # Past this many elements `repr` adds a line of statistics.
    statistics_threshold: int = field(default_factory=lambda: _number("WAYFARE_STATISTICS_THRESHOLD", 1000))
    # The folder of compiled kernels, and how many bytes may be in it. WAYFARE_CACHE=off keeps none.
    cache_folder: Path | None = field(default_factory=_cache_folder)
    cache_secret: Path | None = field(default_factory=_cache_secret)
    cache_limit: int = field(default_factory=lambda: _MB * max(_number("WAYFARE_CACHE_LIMIT", 256), 0))
    # How many bytes of memory are kept to be used again; 0 turns the pool off.
    pool_limit: int = field(default_factory=_pool_limit)
    # How many threads share a large loop.
    num_threads: int = field(default_factory=lambda: _number("WAYFARE_NUM_THREADS", _processors(), 1))
    # "full" shows the library's own frames in tracebacks too.
    traceback: str = field(default_factory=lambda: os.environ.get("WAYFARE_TRACEBACK", "").strip().lower() or "user")
    # Are the calls of all ranks compared before they are made, and how many ranks were launched (None: no launcher)?
    distributed_debug: bool = field(default_factory=lambda: _number("WAYFARE_DISTRIBUTED_DEBUG", 0) > 0)
    launched_ranks: int | None = field(default_factory=_launched_ranks)
    # May products of float32 matrices on a GPU round their operands to TF32 (10 bits)?
    allow_tf32: bool = False
    printing: PrintOptions = field(default_factory=PrintOptions)


settings = Settings()
