"""What `wf.compile` refuses, and what it cannot compile and runs as it is: both said in a sentence."""

import random
import re
import warnings

import pytest

import wayfare as wf
from tests.compiler.checks import CALLS, equal, x_of
from wayfare.errors import WayfareError

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs


@pytest.mark.parametrize("thing", [3, None, "text", wf.ones(2), [1], object()], ids=lambda t: type(t).__name__)
def test_only_functions_and_modules_are_compiled(thing):
    with pytest.raises(TypeError, match=r"compile.*function"):
        if thing is None:
            wf.compile(thing)(3)  # without a function it is a decorator with options
        else:
            wf.compile(thing)


def test_generator_functions_and_coroutines_are_refused():
    def steps(x):
        yield x * 2

    async def later(x):
        return x * 2

    async def stream(x):
        yield x

    for function in (steps, later, stream):
        with pytest.raises(TypeError, match=rf"compile.*{function.__name__}"):
            wf.compile(function)


def test_unknown_options_are_refused():
    with pytest.raises(TypeError, match="unheard"):
        wf.compile(lambda x: x, unheard=True)


class Unhashable:
    """An argument that can be neither hashed nor compared."""

    __hash__ = None

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        raise RuntimeError("do not compare me")


def test_arguments_that_cannot_be_compared():
    def f(x, thing, more):
        return x * thing.value + len(more)

    compiled = wf.compile(f)
    thing = Unhashable(2.0)
    for value in (2.0, 2.0, 2.0, 3.0, 3.0):
        thing.value = value
        for more in ({1, 2}, {"a": [1, {2}]}, bytearray(b"xyz")):
            assert compiled(wf.ones(1), thing, more).item() == value + len(more)


def test_fullgraph_raises_where_python_would_have_to_run():
    @wf.compile(fullgraph=True)
    def f(x):
        return x * random.random()

    with pytest.raises(WayfareError, match=r"test_refusals.py:\d+"):
        for _ in range(CALLS):
            f(wf.ones(2))

    @wf.compile(fullgraph=True)
    def fine(x):
        return x * 2

    for _ in range(CALLS):
        assert fine(wf.ones(1)).item() == 2.0


def test_what_cannot_be_compiled_runs_and_says_why_once():
    def f(x):
        return x + random.random() * 0 + x.sum()

    compiled = wf.compile(f)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for call in range(CALLS):
            equal(compiled(x_of(call)), f(x_of(call)))
    assert len(told) <= 1
    assert re.search(r"random.*test_refusals.py:\d+", str(compiled.explain()), re.DOTALL)


def test_check_finds_a_difference():
    """A clock read behind the compiler's back: the plan repeats the first reading, and `check` says so."""
    hidden = iter(range(100))
    numbers_read = hidden.__next__

    class Sly:
        __slots__ = ()

        def __call__(self):
            return float(numbers_read())

    sly = Sly()

    @wf.compile(check=True)
    def f(x):
        return x * sly()

    try:
        values = [f(wf.ones(1)).item() for _ in range(6)]
    except WayfareError as error:
        assert "check" in str(error) or "differs" in str(error)
    else:
        assert len(set(values)) == 6
