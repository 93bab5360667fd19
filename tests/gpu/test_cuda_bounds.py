"""No kernel reads or writes outside its arrays: a run with walls around all memory, in a process of its own."""

import subprocess
import sys

import pytest

from tests.gpu.cases import needs_compiler
from wayfare.codegen.runtime import kernel


@needs_compiler
@pytest.mark.skipif(not kernel.available(), reason="llvmlite does not work here")
@pytest.mark.skipif(sys.platform != "linux", reason="the memory with walls is written for Linux")
def test_kernels_stay_within_their_arrays():
    run = subprocess.run([sys.executable, "-m", "tests.gpu.bounds"], capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout == "all within bounds\n", f"{run.returncode}\n{run.stdout}{run.stderr}"
