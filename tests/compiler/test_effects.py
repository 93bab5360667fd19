"""What a function assigns is assigned again by every replay; moving views and objects as arguments are replayed too."""

import gc
import weakref

import pytest

import wayfare as wf
from tests.compiler.checks import equal, numbers
from wayfare import nn

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs

TOTAL = 0


class Keeping(nn.Module):
    """Counts its calls, and keeps what it computed."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4).double()
        self.calls = 0
        self.last = None

    def forward(self, x):
        self.calls += 1
        h = self.linear(x).tanh()
        self.last = h
        return h.sum()


class Stateful:
    """Reads its state and replaces it."""

    def __init__(self):
        self.state = None

    def __call__(self, x):
        self.state = x.sin() if self.state is None else (self.state * 0.5 + x).sin()
        return self.state * 2


def replayed(compiled, at_least):
    told = compiled.explain().data
    assert told["plain"] == 0 and told["replayed"] >= at_least, told


def test_a_counter_and_an_activation():
    model = Keeping()
    compiled = wf.compile(model)
    for call in range(10):
        x = numbers(3, 4, seed=call)
        result = compiled(x)
        assert model.calls == call + 1
        equal(model.last.detach(), model.linear(x).tanh().detach())
        equal(result.detach(), model.last.sum().detach())
    replayed(compiled, 7)
    kept = model.last
    compiled(numbers(3, 4, seed=50))
    assert model.last is not kept
    model.calls = 100
    compiled(numbers(3, 4, seed=51))
    assert model.calls == 101


def test_the_result_and_what_is_kept_are_one_tensor():
    box = Keeping()

    @wf.compile
    def f(x):
        box.last = y = x.sin()
        return y

    for call in range(6):
        assert f(numbers(3, seed=call)) is box.last
    replayed(f, 4)


def test_a_state_is_read_and_replaced():
    mine, plain = Stateful(), Stateful()
    compiled = wf.compile(lambda x: mine(x))
    for call in range(12):
        if call == 7:
            mine.state = plain.state = numbers(3, seed=99)
        x = numbers(3, seed=call)
        equal(compiled(x), plain(x))
        equal(mine.state, plain.state)
    replayed(compiled, 6)


def test_attributes_of_functions_globals_and_closures():
    calls = 0

    def helper(x):
        helper.count += 1
        return x * 2

    helper.count = 0

    @wf.compile
    def f(x):
        global TOTAL
        nonlocal calls
        TOTAL += 2
        calls += 1
        f.own += 1
        return helper(x).sin()

    f.own = 0
    start = TOTAL
    for call in range(1, 11):
        f(numbers(3, seed=call))
        assert (calls, helper.count, f.own, TOTAL - start) == (call, call, call, 2 * call)
    replayed(f, 8)


def test_views_whose_offset_moves_are_one_kind_of_call():
    rows = wf.zeros(8, 5, dtype=wf.float64)
    f = wf.compile(lambda row, x: row.copy_(x * 2))
    for call in range(16):
        f(rows[call % 8], numbers(5, seed=call))
        equal(rows[call % 8], numbers(5, seed=call) * 2)
    assert f.explain().data["recorded"] == 1
    replayed(f, 15)


def test_rows_that_overlap_are_another_kind():
    buffer = numbers(10)
    twin = buffer.clone()

    def shift(a, b):
        a.add_(b)
        return a.sum()

    f = wf.compile(shift)
    for call in range(20):
        k = call % 4
        equal(f(buffer[k : k + 4], buffer[5:9]), shift(twin[k : k + 4], twin[5:9]))
        equal(buffer, twin)


def test_objects_as_arguments_are_known_by_identity_and_guarded():
    class Going:
        def __init__(self, factor):
            self.factor = factor

    f = wf.compile(lambda going, x: x * going.factor)
    a, b = Going(2.0), Going(3.0)
    for call in range(12):
        a.factor += call == 6
        for going in (a, b):
            equal(f(going, numbers(3)), numbers(3) * going.factor)
    replayed(f, 18)


def test_modules_that_come_and_go_are_not_kept_alive():
    f = wf.compile(lambda layer, x: layer(x).sum())
    gone = []
    for _ in range(40):
        layer = nn.Linear(20, 20)
        for _ in range(3):
            f(layer, wf.ones(2, 20))
        gone.append(weakref.ref(layer.weight))
        del layer
    gc.collect()
    assert sum(reference() is not None for reference in gone) <= 1
    assert len(f._cache.entries) <= 1


def test_a_returned_container_is_the_one_that_was_given():
    given = {"a": numbers(2)}
    held = [numbers(2)]
    for function in (lambda d: d, lambda d: (d["a"] * 2, d), lambda d: held):
        compiled = wf.compile(function)
        for _ in range(5):
            with pytest.warns(UserWarning, match="was there before") if not compiled.explain().data["python"] and (
                compiled.explain().data["recorded"]
            ) else _nothing():  # fmt: skip
                made = compiled(given)
            assert made is given or made is held or made[1] is given


class _nothing:
    def __enter__(self):
        pass

    def __exit__(self, *error):
        pass


def test_a_function_that_does_not_pay_costs_next_to_nothing_and_is_counted():
    f = wf.compile(lambda x: x + 1)
    (x,) = (wf.ones(1),)
    f(x)
    (entry,) = next(iter(f._cache.entries.values()))
    f._leave(entry, "it is small")
    with pytest.warns(UserWarning, match="it is small"):
        for _ in range(100):
            assert f(x).item() == 2
    assert type(f) is not type(wf.compile(len)) and isinstance(f, type(wf.compile(len)))
    told = f.explain().data  # wakes it up
    assert told["calls"] == 101 and told["plain"] == 100
    assert type(f) is type(wf.compile(len))
    assert f(x).item() == 2
