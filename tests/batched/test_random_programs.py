"""Random programs over trees, sequences, graphs and plain tensors: `wf.map` gives what the Python loop gives.

The environment variable WAYFARE_PROGRAMS sets how many programs are tried.
"""

import os

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import wayfare as wf
from tests.batched.checks import said
from tests.batched.program_writer import with_fault, write
from tests.batched.programs import WAYS, Program, difference, looped, run, shortened

COUNT = int(os.environ.get("WAYFARE_PROGRAMS", "200"))


# Derandomised: where a branch hangs on a rounding error, another order of the same sum may take the other one. A
# failing program is made short statement by statement, which knows more about programs than hypothesis does.
@settings(
    max_examples=COUNT, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)  # fmt: skip
@given(st.integers(0, 2**40))
def test_a_random_program_does_what_the_loop_does(seed):
    program = write(seed)
    if difference(program) is None:
        return
    program = shortened(program)
    pytest.fail(f"seed {seed}: {difference(program)}\n\n{program}", pytrace=False)


@settings(
    max_examples=COUNT // 2, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)  # fmt: skip
@given(st.integers(0, 2**40))
def test_a_random_fault_is_that_of_the_loop_and_names_its_example(seed):
    program, failing = with_fault(seed)
    batched, loop = WAYS[program.way]
    want, got = run(program, loop).error, run(program, batched).error
    what = f"seed {seed}: {got!r} instead of {want!r}\n\n{program}"
    assert type(got) is type(want), what
    named = f"example {failing}"
    assert want is None or (named in said(got)) == (named in said(want)), what
    assert difference(SOUND) is None, f"after seed {seed}"


NOISE = ("n0 = e.x * 2", "n1 = n0.sin()")


def program_of(*statements, **more):
    return Program("straight", (("body", (*NOISE, "h = e.x @ w", *statements)),), (("result", "h"),), **more)


SOUND = program_of()


def first_only(function, examples):
    """A wrong map: the first example's result for all."""
    return [function(examples[0]) for _ in examples]


def backwards(function, examples):
    """A wrong map: results in another order."""
    return looped(function, examples)[::-1]


def detached(function, examples):
    """A wrong map: no gradient."""
    return [r.detach() for r in looped(function, examples)]


def doubling(function, examples):
    """A wrong map: gradients count twice, values do not."""
    return [2 * r - r.detach() for r in looped(function, examples)]


def drawing(function, examples):
    """A wrong map: the generator moves on once too often."""
    wf.rand(1)
    return looped(function, examples)


def careless(function, examples):
    """A wrong map: an error is lost."""
    try:
        return looped(function, examples)
    except RuntimeError:
        return [None for _ in examples]


@pytest.mark.parametrize("way, more", [
    (first_only, ()), (backwards, ()), (detached, ()), (doubling, ()), (drawing, ()),
    (careless, ("h @ wf.ones(97)",)),
])  # fmt: skip
def test_a_wrong_map_is_found_and_the_program_made_short(way, more):
    program = program_of(*more, seed=4)
    assert difference(program, (looped, looped)) is None
    assert difference(program, (way, looped)) is not None
    short = shortened(program, (way, looped))
    assert dict(short.places)["body"] in (("h = e.x @ w", *more), ("h = e.x * 2", *more))
    assert len(short.chosen) <= 2


def test_programs_are_of_many_kinds():
    programs = [write(seed) for seed in range(250)]
    source = "\n".join(str(program) for program in programs)
    for word in ("while ", "if ", "no_grad", "backward", "autograd.grad", "dropout", "kept", "_(", "] = ", ".item()",
                 "@", "wf.cat", "wf.map", "wf.batching", "memo", "visit(", "float32", "compiled_mix", "checkpoint",
                 "wf.where", "embedding", "topk", "'way': 'block'", "'ask': 'second'"):  # fmt: skip
        assert word in source, word
    assert {program.form for program in programs} > {"free", "tree", "dag", "graph", "parser", "nested", "halting"}
