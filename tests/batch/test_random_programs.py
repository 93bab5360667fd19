"""Random programs over trees, sequences, graphs and plain tensors: `wf.map` gives what the Python loop gives.

Half of them leave something behind: they write to tensors that all examples see, add to totals, catch errors.

The environment variable WAYFARE_PROGRAMS sets how many programs of each kind are tried.
"""

import os

import pytest

import wayfare as wf
from tests.batch.checks import said
from tests.batch.program_writer import with_fault, with_helpers, write
from tests.batch.programs import WAYS, Program, between, difference, looped, run, shortened

COUNT = int(os.environ.get("WAYFARE_PROGRAMS", "200"))
# Tests are this many programs each.
TOGETHER = 50


def blocks(count):
    """Seeds, some for each test. They are always the same: where a branch hangs on a rounding error, another order of
    the same sum may take the other one."""
    return pytest.mark.parametrize("seeds", [range(i, min(i + TOGETHER, count)) for i in range(0, count, TOGETHER)],
                                   ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")  # fmt: skip


kinds = pytest.mark.parametrize("leaving", [False, True], ids=["only computing", "leaving something behind"])


@kinds
@blocks(COUNT)
def test_a_random_program_does_what_the_loop_does(seeds, leaving):
    for seed in seeds:
        program = write(seed, leaving)
        if difference(program) is not None:
            program = shortened(program)
            pytest.fail(f"seed {seed}: {difference(program)}\n\n{program}", pytrace=False)


@kinds
@blocks(COUNT // 2)
def test_a_random_program_with_helpers_does_what_the_loop_does(seeds, leaving):
    for seed in seeds:
        program = with_helpers(seed, leaving)
        if difference(program) is not None:
            program = shortened(program)
            pytest.fail(f"seed {seed}: {difference(program)}\n\n{program}", pytrace=False)


def test_programs_have_helpers_of_all_styles():
    source = "\n".join(str(with_helpers(seed)) for seed in range(100))
    for word in ("def do_body(", "def do_cell(", "def do_step(", "made_do_body(", "of_do_body.do_body(", "(nn.Module)"):
        assert word in source, word


@kinds
@blocks(COUNT // 2)
def test_a_random_fault_is_that_of_the_loop_and_names_its_example(seeds, leaving):
    for seed in seeds:
        program, failing = with_fault(seed, leaving)
        batched, loop = WAYS[program.way]
        want, got = run(program, loop), run(program, batched)
        found = between(program, got, want)
        assert found is None, f"seed {seed}: {found}\n\n{program}"
        what = f"seed {seed}: {got.error!r} instead of {want.error!r}\n\n{program}"
        named = f"example {failing}"
        lenient = got.late or type(got.error) is not type(want.error)
        assert want.error is None or lenient or (named in said(got.error)) == (named in said(want.error)), what
        assert difference(SOUND) is None, f"after seed {seed}"


@pytest.mark.parametrize(("seed", "leaving"), [(135, True), (176, True), (471, False)])
def test_faults_that_were_once_others(seed, leaving):
    """A call failed after its example was done: later ones had written, or a map inside had run in two parts."""
    program, _ = with_fault(seed, leaving)
    batched, loop = WAYS[program.way]
    assert between(program, run(program, batched), run(program, loop)) is None, program


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


def test_programs_leave_something_behind_in_many_ways():
    programs = [write(seed, True) for seed in range(400)]
    source = "\n".join(str(program) for program in programs)
    for word in ("s0.add_", "p0.sub_", "w.data", "row.add_", "index_put_", "index_add_", "[e.k % d] += 1", "hooked(",
                 "counting(", "register_forward_hook", "register_hook", "retain_grad", "except ", "finally", ".sqrt()",
                 ".log()", "    return ", "    break", "    continue", "totals.sum +=", "global grand", "add(",
                 "tally[", "zero_grad", "p0.requires_grad_", "if e.index == 1", ".mT", "'ask': 'one'",
                 "'ask': 'some'"):  # fmt: skip
        assert word in source, word
