"""Python objects that all examples see, under other names: aliases, iterators, generators of random numbers."""

import collections
import functools
import heapq
import io
import itertools
import logging
import operator
import random
import struct
import types

import numpy as np
import pytest

import wayfare as wf
from tests.batch.states import same_as_loop
from wayfare import nn

CASES = {}


def case(make):
    CASES[make.__name__] = make
    return make


# -- other names of the same thing


def noting(note):
    """A list that is appended to before and after a value is read."""

    def make():
        lines = []
        parts = {"log": lines, "all": [lines]}
        write = lines.append

        def f(x):
            note(lines, parts, write, 0)
            n, v = len(lines), x.sum().item()
            note(lines, parts, write, v)
            return n, v, len(lines)

        return f, lambda: lines

    return make


def _by_name(lines, parts, write, v):
    q = lines
    q.append(v)


def _by_loop(lines, parts, write, v):
    for q in parts["all"]:
        q.append(v)


def _by_item(lines, parts, write, v):
    q = parts["log"]
    q.append(v)


def _by_match(lines, parts, write, v):
    match parts:
        case {"log": q}:
            q.append(v)


def _by_own_list(lines, parts, write, v):
    own = [lines]
    own[0].append(v)


def _by_own_object(lines, parts, write, v):
    own = types.SimpleNamespace()
    own.q = lines
    own.q.append(v)


def _by_default(lines, parts, write, v):
    def inner(v, q=lines):
        q.append(v)

    inner(v)


def _by_star(lines, parts, write, v):
    def inner(*args):
        args[0].append(args[1])

    inner(lines, v)


def _by_zip(lines, parts, write, v):
    for q, value in zip([lines], [v], strict=True):
        q.append(value)


def _by_generator(lines, parts, write, v):
    def give():
        yield lines

    for q in give():
        q.append(v)


def _by_result(lines, parts, write, v):
    def give():
        return lines

    give().append(v)


def _by_choice(lines, parts, write, v):
    (lines or []).append(v) if lines else lines.append(v)


def _by_plus(lines, parts, write, v):
    q = lines
    q += [v]


def _by_slice(lines, parts, write, v):
    lines[len(lines) :] = [v]


def _by_finally(lines, parts, write, v):
    try:
        raise ValueError
    except ValueError:
        q = lines
    finally:
        q.append(v)


for note in (
    _by_name, _by_loop, _by_item, _by_match, _by_own_list, _by_own_object, _by_default, _by_star, _by_zip,
    _by_generator, _by_result, _by_choice, _by_plus, _by_slice, _by_finally,
):  # fmt: skip
    CASES[f"list{note.__name__}"] = noting(note)
CASES["list_by_method"] = noting(lambda lines, parts, write, v: write(v))
CASES["list_by_partial"] = noting(lambda lines, parts, write, v: functools.partial(list.append, lines)(v))
CASES["list_by_callbacks"] = noting(lambda lines, parts, write, v: [c(v) for c in [write]])
CASES["list_by_operator"] = noting(lambda lines, parts, write, v: list.extend(lines, [v]))


def collect(x, out):
    out.append(x)


@case
def a_list_given_to_a_helper():
    out = []

    def f(x):
        collect(0, out)
        n, v = len(out), x.sum().item()
        collect(v, out)
        return n

    return f, lambda: out


@case
def a_partial_with_a_list():
    out = []

    def f(out, x):
        out.append(0)
        n, v = len(out), x.sum().item()
        out.append(v)
        return n

    return functools.partial(f, out), lambda: out


# -- iterators, heaps, dictionaries that grow


def drawing(make_source, draw):
    def make():
        source = make_source()

        def f(x):
            return draw(source), x.sum().item(), draw(source)

        return f

    return make


def _first(source):
    for value in source:
        return value


for name, (source, draw) in {
    "loop": (lambda: iter(range(99)), _first),
    "islice": (lambda: iter(range(99)), lambda s: [*itertools.islice(s, 2)]),
    "next": (itertools.count, next), "zip": (itertools.count, lambda s: [*zip([1, 2], s, strict=False)]),
    "generator": (lambda: (i for i in range(99)), next), "unpacked": (lambda: iter([[i, i] for i in range(9)]), _first),
    "heap": (lambda: [3, 1, 2, 6, 5, 4, 9], heapq.heappop), "pop": (lambda: list(range(9)), lambda s: s.pop()),
    "deque": (lambda: collections.deque(range(9)), lambda s: s.popleft()),
    "file": (lambda: io.StringIO("a\nb\nc\nd\ne\nf\ng\n"), lambda s: s.readline()),
    # generators of random numbers
    "numpy": (lambda: None, lambda s: np.random.rand()), "random": (lambda: None, lambda s: random.random()),
    "default_rng": (lambda: np.random.default_rng(0), lambda s: s.random()),
    "Random": (lambda: random.Random(0), lambda s: s.random()),
    "shuffle": (lambda: list(range(9)), lambda s: random.shuffle(s) or list(s)),
    "wf.Generator": (lambda: wf.Generator().manual_seed(0), lambda s: wf.rand((), generator=s).item()),
    "choice": (lambda: [1, 2, 3, 4, 5, 6], lambda s: random.choice(s)),
}.items():  # fmt: skip
    CASES[f"draw_{name}"] = drawing(source, draw)


@case
def multinomial_of_a_generator():
    g = wf.Generator().manual_seed(0)

    def f(x):
        first = wf.rand((), generator=g).item()
        return first, wf.multinomial(x.softmax(0), 1, generator=g).item(), wf.rand((), generator=g).item()

    return f


@case
def a_dictionary_that_numbers():
    numbers = collections.defaultdict(lambda: len(numbers))

    def f(x):
        a = numbers[f"a{len(numbers)}"]
        v = x.sum().item()
        return a, numbers[f"{v}{len(numbers)}"]

    return f, lambda: dict(numbers)


@case
def logging_lines():
    said = io.StringIO()
    log = logging.Logger("of a test")
    log.addHandler(logging.StreamHandler(said))

    def f(x):
        log.warning("start")
        v = x.sum().item()
        log.warning("value %s", v)

    return f, said.getvalue


# -- functions of modules that otherwise only compute


@case
def bytes_that_struct_writes():
    held = bytearray(8)

    def f(x):
        before = struct.unpack_from("d", held)[0]
        struct.pack_into("d", held, 0, before + 1)
        v = x.sum().item()
        return before, v, struct.unpack_from("d", held)[0]

    return f


@case
def a_method_that_is_called_by_name():
    held = []
    append = operator.methodcaller("append", 1)

    def f(x):
        append(held)
        operator.methodcaller("append", 2)(held)
        v = x.sum().item()
        return v, len(held)

    return f


@pytest.mark.parametrize("name", CASES)
def test_state_is_that_of_the_loop(name):
    same_as_loop(CASES[name])


@pytest.mark.parametrize("batch", [None, True])
def test_an_argument_that_all_examples_have(batch):
    class Env:
        at = 0

        def step(self, x):
            self.at += 1
            before = self.at
            return before, x.sum().item(), self.at

    xs = [wf.ones(2) * i for i in range(3)]
    want = [Env.step(env, x) for env, x in zip([Env()] * 3, xs, strict=True)]
    assert wf.map(lambda env, x: env.step(x), [Env()] * 3, xs, batch=batch) == want


class Count(nn.Module):
    """Counts its calls; the library's module around it must not hide that."""

    n = 0

    def forward(self, x):
        self.n += 1
        return (x * self.n).sum().item()


@pytest.mark.filterwarnings("ignore:map")
@pytest.mark.parametrize("batch", [None, True])
def test_a_module_that_counts_inside_one_of_the_library(batch):
    xs = [wf.ones(2) * i for i in range(3)]
    want = [(x * (i + 1)).sum().item() for i, x in enumerate(xs)]
    assert wf.map(nn.Sequential(nn.Identity(), Count()), xs, batch=batch) == want
