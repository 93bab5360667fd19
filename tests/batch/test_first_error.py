"""Two calls of one example fail: the error is that of the call which the loop makes first, whatever runs first."""

import pytest

import wayfare as wf

NINE = wf.tensor([9])


def rows(count=3):
    return [wf.ones(2, 3) * (i + 1) for i in range(count)]


def of_the_loop(function, given):
    with pytest.raises(wf.errors.WayfareError) as found:
        [function(x) for x in given]
    return str(found.value).split(" (")[0]


def select_second(x):
    a = x * 1
    return a[[4, 0]], a.index_select(0, NINE)


def select_first(x):
    a = x * 1
    return a.index_select(0, NINE), a[[4, 0]]


def both_of_one_op(x):
    a, b = x * 1, x + 1
    low, high = b[[5, 0]], a[[4, 0]]
    return high + 1, low * 2


def later_reader_first(x):
    a = x * 1
    late = a.index_select(0, NINE)
    return a[[7, 1]].sum(), late


def one_is_read(x):
    a = x * 1
    lost = a.index_select(0, NINE)
    return a[[4, 0]].sum().item(), lost


def read_first(x):
    a = x * 1
    read = a[[4, 0]].sum()
    lost = a.index_select(0, NINE)
    return read.item(), lost


def read_in_a_later_round(x):
    a = x * 1
    lost = a.index_select(0, NINE)
    if a.sum().item() > 0:
        a = a + 1
    return a[[4, 0]].sum().item(), lost


def then_python_fails(x):
    a = x * 1
    lost = a[[4, 0]]
    if a.sum().item() > 0:
        raise wf.errors.ShapeError("the user's own")
    return lost


def then_translated(x):
    a = x * 1
    found = a[[4, 0]]
    try:
        return a.index_select(0, NINE), found
    except IndexError:
        return a, found


FUNCTIONS = [
    select_second, select_first, both_of_one_op, later_reader_first, one_is_read, read_first, read_in_a_later_round,
    then_python_fails, then_translated,
]  # fmt: skip


@pytest.mark.parametrize("schedule", [wf.batching.Agenda(), wf.batching.ByDepth()], ids=["agenda", "depth"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_error_is_that_of_the_loop(function, schedule):
    expected = of_the_loop(function, rows())
    for _ in range(3):
        with pytest.raises(wf.errors.WayfareError) as found:
            wf.map(function, rows(), batch=True, schedule=schedule)
        assert str(found.value).startswith(expected)
        assert "example 0 of wf.map" in str(found.value)


@pytest.mark.parametrize("function", [select_second, one_is_read, read_first])
def test_the_same_in_a_map_inside_another(function):
    def outer(x):
        return wf.map(function, [x, x + 1], batch=True)

    expected = of_the_loop(function, rows())
    with pytest.raises(wf.errors.WayfareError) as found:
        wf.map(outer, rows(2), batch=True)
    assert str(found.value).startswith(expected)


def test_an_earlier_example_comes_first():
    def function(x, index):
        a = x * 1
        return a[[4, 0]] if index else a.index_select(0, NINE)

    with pytest.raises(IndexError, match=r"index_select: index 9 .* example 0"):
        wf.map(function, rows(2), [0, 1], batch=True)
    with pytest.raises(IndexError, match=r"index: index 4 .* example 0"):
        wf.map(function, rows(2), [1, 0], batch=True)


def test_a_later_error_counts_if_the_first_is_caught():
    def function(x):
        a = x * 1
        try:
            a = a[[4, 0]]
        except IndexError:
            a = a * 2
        return a, a.index_select(0, NINE)

    for _ in range(3):
        with pytest.raises(IndexError, match="index_select: index 9"):
            wf.map(function, rows(), batch=True)
