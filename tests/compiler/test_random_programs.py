"""Random programs, compiled: whatever is called, in whatever order, they do what plain Python does.

Programs have themes: memory that is shared, hooks, errors, NumPy, attributes, results nobody uses, optimisers, numbers,
second derivatives, results that are written later; and things are changed between their calls. Each is run with no
check, so that none can hide a wrong plan, and as `wf.compile` is by default.

The environment variable WAYFARE_COMPILED_PROGRAMS sets how many programs are tried; a long run has thousands.
"""

import os
from dataclasses import replace

import pytest

import wayfare as wf
from tests.compiler.program_writer import Writer
from tests.compiler.programs import WAYS, Program, difference, hangs_on_rounding, plainly, shortened

COUNT = int(os.environ.get("WAYFARE_COMPILED_PROGRAMS", "170"))


# In parts, so that several processes share them.
PARTS = max(4, COUNT // 100)


# A failing program is made short statement by statement, which knows more about programs than hypothesis does.
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs_do_what_plain_python_does(part):
    for seed in range(part, COUNT, PARTS):
        check(Writer(seed).write())


@pytest.mark.parametrize("seed", range(8))
def test_a_checked_program_finds_nothing_to_say(seed):
    check(Writer(seed).write(), wf.compile(check=True))


def check(program, *ways):
    """Fail with the shortest program that still differs."""
    if difference(program, *ways) is None or hangs_on_rounding(program):
        return
    assert difference(program, plainly) is None, f"plain Python itself is not always the same:\n{program}"
    way = next(way for way in ways or WAYS.values() if difference(program, way) is not None)
    short = shortened(program, way)
    pytest.fail(f"{difference(short, way)}\n\n{short}", pytrace=False)


LEAF = ("l0 = new(0, (a, b), 'float64', True)", "x0 = l0")
NOISE = ("v0 = x0 * 2", "v1 = v0.sin()")


def stale(function):
    """A wrong compiler: the first result again and again."""
    results = []

    def call(*args):
        results.append(function(*args)) if not results else None
        return results[0]

    return call


def copying(function):
    """A wrong compiler: results that ought to be views are copies."""
    return lambda *args: function(*args).clone()


def detached(function):
    """A wrong compiler: no gradient."""
    return lambda *args: function(*args).detach()


def drawing(function):
    """A wrong compiler: the generator moves on once too often."""

    def call(*args):
        wf.rand(1)
        return function(*args)

    return call


def forgetful(function):
    """A wrong compiler: what is written into an argument is lost."""
    return lambda x, *rest: function(x.clone(), *rest)


def shy(function):
    """A wrong compiler: errors are swallowed."""

    def call(*args):
        try:
            return function(*args)
        except RuntimeError:
            return None

    return call


@pytest.mark.parametrize("way, statements, result", [
    (stale, (), "x0 * 2"), (copying, (), "x0[0]"), (detached, (), "x0 * 2"), (drawing, (), "x0 * 2"),
    (forgetful, ("with wf.no_grad():\n    x0.mul_(2)",), "x0 * 2"), (shy, ("x0 @ wf.ones(97)",), "x0"),
])  # fmt: skip
def test_a_wrong_compiler_is_found_and_the_program_made_short(way, statements, result):
    program = Program(LEAF, (*NOISE, *statements), result, 1)
    assert difference(program, plainly) is None
    assert difference(program, way) is not None
    short = shortened(program, way)
    assert short.statements == statements
    assert len(short.schedule) <= 2


def wordy(function):
    """A wrong compiler: errors say something else."""

    def call(*args):
        try:
            return function(*args)
        except RuntimeError as error:
            raise type(error)("something else") from error

    return call


def settled(function):
    """A wrong compiler: it writes where it wrote at first."""
    known = []

    def call(x, *rest):
        known.append(x)
        return function(known[0], *rest)

    return call


def packing(function):
    """A wrong compiler: containers are made anew."""
    return lambda xs: dict(function(xs))


def zeroing(function):
    """A wrong compiler: results that are not used give zeros instead of nothing."""

    def call(x):
        first, second = function(x)
        return first + second.sum() * 0, second

    return call


def forgetting_hooks(function):
    """A wrong compiler: the hooks of its arguments are not called."""
    return lambda x: function(x.detach().requires_grad_())


@pytest.mark.parametrize("way, program", [
    (wordy, Program(LEAF, ("x0 @ wf.ones(97)",), "x0", 1)),
    (settled, Program(("x0 = pool[number % 4]",), ("x0.data.mul_(0.9)",), "None", 1)),
    (packing, Program(LEAF, (), "xs", 1, nested=True)),
    (zeroing, Program(LEAF, (), "(x0 * 2, c1 * 2)", 1, outside="some")),
    (zeroing, Program(LEAF, (), "(x0 * 2, c1 * 2)", 1, outside="each")),
    (forgetting_hooks, Program((*LEAF, "x0.register_hook(lambda g: heard.append(1))"), (), "x0 * 2", 1)),
])  # fmt: skip
def test_what_a_wrong_compiler_does_to_a_theme_is_found(way, program):
    calls = ("first", "first", "first")
    program = replace(program, schedule=calls)
    assert difference(program, plainly) is None
    assert difference(program, way) is not None


def test_programs_are_of_many_kinds():
    source = "\n".join(str(Writer(seed).write()) for seed in range(100))
    for word in ("while ", "if ", "no_grad", "backward", "autograd.grad", "dropout", "log.append", "_(", "] = ",
                 ".item()", "@", "wf.cat", "settings", "def make", "xs['rest']", "int64", "float32", "number %",
                 "slots[", "register_hook", "post_accumulate", "raise ", "except ", ".numpy()", "keeper.",
                 "program.steps", "outer.step()", "create_graph", "outside=some", "outside=each", "numbers=True",
                 "kept[-1]", "r)"):  # fmt: skip
        assert word in source, word
