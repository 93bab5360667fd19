"""Statistics and elements of recorded values: right for every kind of array, cheap for large ones, no NaN in a file."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wayfare as wf
from tests.see.debug.documents import consistent
from wayfare.see.debug.measures import COPIED, SAMPLE, Measures


def measured(*arrays, show=True):
    measures = Measures()
    numbers = [measures.take(array, show) for array in arrays]
    found = measures.all()
    return [found[number] for number in numbers]


def agrees(found, array):
    """Are the statistics those of the array (those of a sample, where there are many elements)?"""
    wide = np.asarray(array, np.float64)
    finite = wide[np.isfinite(wide)]
    assert found.nans == np.isnan(wide).sum()
    assert found.infinite == np.isinf(wide).sum()
    if not finite.size:
        assert np.isnan([found.low, found.high, found.mean, found.deviation]).all()
        return
    assert (found.low, found.high) == (finite.min(), finite.max())
    scale = np.abs(finite).max() + 1e-30
    assert found.mean == pytest.approx(finite.mean(), abs=1e-5 * scale)
    assert found.deviation == pytest.approx(finite.std(), rel=0.3 if found.looked_at else 1e-5, abs=1e-5 * scale)
    counted = sum(found.counts)
    if counted:
        assert counted <= (found.looked_at or wide.size)
    if found.looked_at is None:
        assert found.zeros == (wide == 0).sum()
        assert not found.counts or counted == finite.size
    else:
        assert found.zeros == pytest.approx((wide == 0).sum(), abs=0.15 * wide.size)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (20,), (10, 51), (3, 200), (90, 91), (64, 512), (2, 3, 40, 50)])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i8", "u1", "?"])
def test_statistics_are_right(shape, dtype):
    array = (np.random.default_rng(1).standard_normal(shape) * 3).clip(0 if dtype == "u1" else None).astype(dtype)
    (found,) = measured(np.asarray(array))
    agrees(found, np.asarray(array))


@pytest.mark.parametrize("shape", [(5,), (40, 50), (90, 91), (300, 400)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_single_bad_element_is_never_missed(shape, bad):
    array = np.random.default_rng(2).standard_normal(shape).astype("f4")
    # Not one of those the sample would take.
    array.reshape(-1)[-2] = bad
    (found,) = measured(array)
    agrees(found, array)


def test_a_bad_element_of_a_huge_array_is_found_too():
    array = np.ones((1 << 21) + 3, np.float32)
    array[5] = np.nan
    (found,) = measured(array)
    assert (found.nans, found.infinite, found.low, found.high) == (1, 0, 1, 1)
    array[5] = 1e30  # its square is infinite, but it is not
    (found,) = measured(array)
    assert (found.nans, found.infinite) == (0, 0)


@pytest.mark.parametrize("size", [3, SAMPLE + 1, COPIED + 1])
def test_only_bad_elements(size):
    for bad in (np.nan, np.inf):
        (found,) = measured(np.full(size, bad, np.float32))
        agrees(found, np.full(size, bad, np.float32))


def test_views_of_any_kind():
    base = np.random.default_rng(3).standard_normal((120, 130)).astype("f4")
    stretched = np.broadcast_to(base[0], (100, 130)), np.broadcast_to(np.float32(1.5), (300, 300))
    for array in (base.T, base[::2], base[:, ::-1], *stretched):
        (found,) = measured(array)
        agrees(found, array)


def test_empty_arrays():
    (found,) = measured(np.zeros((0, 3), np.float32))
    assert np.isnan([found.low, found.high, found.mean, found.deviation]).all()
    assert (found.nans, found.zeros, found.counts) == (0, 0, [])


def test_nearly_constant_numbers_have_a_steady_deviation():
    array = (1000 + 1e-3 * np.random.default_rng(4).standard_normal((100, 100))).astype("f4")
    (found,) = measured(array)
    assert found.deviation == pytest.approx(array.astype("f8").std(), rel=0.3)


@given(st.lists(st.one_of(st.floats(width=32), st.just(float("nan"))), max_size=40))
def test_any_numbers(numbers):
    array = np.array(numbers, np.float32)
    (found,) = measured(array)
    agrees(found, array)


def test_what_was_copied_is_worked_out_before_it_is_too_much(monkeypatch):
    monkeypatch.setattr("wayfare.see.debug.measures._PENDING", 10_000)
    arrays = [np.full(100, i, np.float32) for i in range(200)]
    measures = Measures()
    most = 0
    for array in arrays:
        measures.take(array, True)
        most = max(most, measures._bytes)
    assert most <= 10_000
    assert [found.mean for found in measures.all()] == list(range(200))


def test_elements_whole_and_by_their_corners():
    with wf.debug.record() as run:
        wf.arange(6.0).reshape(2, 3) * 1
        wf.arange(100.0) * 1
        wf.arange(200.0).reshape(20, 10) * 1
        wf.zeros(100, 100) * 1
        wf.tensor([1.0, float("nan"), float("inf"), -float("inf")]) * 1
        wf.tensor(3.25) * 1
        wf.zeros(0, 4) * 1
    document = consistent(run)
    shown = [value.elements for value in run.nodes if value.op == "mul"]
    assert shown[0] == [[0, 1, 2], [3, 4, 5]]
    assert shown[1] == [0, 1, 2, "…", 97, 98, 99]
    assert (len(shown[2]), shown[2][0], shown[2][3]) == (7, [0, 1, 2, "…", 7, 8, 9], "…")
    assert [len(row) for row in shown[3] if row != "…"] == [7] * 6
    assert shown[4] == [1, "nan", "inf", "-inf"]
    assert shown[5:] == [3.25, []]
    whole = [value["whole"] for value in document["values"] if value["shape"] in ([2, 3], [100])]
    assert True in whole
    assert False in whole


def test_large_values_are_not_dumped():
    with wf.debug.record() as run:
        wf.zeros(200, 30, 40) * 1
        wf.zeros(5, 6, 7, 8, 9) * 1
    counts = [str(value["text"]).count("0.0") for value in run.document()["values"]]
    assert max(counts) <= 400


def shown_of(run):
    return {value.op for value in run.nodes if value.elements is not None and value.shape == (20, 20)}


def test_which_values_are_shown_is_a_choice():
    class Net(wf.nn.Module):
        def forward(self, x):
            return x.relu()

    net = Net()

    def program(values):
        with wf.debug.record(values=values) as run:
            (net(wf.ones(20, 20, requires_grad=True)).tanh() + wf.ones(2, 1)[0]).sum().backward()
        consistent(run)
        return run

    assert shown_of(program("all")) == {"leaf", "relu", "tanh", "add"}
    assert shown_of(program("small")) == set()
    assert shown_of(program(["tan*"])) == {"tanh"}
    assert shown_of(program(["Net"])) == set()
    assert shown_of(program(lambda name, tensor: name == "add" and tensor.ndim == 2)) == {"add"}
    assert program("small").nodes[-1].elements == program("all").nodes[-1].elements
    assert all(value.elements is None for value in program("none").nodes)
    assert program("none").nodes[-1].stats is not None
    chosen = next(value for value in program(["tanh"]).nodes if value.op == "tanh")
    assert chosen.grad_elements[0][0] == 1


def test_modules_are_chosen_by_their_path():
    net = wf.nn.Sequential(wf.nn.Linear(20, 20), wf.nn.Linear(20, 20))
    with wf.debug.record(values=["1*"]) as run:
        net(wf.ones(20, 20))
    assert [value.module for value in run.nodes if value.op == "linear" and value.elements is not None] == ["1"]


def test_many_values_are_shown_by_the_first_of_them(monkeypatch):
    monkeypatch.setattr("wayfare.see.debug.measures._SHOWN", 30)
    with wf.debug.record() as run:
        x = wf.ones(10)
        for _ in range(10):
            x = x * 1.0
    consistent(run)
    assert 0 < sum(value.elements is not None for value in run.nodes) < 10
    assert all(value.stats.mean == 1 for value in run.nodes)


def test_a_large_view_shares_the_statistics_of_what_it_looks_into():
    with wf.debug.record() as run:
        w = wf.randn(100, 200)
        w.T
        w.reshape(200, 100)
    first, *views = (value.stats for value in run.nodes)
    assert views == [first, first]
    shapes = [np.array(value.elements, object).shape[0] for value in run.nodes]
    assert shapes == [7, 7, 7]


def test_a_part_of_a_large_tensor_has_statistics_of_its_own():
    with wf.debug.record() as run:
        w = wf.arange(20000.0).reshape(100, 200)
        w[50:]
    assert [value.stats.min for value in run.nodes if value.op in ("slice", "narrow")] == [10000.0]
