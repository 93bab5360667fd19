"""How much memory the process has taken at most."""

from __future__ import annotations

import sys

if sys.platform != "win32":
    import resource


def peak_memory() -> int:
    """The largest resident size of this process so far, in bytes; 0 where the system does not tell."""
    if sys.platform == "win32":
        return 0
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024
