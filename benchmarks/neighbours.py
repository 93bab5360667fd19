"""Busy neighbours: processes that do nothing but take a core each, for as long as a suite runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# It looks now and then whether the suite is still there: nobody else would end it.
SPIN = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000):
        pass
"""


@contextmanager
def neighbours(number: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many busy processes, ended when the block is left."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(number):
            started.append(subprocess.Popen([sys.executable, "-c", SPIN, str(os.getpid())]))
        yield started
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()
