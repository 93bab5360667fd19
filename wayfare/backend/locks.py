"""Locks that a fork waits for: a child must not inherit one that a thread holds which does not exist in it."""

from __future__ import annotations

import os
import threading
from typing import Any


def lock() -> Any:
    """A lock that its holder may take again. Locks are taken by a fork in the opposite order of their making, so one
    that is held while another is taken must be made after it."""
    made = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=made.acquire, after_in_parent=made.release, after_in_child=made.release)
    return made
