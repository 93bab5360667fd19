"""Maps that are certain to run as a plain loop do so at once: nothing is chosen, and the results are the same."""

import itertools

import pytest

import wayfare as wf
from wayfare.batch import frontend
from wayfare.batch.function_profile import profile_of


@pytest.fixture(autouse=True)
def as_it_pays(monkeypatch, always_batched):
    monkeypatch.setitem(wf.map.__kwdefaults__, "batch", None)


@pytest.fixture
def chosen(monkeypatch):
    """How many examples the maps had that had to choose how to run."""
    counts = []
    choose = frontend._chosen

    def counted(profile, fn, columns, *options):
        counts.append(len(columns[0]))
        return choose(profile, fn, columns, *options)

    monkeypatch.setattr(frontend, "_chosen", counted)
    return counts


def test_one_example_has_nothing_to_choose(chosen):
    assert [t.item() for t in wf.map(lambda x: x * 2, [wf.tensor(3.0)])] == [6.0]
    assert [t.item() for t in wf.map(lambda x, y: x * y, [wf.tensor(3.0)], iter([wf.tensor(2.0)]))] == [6.0]
    assert chosen == [] and wf.batching.last().looped == 1
    assert wf.map(lambda x: x, []) == []


def test_a_loop_that_is_decided_is_not_chosen_again(chosen):
    total = wf.zeros(1)

    def add(x):
        total.add_(x)  # in order: all see it
        return x + 1

    xs = [wf.tensor(float(i)) for i in range(5)]
    with pytest.warns(UserWarning, match="one after the other"):
        for _ in range(40):
            assert [t.item() for t in wf.map(add, xs)] == [1, 2, 3, 4, 5]
    assert total.item() == 40 * 10
    # Batching is tried again after 1, 2, 4, 8, … maps.
    assert len(chosen) < 16
    assert wf.batching.last().looped == 5 and profile_of(add).maps == 40


def test_few_examples_say_nothing_of_many(chosen):
    def f(x):
        return x * 2

    profile = profile_of(f)
    profile.loop_reason, profile._retry_at = "it was measured", 1000
    profile.by_loop = [1.0, 1.0]
    xs = [wf.tensor(float(i)) for i in range(8)]
    wf.map(f, xs[:2])
    wf.map(f, xs[:2])
    assert chosen == [2]  # the second map knows
    wf.map(f, xs)
    assert chosen == [2, 8]


def test_times_are_still_taken(chosen):
    def f(x):
        return x * 2

    profile = profile_of(f)
    profile.loop_reason, profile._retry_at = "it was measured", 1000
    profile.by_loop = [1.0, 1.0]
    xs = [wf.tensor(float(i)) for i in range(2)]
    for _ in range(32):
        wf.map(f, xs)
    assert len(chosen) == 1
    assert len(profile.by_loop) >= 4 and all(seconds < 0.1 for seconds in profile.by_loop[2:])


def test_every_example_has_random_numbers_of_its_own(chosen):
    def draw(x):
        return x + wf.rand(2)

    def again(x):
        return x + wf.rand(2)

    profile = profile_of(draw)
    profile.loop_reason, profile._retry_at = "it was measured", 1000
    xs = [wf.zeros(2) for _ in range(2)]
    wf.map(draw, xs)
    wf.manual_seed(5)
    straight = [wf.map(draw, xs) for _ in range(3)]
    assert len(chosen) == 1
    wf.manual_seed(5)
    looped = [wf.map(again, xs, batch=False) for _ in range(3)]
    for one, other in zip(itertools.chain(*straight), itertools.chain(*looped), strict=True):
        assert one.tolist() == other.tolist()
    assert wf.rand(1).item() != wf.rand(1).item()


def test_an_error_names_its_example_and_the_next_map_is_unharmed():
    def f(x):
        if x == 2:
            raise ValueError("two")
        return x

    with pytest.raises(ValueError, match="two") as caught:
        wf.map(f, [2])
    assert "example 0 of wf.map" in caught.value.__notes__[0]
    profile = profile_of(f)
    profile.loop_reason, profile._retry_at = "it was measured", 1000
    wf.map(f, [0, 1])
    with pytest.raises(ValueError, match="two") as caught:
        wf.map(f, [0, 2])
    assert "example 1 of wf.map" in caught.value.__notes__[0]
    assert wf.map(f, [1, 0]) == [1, 0]


def test_a_map_inside_a_straight_one():
    def inner(x):
        return x * wf.rand(1)

    def outer(x):
        return sum(wf.map(inner, [x, x]), wf.zeros(1))

    wf.manual_seed(1)
    straight = wf.map(outer, [wf.ones(1)])[0]
    wf.manual_seed(1)
    looped = wf.map(outer, [wf.ones(1)], batch=False)[0]
    assert straight.item() == looped.item()


def test_a_straight_example_may_recurse_deeply():
    def depth(tree):
        return 0 if tree is None else 1 + depth(tree[0])

    tree = None
    for _ in range(3000):
        tree = (tree,)
    assert wf.map(depth, [tree]) == [3000]
    while tree is not None:  # freed from the outside: the destructor of tuples recurses too
        tree = tree[0]
