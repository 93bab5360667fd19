"""Random programs with all tensors on a device: `wf.map` in groups gives what the loop gives there.

The environment variable WAYFARE_GPU_PROGRAMS sets how many programs of each kind are tried.
"""

import os

import pytest

import wayfare as wf
from tests.batch.program_writer import write
from tests.batch.programs import WAYS, between, run

COUNT = int(os.environ.get("WAYFARE_GPU_PROGRAMS", "24"))


@pytest.mark.parametrize("leaving", [False, True], ids=["only computing", "leaving something behind"])
@pytest.mark.parametrize("seed", range(COUNT))
def test_a_random_program_does_what_the_loop_does(cuda, seed, leaving):
    program = write(seed, leaving)
    batched, loop = WAYS[program.way]
    with wf.device("cuda"):
        found = between(program, run(program, batched), run(program, loop))
    assert found is None, f"seed {seed}: {found}\n\n{program}"
