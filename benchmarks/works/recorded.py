"""What a side's automatic batching says of the last step."""

from __future__ import annotations

from typing import Any

from benchmarks.works import Unavailable

NAMES = ("nodes", "groups", "rounds", "gathers", "copies_avoided",
         "seconds_recording", "seconds_scheduling", "seconds_running")  # fmt: skip


def last(m: Any) -> dict[str, float]:
    """Nodes, groups, and seconds of recording, scheduling and running in the last forward pass."""
    found = m.batching.last() if hasattr(m, "batching") else None
    if found is None:
        raise Unavailable(f"{m.__name__} keeps no statistics of batching.")
    return {name: float(getattr(found, name)) for name in NAMES}


def version(m: Any) -> str:
    """What a side calls its version."""
    return str(getattr(m, "__version__", "(version unknown)"))
