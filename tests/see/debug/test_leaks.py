"""Runs leak_checks.py in a process of its own: to look at everything that is alive takes long where much is."""

import subprocess
import sys
from pathlib import Path

CHECKS = Path(__file__).with_name("leak_checks.py")


def test_leaks_in_a_fresh_process():
    root = CHECKS.parents[3]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", str(CHECKS)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-4000:] + done.stderr[-2000:]
