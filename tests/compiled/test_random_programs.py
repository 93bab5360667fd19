"""Random programs, compiled: whatever is called, in whatever order, they do what plain Python does.

The environment variable WAYFARE_PROGRAMS sets how many programs are tried.
"""

import os

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import wayfare as wf
from tests.compiled.program_writer import Writer
from tests.compiled.programs import Program, difference, shortened

COUNT = int(os.environ.get("WAYFARE_PROGRAMS", "100"))


# Derandomised: where a branch hangs on a rounding error, another order of the same sum may take the other one. A
# failing program is made short statement by statement, which knows more about programs than hypothesis does.
@settings(
    max_examples=COUNT, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)  # fmt: skip
@given(st.integers(0, 2**40))
def test_a_random_program_does_what_plain_python_does(seed):
    check(Writer(seed).write())


@pytest.mark.parametrize("seed", range(8))
def test_a_checked_program_finds_nothing_to_say(seed):
    check(Writer(seed).write(), wf.compile(check=True))


def check(program, way=None):
    """Fail with the shortest program that still differs."""
    if difference(program, way=way) is None:
        return
    program, schedule = shortened(program, way=way)
    found = difference(program, schedule, way)
    pytest.fail(f"{found}\ncalls: {', '.join(schedule)}\n\n{program}", pytrace=False)


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
    assert difference(program, way=lambda f: f) is None
    assert difference(program, way=way) is not None
    short, schedule = shortened(program, way=way)
    assert short.statements == statements
    assert len(schedule) <= 2


def test_programs_are_of_many_kinds():
    source = "\n".join(str(Writer(seed).write()) for seed in range(60))
    for word in ("while ", "if ", "no_grad", "backward", "autograd.grad", "dropout", "log.append", "_(", "] = ",
                 ".item()", "@", "wf.cat", "settings", "def make", "xs['rest']", "int64", "float32"):  # fmt: skip
        assert word in source, word
