"""`wayfare launch -n 4 train.py`: builds the command line of mpirun, and runs it."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from wayfare.core import launched
from wayfare.core.errors import ArgumentError, DistributedError, MissingFileError

__all__ = ["add_arguments", "command", "joined", "run"]


def mpirun() -> str:
    """The mpirun that belongs to this Python's mpi4py: the one beside the interpreter, or else that of the system."""
    if importlib.util.find_spec("mpi4py") is None:
        raise DistributedError("launch: mpi4py is not installed", fix='Install it with: pip install "wayfare[mpi]"')
    beside = Path(sys.executable).parent
    for name in ("mpirun", "mpiexec"):
        found = shutil.which(name, path=str(beside)) or shutil.which(name)
        if found:
            return found
    raise DistributedError("launch: there is no mpirun, so no MPI is installed",
                           fix='Install Open MPI with: pip install "wayfare[mpi]"')  # fmt: skip


def command(ranks: int, script: Sequence[str], options: Sequence[str] = ()) -> list[str]:
    """The command line that starts a script on so many ranks. `options` are mpirun's own, such as --hostfile."""
    if ranks < 1:
        raise ArgumentError(f"launch: -n must be at least 1, it is {ranks}")
    program = mpirun()
    line = [program, "-n", str(ranks)]
    if is_open_mpi(program):
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            line.append("--allow-run-as-root")
        if ranks > (os.cpu_count() or 1):
            line.append("--oversubscribe")
    # With -m mpi4py a rank that raises ends all, even before it has joined a process group.
    return [*line, *options, sys.executable, "-m", "mpi4py", launched.__file__, *script]


def is_open_mpi(program: str) -> bool:
    """Is it Open MPI's? Others do not know its options."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DistributedError(f"launch: {program} does not run ({error})",
                               fix='Install Open MPI with: pip install "wayfare[mpi]"') from None  # fmt: skip
    return "Open MPI" in said.stdout or "Open MPI" in said.stderr


def environment(ranks: int) -> dict[str, str]:
    """The variables of the ranks: those of one machine share its processors."""
    threads = str(max(1, (os.cpu_count() or 1) // ranks))
    given = dict(os.environ)
    for name in ("WAYFARE_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        given.setdefault(name, threads)
    return given


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("-n", "--ranks", type=int, required=True, metavar="N", help="how many processes to start")
    parser.add_argument("--mpi", default="", metavar="OPTIONS",
                        help='options for mpirun itself, such as "--hostfile hosts.txt"')  # fmt: skip
    parser.add_argument("--show", action="store_true", help="print the command line instead of running it")
    parser.add_argument("script", help="the Python file to run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")


def joined(arguments: Sequence[str]) -> list[str]:
    """A command line whose `--mpi --x` is `--mpi=--x`: argparse takes what begins with a dash for an option."""
    found = list(arguments)
    place = 1
    while place + 1 < len(found) and found[place].startswith("-"):
        if found[place] == "--mpi":
            found[place : place + 2] = [f"--mpi={found[place + 1]}"]
        place += 2 if found[place] in ("-n", "--ranks") else 1
    return found


def run(options: argparse.Namespace) -> int:
    """Start the ranks, and return the exit status of mpirun."""
    try:
        if not Path(options.script).is_file():
            raise MissingFileError(f"launch: there is no file {options.script!r}")
        line = command(options.ranks, [options.script, *options.arguments], shlex.split(options.mpi))
    except (DistributedError, ArgumentError, MissingFileError) as error:
        print(f"wayfare: {error}", file=sys.stderr)
        return 1
    if options.show:
        print(shlex.join(line))
        return 0
    return start(line, options.ranks)


def start(line: Sequence[str], ranks: int) -> int:
    """Run mpirun to its end. An interrupt goes to it, and through it to all ranks."""
    process = subprocess.Popen(line, env=environment(ranks))
    while True:
        try:
            status = process.wait()
            return 128 - status if status < 0 else status
        except KeyboardInterrupt:
            continue  # the terminal has sent it to mpirun too
