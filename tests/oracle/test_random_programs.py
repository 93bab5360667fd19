"""Random programs behave as with PyTorch: values, flags, gradients, and what they raise.

A few hundred programs by default, always the same. `WAYFARE_PROGRAMS=20000` runs so many others, starting at
`WAYFARE_PROGRAMS_FROM` (default 1000000). A program that differs is made as short as it can be and printed.
"""

from __future__ import annotations

import os
import random
import warnings

import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

import wayfare as wf
from tests.oracle.program_writer import Writer
from tests.oracle.programs import compare, difference, run, shortened

_BATCH = 50
_WANTED = int(os.environ.get("WAYFARE_PROGRAMS", "0"))
_START = int(os.environ.get("WAYFARE_PROGRAMS_FROM", "1000000")) if _WANTED else 0


def check(seed):
    """Write one program, run it with both, and fail with the shortest program that still differs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        statements, expected = Writer(seed, random.Random(seed).randrange(6, 26)).write()
        found = compare(statements, expected, run(wf, statements))
        # What a statement that was tried and dropped left behind is not part of the program: so once more, cleanly.
        if found is None or difference(statements) is None:
            return
        short = shortened(statements)
        program = "\n".join(f"    {line}" for statement in short for line in statement.splitlines())
        pytest.fail(f"program {seed}: {difference(short) or found}\n{program}", pytrace=False)


@pytest.mark.parametrize("first", range(_START, _START + (_WANTED or 400), _BATCH))
def test_programs(first):
    for seed in range(first, first + _BATCH):
        check(seed)


DIFFERENT = {
    "a value": "t0 = m.zeros(3, dtype=m.float64)\nif m.__name__ == 'torch':\n    t0[0] = 1",
    "a flag": "t0 = m.zeros(3, dtype=m.float64, requires_grad=m.__name__ == 'torch')",
    "an error": "t0 = m.zeros(3, dtype=m.float64, requires_grad=True)\nif m.__name__ == 'torch':\n    t0.add_(1)",
    "a gradient": "t0 = new(1, (3,), True)\n(t0 * (2 if m.__name__ == 'torch' else 3)).sum().backward()",
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_difference_is_found_and_the_program_made_short(what):
    noise = ["t7 = new(7, (2, 2), True)", "t8 = t7 * 2", "t8.mul_(3)", "t8.sum().backward()"]
    statements = [*noise[:2], DIFFERENT[what], *noise[2:]]
    assert difference(noise) is None
    assert difference(statements) is not None
    assert shortened(statements) == [DIFFERENT[what]]
