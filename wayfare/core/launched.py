"""What the launcher says of this process, under the names that PyTorch's launcher has.

`wayfare launch` also runs this file, before the script: the variables are there for scripts that read them before they
import anything. So it imports nothing of the package.
"""

from __future__ import annotations

import os
import sys

__all__ = ["LAUNCHERS", "launched_variables"]

# Who started this process, if `mpirun` did: the variables of Open MPI, MPICH and Slurm, in PyTorch's order of names.
LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)
_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def launched_variables() -> dict[str, str]:
    """The variables of PyTorch's launcher, with what the launcher of this process says; empty if nobody launched it."""
    found = next((given for given in LAUNCHERS if given[1] in os.environ), ())
    return {name: os.environ[given] for name, given in zip(_NAMES, found, strict=False) if given in os.environ}


def set_variables() -> None:
    """Set them, where the user has not."""
    for name, value in launched_variables().items():
        os.environ.setdefault(name, value)


def _run(script: str) -> None:
    """Run a script as Python would."""
    import runpy

    set_variables()
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    _run(sys.argv[1])
