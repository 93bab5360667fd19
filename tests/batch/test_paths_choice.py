"""Which examples of a map run along recorded paths, and what the paths depend on."""

import gc
import weakref

import pytest

import wayfare as wf
from tests.batch.path_helpers import Halting, close, halting_examples, mapped, vectors
from wayfare.batch.paths import choose, recorded


@pytest.fixture(autouse=True)
def from_the_second_map_on(always_batched, monkeypatch):
    """As for users."""
    monkeypatch.setattr(choose, "FIRST_MAPS", 1)


@pytest.fixture
def model():
    wf.manual_seed(0)
    return Halting().double()


# -- what paths depend on ------------------------------------------------------------------------------------------


FACTOR = 2.0


def by_a_global(x):
    return x * FACTOR if x.sum() > 0 else x


def test_a_global_that_changes(monkeypatch):
    xs = vectors(8)
    mapped(by_a_global, xs)
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    for _ in range(3):
        got = wf.map(by_a_global, xs)
        for one, x in zip(got, xs, strict=True):
            close(one, by_a_global(x))


def test_a_closure_made_anew_for_each_map(model):
    xs, labels = halting_examples(8)
    for scale in (1.0, 1.0, 1.0, 3.0, 3.0, 3.0):
        got = wf.map(lambda x, label, scale=scale: model(x, label) * scale, xs, labels)
        for one, x, label in zip(got, xs, labels, strict=True):
            close(one, model(x, label) * scale)


def test_a_parameter_that_is_replaced_frozen_or_of_another_dtype(model):
    xs, labels = halting_examples(8)
    mapped(model, xs, labels, times=8)
    model.head.weight = wf.nn.Parameter(model.head.weight.detach() * 2)
    check_against_loop(model, xs, labels)
    model.head.weight.requires_grad_(False)
    check_against_loop(model, xs, labels)
    model.float()
    check_against_loop(model, [x.float() for x in xs], labels, 1e-5)


def check_against_loop(model, xs, labels, tolerance=1e-12):
    for _ in range(4):
        got = wf.map(model, xs, labels)
        want = [model(x, label) for x, label in zip(xs, labels, strict=True)]
        for one, other in zip(got, want, strict=True):
            close(one, other, tolerance)
            assert one.requires_grad == other.requires_grad


def test_an_error_of_one_example_is_raised_by_python_on_its_line(model):
    xs, labels = halting_examples(8)
    mapped(model, xs, labels, times=8)
    labels[5] = wf.tensor(7)
    with pytest.raises(wf.errors.WayfareError, match="example 5"):
        wf.map(model, xs, labels)
    labels[5] = wf.tensor(1)
    check_against_loop(model, xs, labels)


def test_what_cannot_run_along_paths_runs_as_before():
    layer = wf.nn.Sequential(wf.nn.Linear(4, 4), wf.nn.Dropout(0.5)).double()
    xs = vectors(8)
    wf.manual_seed(3)
    want = [wf.map(layer, xs, batch=False) for _ in range(4)]
    wf.manual_seed(3)
    got = [wf.map(layer, xs) for _ in range(4)]
    for one, other in zip(got, want, strict=True):
        for a, b in zip(one, other, strict=True):
            close(a, b)
    seen = []

    def notes(x):
        seen.append(x.sum().item())
        return x * 2

    for _ in range(4):
        wf.map(notes, xs)
    assert seen == [x.sum().item() for x in xs] * 4


def test_an_argument_that_is_given_back_is_the_same_tensor():
    def function(x, w):
        return (x, w) if x.sum() > 0 else (x * 2, x)

    xs, w = vectors(8), wf.ones(4).double()
    for (one, other), x in zip(mapped(function, xs, [w] * 8), xs, strict=True):
        assert one is x and other is w if x.sum() > 0 else other is x


def test_where_no_example_has_a_path_it_is_not_looked_for_for_ever(monkeypatch):
    looked = []
    plain = recorded.Signed
    monkeypatch.setattr(recorded, "Signed", lambda example: looked.append(example.number) or plain(example))

    def function(x):
        return x.sum() * 2

    for n in range(40):
        wf.map(function, [wf.ones(4 * n + i) for i in range(4)])
    assert len(looked) == 4 * (8 + 8)  # in the maps 2 to 9, and then 25 to 32
    assert "hardly any example" in str(wf.batching.last())


def test_results_do_not_share_memory():
    xs = vectors(6)
    results = mapped(lambda_of_two(), xs)
    before = [r.clone() for r in results]
    results[2].add_(100)
    for i, (r, b) in enumerate(zip(results, before, strict=True)):
        close(r, b + 100 if i == 2 else b)


def lambda_of_two():
    def function(x):
        return x + 1 if x.sum() > 0 else x - 1

    return function


def test_a_difference_from_python_ends_it_with_a_warning(monkeypatch, model):
    xs, labels = halting_examples(8)
    mapped(model, xs, labels, times=8)
    (found,) = [p for key, p in model.__dict__["_wayfare_calls"].items() if isinstance(key, tuple)]
    for entries in found.compiled._cache.entries.values():
        for entry in entries:
            for block in entry.tree.walk():
                if block.recording is not None:
                    block.next_check = 0
                    block.recording.shape = (tuple, block.recording.shape)
    with pytest.warns(UserWarning, match="differ from Python"):
        got = wf.map(model, xs, labels)
    for one, x, label in zip(got, xs, labels, strict=True):
        close(one, model(x, label))


def test_a_function_and_its_model_are_freed():
    gone = weakref.ref(a_model_that_was_mapped())
    gc.collect()
    assert gone() is None


def a_model_that_was_mapped():
    model = Halting()
    xs, labels = halting_examples(8)
    xs = [x.float() for x in xs]
    for _ in range(6):
        wf.map(lambda x, label: model(x, label) * 2, xs, labels)
    assert wf.batching.last().paths.examples == 8
    return model


def test_statistics_show_the_tree_and_who_went_where():
    def function(x):
        return x * 2 if x > 0 else x - 1

    xs = [wf.tensor(v) for v in (1.0, -1.0, 2.0, 3.0, -2.0)]
    mapped(function, xs, times=20)
    text = str(wf.batching.last())
    assert "along recorded paths: 5 examples in 3 groups" in text
    assert "test_paths_choice.py" in text and "5 decide: True 3, False 2" in text


def test_the_first_map_of_a_function_has_no_paths():
    xs = vectors(4)

    def once(x):
        return x * 3 if x.sum() > 0 else x

    wf.map(once, xs)
    assert wf.batching.last().paths is None
    assert choose.FIRST_MAPS == 1


def test_a_few_equal_signatures_among_many_stay_in_the_session():
    """Taking a few examples out of the session would make its groups smaller."""

    def total(x):
        while x.abs().max() > 1:
            x = x * 0.5
        return x.sum()

    wf.manual_seed(0)
    few = [wf.randn(4) * 3 for _ in range(4)] + [wf.randn(n) * 3 for n in range(5, 17)]
    for _ in range(4):
        found = wf.map(total, few, batch=True)
    stats = wf.batching.last()
    assert stats.groups and stats.paths.examples == 0
    assert "most examples have a signature of their own" in stats.paths.reasons
    wf.testing.assert_close(found, [total(x) for x in few])


def test_where_examples_read_values_those_without_a_path_run_as_a_loop_until_they_have_one(model):
    xs, labels = halting_examples(24)
    expected = wf.map(model, xs, labels, batch=False)
    for number in range(6):
        found = wf.map(model, xs, labels, batch=None)
        stats = wf.batching.last()
        assert [t.item() for t in found] == pytest.approx([t.item() for t in expected])
        if number:  # the first map is batched
            assert stats.nodes == 0
            assert stats.paths.examples + stats.looped >= len(xs) - recorded.LEAST - stats.paths.recorded
