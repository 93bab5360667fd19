"""Fast paths of replayed calls: taken when all is as it was."""

import collections
import math
import threading

import numpy as np
import pytest

import wayfare as wf
from tests.compiler.checks import equal, numbers
from tests.compiler.fast_paths import CALLS, model_of, predicting, warmed

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs


def test_a_model_that_answers(taken):
    predict = predicting(model_of())
    compiled = warmed(predict, numbers(2, 4))
    before = taken[0]
    for seed in range(4):
        x = numbers(2, 4, seed=seed)
        equal(compiled(x), predict(x))
    assert taken[0] == before + 4


def test_several_sizes_take_turns(taken):
    predict = predicting(model_of())
    compiled = wf.compile(predict)
    for turn in range(CALLS):
        before = taken[0]
        for size in (1, 2, 3):
            x = numbers(size, 4, seed=turn)
            equal(compiled(x), predict(x))
    assert taken[0] == before + 3


def test_many_sizes_take_turns(taken):
    compiled = wf.compile(lambda parts: wf.stack(parts).mean(0))
    parts = [numbers(4, seed=seed) for seed in range(12)]
    for _ in range(CALLS):
        before = taken[0]
        for size in range(1, 13):
            equal(compiled(parts[:size]), wf.stack(parts[:size]).mean(0))
    assert taken[0] == before + 12


def test_more_sizes_than_shortcuts_are_kept(taken, monkeypatch):
    monkeypatch.setattr("wayfare.compiler.replay.fast_path._MOST", 5)
    predict = predicting(model_of())
    compiled = wf.compile(predict)
    for turn in range(CALLS):
        before = taken[0]
        for size in range(1, 9):
            x = numbers(size, 4, seed=turn)
            equal(compiled(x), predict(x))
    assert taken[0] == before + 5 and len(compiled._fast_paths) == 5


@pytest.mark.parametrize("arrange", [
    lambda a, b, c: (a, (b, c)), lambda a, b, c: ([a, b], c), lambda a, b, c: ((a,), [(b,)], c, 3, None, "sum"),
])  # fmt: skip
def test_structures_of_arguments(arrange, taken):
    def flat(parts):
        return [t for part in parts for t in (flat(part) if isinstance(part, (tuple, list)) else [part])]

    def total(*parts):
        found = [t for t in flat(parts) if isinstance(t, wf.Tensor)]
        return found[0] - 2 * found[1] + 3 * found[2]

    args = arrange(*(numbers(3, seed=i) for i in range(3)))
    compiled = warmed(total, *args)
    before = taken[0]
    equal(compiled(*args), total(*args))
    assert taken[0] == before + 1
    other = arrange(*(numbers(3, seed=i) for i in range(7, 10)))
    equal(compiled(*other), total(*other))


def test_keyword_arguments(taken):
    def function(x, y=None, *, factor=1.0, flip=False):
        z = x * factor if y is None else x * factor + y
        return -z if flip else z

    calls = [
        dict(factor=2.0), dict(factor=2.0, flip=True), dict(flip=True, factor=2.0), dict(y=numbers(3, seed=1)), dict(),
    ]  # fmt: skip
    compiled = wf.compile(function)
    for turn in range(CALLS):
        before = taken[0]
        for options in calls:
            x = numbers(3, seed=turn)
            equal(compiled(x, **options), function(x, **options))
    assert taken[0] == before + len(calls)
    for options in [dict(factor=3.0), dict(factor=2), dict(factor=-0.0), dict(y=numbers(1)), dict(flip=1, factor=2.0)]:
        for _ in range(CALLS):
            equal(compiled(x, **options), function(x, **options))
    with pytest.raises(TypeError):
        compiled(x, factors=2.0)


@pytest.mark.parametrize("number", [0.0, -0.0, 2.5, -1.0, float("inf"), float("-inf"), float("nan")])
def test_floats_among_the_arguments(number, taken):
    def function(x, number):
        return x + math.copysign(1.0, number), repr(number)

    compiled = warmed(function, numbers(3), number)
    before = taken[0]
    equal(compiled(numbers(3), float(repr(number))), function(numbers(3), number))
    assert taken[0] == before + 1
    for other in [0.0, -0.0, 2.5, -1.0, float("inf"), float("-inf"), float("nan"), 0, True]:
        assert compiled(numbers(3), other)[1] == repr(other)


def test_dictionaries_among_the_arguments(taken):
    def function(batch):
        return batch["x"] * batch["scale"], list(batch), isinstance(batch, collections.OrderedDict)

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            return True

    x = numbers(3)
    compiled = warmed(function, {"x": x, "scale": 2.0})
    before = taken[0]
    equal(compiled({"x": x + 1, "scale": 2.0}), function({"x": x + 1, "scale": 2.0}))
    assert taken[0] == before + 1
    for batch in [
        {"scale": 2.0, "x": x}, {"x": x, "scale": 3.0}, {"x": x, "scale": 2.0, "more": None},
        collections.OrderedDict(x=x, scale=2.0), {Name("x"): x, Name("scale"): 2.0},
    ]:  # fmt: skip
        for _ in range(CALLS):
            made, expected = compiled(batch), function(batch)
            equal(made[0], expected[0])
            assert list(map(type, made[1])) == list(map(type, expected[1])) and made[2] is expected[2]
            assert list(map(str.__str__, made[1])) == list(map(str.__str__, expected[1]))


def test_named_tuples_among_the_arguments(taken):
    Pair, Other = (collections.namedtuple(name, "first second") for name in ("Pair", "Other"))

    def function(pair):
        return pair[0] * 2 + pair[1], type(pair).__name__

    x = numbers(3)
    compiled = warmed(function, Pair(x, x + 1))
    before = taken[0]
    equal(compiled(Pair(x + 1, x)), function(Pair(x + 1, x)))
    assert taken[0] == before + 1
    for kind in (Other, lambda *parts: parts, Pair):
        for _ in range(CALLS):
            equal(compiled(kind(x, x + 1)), function(kind(x, x + 1)))


@pytest.mark.parametrize("results", [
    lambda y: y, lambda y: (y, y + 1), lambda y: [y], lambda y: {"y": y, "n": 3}, lambda y: (y, (y, 2.5)),
    lambda y: None, lambda y: (), lambda y: y.sum().item(),
])  # fmt: skip
def test_structures_of_results(results):
    def function(x):
        return results((x * 2).detach())

    compiled = wf.compile(function)
    for seed in range(CALLS):
        x = numbers(3, seed=seed)
        equal(compiled(x), function(x))


def test_methods(taken):
    class Scaled:
        def __init__(self, factor):
            self.factor = numbers(3) * factor

        @wf.compile
        def __call__(self, x):
            return x * self.factor

    one, other = Scaled(2.0), Scaled(3.0)
    for seed in range(CALLS):
        x = numbers(3, seed=seed)
        before = taken[0]
        equal(one(x), x * one.factor)
        equal(other(x), x * other.factor)
    assert taken[0] == before + 2


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_structure_in_the_place_of_self_is_known_by_identity(kind):
    class Line:
        @wf.compile
        def at(terms, x):
            return terms[0] * x + terms[1]

    lines = [kind([numbers(3, seed=seed), numbers(3, seed=seed + 1)]) for seed in (1, 5)]
    for seed in range(CALLS):
        x = numbers(3, seed=seed)
        for terms in lines:
            equal(Line.at(terms, x), terms[0] * x + terms[1])


def test_the_same_structure_in_the_place_of_self_and_after_it():
    class Line:
        @wf.compile
        def product(one, other):
            return one[0] * other[0]

    for seed in range(CALLS):
        one = (numbers(3, seed=seed),)
        for _ in range(CALLS):
            equal(Line.product(one, one), one[0] * one[0])


def test_each_call_has_memory_of_its_own():
    compiled = warmed(lambda x: (x * 2, x + 1), numbers(3))
    results = [t for seed in range(3) for t in compiled(numbers(3, seed=seed))]
    for i, one in enumerate(results):
        assert not any(np.may_share_memory(one.numpy(), other.numpy()) for other in results[i + 1 :])
        assert one.is_leaf and not one.requires_grad and one.numpy().flags.writeable


def test_calls_are_counted():
    compiled = warmed(lambda x: x * 2, numbers(3))
    before = compiled._calls
    compiled(numbers(3))
    assert compiled._calls == before + 1
    assert f"{before + 1} calls, {before} replayed" in str(compiled.explain())


def test_many_threads_at_once():
    predict = predicting(model_of())
    compiled = warmed(predict, numbers(2, 4))
    wrong = []

    def work(seed):
        for turn in range(30):
            x = numbers(2, 4, seed=100 * seed + turn)
            if not np.allclose(compiled(x).numpy(), predict(x).numpy()):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong






def test_results_do_not_lie_in_memory_that_is_kept():
    model = model_of()
    compiled = warmed(predicting(model), numbers(2, 4))
    inputs = [numbers(2, 4, seed=seed) for seed in range(4)]
    made = [compiled(x) for x in inputs]
    for x, y in zip(inputs, made, strict=True):
        equal(y, predicting(model)(x))


@pytest.mark.parametrize("width, kept", [(8, True), (20_000, False)])
def test_only_little_memory_is_kept(width, kept):
    weight = wf.ones(4, width)

    def predict(x):
        return (x @ weight).relu() @ weight.T

    compiled = warmed(predict, wf.ones(2, 4))
    (short,) = compiled._fast_paths
    held = [a for a in short._native._own if a.dtype == np.uint8]
    assert bool(held) is kept and short._native.arena_bytes >= 2 * width * 4
