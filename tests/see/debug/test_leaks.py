"""Runs leak_checks.py in a process of its own: to look at everything that is alive takes long where much is."""

import gc
import subprocess
import sys
import weakref
from pathlib import Path

import wayfare as wf

CHECKS = Path(__file__).with_name("leak_checks.py")


def test_leaks_in_a_fresh_process():
    root = CHECKS.parents[3]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", str(CHECKS)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-4000:] + done.stderr[-2000:]


def test_looking_keeps_nothing():
    held = [wf.ones(3)]
    reference = weakref.ref(held[0])
    wf.debug.leaks()
    del held
    gc.collect()
    assert reference() is None
