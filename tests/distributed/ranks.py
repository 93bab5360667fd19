"""Runs programs on several ranks, as `wayfare launch` does, and skips where there is no MPI."""

import os
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from wayfare.distributed import launch

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).resolve().parents[2]

needs_mpi = pytest.mark.skipif(find_spec("mpi4py") is None, reason='mpi4py is missing: pip install "wayfare[mpi]"')


def start(ranks, program, *arguments, **variables):
    """A program of programs/ (or a path), started on several ranks; its Popen."""
    path = PROGRAMS / program
    line = launch.command(ranks, [str(path), *map(str, arguments)], ["--oversubscribe"])
    env = launch.environment(ranks) | {"PYTHONPATH": str(ROOT), "WAYFARE_NUM_THREADS": "1", **variables}
    env.pop("PYTEST_CURRENT_TEST", None)
    return subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=os.getcwd())


class Done:
    """What a program has left: its status, output, errors, and seconds."""

    def __init__(self, process, began, limit):
        try:
            self.out, self.err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            self.out, self.err = process.communicate()
            raise AssertionError(f"the ranks did not end in {limit} s:\n{self.out}\n{self.err}") from None
        self.status = process.returncode
        self.seconds = time.monotonic() - began


def run(ranks, program, *arguments, limit=120, **variables):
    """Run a program to its end."""
    began = time.monotonic()
    return Done(start(ranks, program, *arguments, **variables), began, limit)


def passes(ranks, program, *arguments, **variables):
    """Run a program whose asserts must hold on every rank."""
    done = run(ranks, program, *arguments, **variables)
    assert done.status == 0, f"{done.out}\n{done.err}"
    return done
