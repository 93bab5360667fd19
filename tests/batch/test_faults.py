"""Faults inside `wf.map`: the example and the line are named, the others are wound up, and the next map works."""

import gc
import inspect
import os
import signal
import threading
import time

import pytest

import wayfare as wf
from tests.batch.checks import agree, equal, numbers, said, still_works, vectors, weight
from wayfare import nn
from wayfare.batch.fibers import recursion
from wayfare.batch.fibers.recursion import room_for_recursion
from wayfare.batch.run.group import Group
from wayfare.core.mode import set_mode
from wayfare.errors import IndexRangeError, LinAlgError, ShapeError, WayfareError
from wayfare.nn import functional as F

HERE = "test_faults.py"


def line_of(function, text):
    """The number of the first line of a function that holds a text."""
    lines, start = inspect.getsourcelines(function)
    return start + next(i for i, line in enumerate(lines) if text in line)


# -- an error in one example ------------------------------------------------------------------------------------


def reading(x, i, log):
    try:
        h = x * 2
        if h.sum() > -100:
            h = h + 1
        if i == 2:
            raise KeyError("no such word")
        log.append(("done", i))
        return h.sum().item()
    finally:
        log.append(("finally", i))


@pytest.mark.parametrize("batch", [True, False])
def test_an_exception_names_its_example_and_leaves_its_type(batch):
    log = []
    with pytest.raises(KeyError) as caught:
        wf.map(reading, vectors(5), range(5), [log] * 5, batch=batch)
    assert "no such word" in said(caught.value)
    assert "example 2" in said(caught.value)
    assert caught.traceback[-1].lineno + 1 == line_of(reading, "raise KeyError")
    # Whatever was begun is wound up.
    assert ("finally", 2) in log
    begun = {i for what, i in log if what == "done"} | {2}
    assert {i for what, i in log if what == "finally"} >= begun
    still_works()


def mismatched(x, i):
    h = x.tanh()
    if i == 3:
        h = h @ wf.ones(7, 2, dtype=wf.float64)
    return h


@pytest.mark.parametrize("batch", [True, False])
def test_a_shape_error_names_shapes_line_and_example(batch):
    with pytest.raises(ShapeError) as caught:
        wf.map(mismatched, vectors(5), range(5), batch=batch)
    text = said(caught.value)
    assert "f64[3]" in text and "f64[7,2]" in text
    assert "example 3" in text
    assert f"{HERE}:{line_of(mismatched, 'h @ wf.ones')}" in text
    still_works()


def looked_up(word, table):
    h = F.embedding(wf.tensor(word), table)
    return (h * 2).sum()


@pytest.mark.parametrize("batch", [True, False])
def test_an_index_out_of_range_names_the_example_and_the_line_that_recorded_it(batch):
    table = weight(4, 3)
    with pytest.raises(IndexRangeError) as caught:
        wf.map(looked_up, [0, 1, 9, 2, 3], [table] * 5, batch=batch)
    text = said(caught.value)
    assert "9" in text and "example 2" in text
    assert f"{HERE}:{line_of(looked_up, 'F.embedding')}" in text
    assert table.grad is None
    still_works()


def solved(m):
    inverse = wf.linalg.inv(m * 1)
    return inverse.sum()


@pytest.mark.parametrize("batch", [True, False])
def test_a_singular_matrix_names_the_example_and_the_line_that_recorded_it(batch):
    ms = [wf.eye(3, dtype=wf.float64) * (i + 1) for i in range(4)]
    ms[3] = wf.zeros(3, 3, dtype=wf.float64)
    with pytest.raises(LinAlgError) as caught:
        wf.map(solved, ms, batch=batch)
    text = said(caught.value)
    assert "example 3" in text
    assert f"{HERE}:{line_of(solved, 'linalg.inv')}" in text
    still_works()


def indexed(x, i):
    rows = x.reshape(3, 1) * 2
    return rows[wf.tensor([0, i])].sum()


@pytest.mark.parametrize("batch", [True, False])
def test_an_index_by_tensor_out_of_range(batch):
    with pytest.raises(IndexRangeError) as caught:
        wf.map(indexed, vectors(5), range(5), batch=batch)
    assert "example 3" in said(caught.value)
    still_works()


def test_errors_caught_by_the_example_are_its_own_business():
    def function(x, i):
        try:
            return (x @ wf.ones(7, dtype=wf.float64)).sum()
        except RuntimeError:
            return x * i

    agree(function, xs := vectors(4), range(4), leaves=xs)


def test_an_error_of_a_group_can_be_caught_where_its_value_is_read():
    table = numbers(4, 3)

    def function(word):
        try:
            return F.embedding(wf.tensor(word), table).sum().item()
        except IndexError:
            return None

    for batch in (False, True):
        results = wf.map(function, [1, 7, 2], batch=batch)
        assert results[1] is None
        assert results[0] == pytest.approx(table[1].sum().item()) and results[2] == pytest.approx(table[2].sum().item())


def test_with_blocks_of_the_others_are_left():
    class Held:
        held = 0

        def __enter__(self):
            Held.held += 1

        def __exit__(self, *error):
            Held.held -= 1

    def function(x, i):
        with Held(), wf.no_grad():
            h = x * 2
            if h.sum() > -100 and i == 4:
                raise ValueError("the last one")
            h = h + h.sum().item()
            return h.sum().item()

    with pytest.raises(ValueError, match="the last one"):
        wf.map(function, vectors(5), range(5))
    assert Held.held == 0
    still_works()


def test_others_cannot_stop_being_wound_up():
    """An example that catches everything is not asked again and again."""
    asked = []

    def function(x, i):
        h = x * 2
        for _ in range(3):
            try:
                h.sum().item()
                h = h + 1
                if i == 1:
                    raise ValueError("enough")
            except BaseException as error:
                asked.append((i, type(error).__name__))
                if i == 1:
                    raise
        return h

    with pytest.raises(ValueError, match="enough"):
        wf.map(function, vectors(4), range(4))
    assert len(asked) < 20
    still_works()


def test_parameters_and_gradients_are_untouched_by_a_fault():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    sum(model(x).sum() for x in vectors(3, grad=False)).backward()
    before = [[p.detach().clone(), p.grad.clone()] for p in model.parameters()]

    def function(x, i):
        out = model(x)
        if out.sum() > -100 and i == 3:
            raise ValueError("fault")
        return out

    for _ in range(3):
        with pytest.raises(ValueError, match="fault"):
            wf.map(function, vectors(5), range(5))
    equal([[p.detach().clone(), p.grad.clone()] for p in model.parameters()], before)
    assert all(p._version == 0 for p in model.parameters())


def test_a_fault_in_a_nested_map_names_both():
    def inner(row, j):
        if j == 1:
            raise ValueError("inner fault")
        return row * 2

    def outer(m, i):
        return sum(wf.map(inner, m, range(len(m)))) if i == 2 else m.sum(0)

    for batch in (True, False):
        with pytest.raises(ValueError) as caught:
            wf.map(outer, [numbers(3, 3, seed=i) for i in range(4)], range(4), batch=batch)
        assert "example 2" in said(caught.value) and "example 1" in said(caught.value)
    still_works()


def test_a_fault_in_a_block_leaves_nothing_behind():
    kept = []
    with pytest.raises(ValueError, match="in the block"), wf.batching():
        kept.append(wf.ones(3) * 2)
        raise ValueError("in the block")
    still_works()
    # What was made before the fault is whole or says that it is not; it is never garbage.
    try:
        assert kept[0].tolist() == [2, 2, 2]
    except WayfareError as error:
        assert "batching" in str(error)


def test_an_error_in_backward_leaves_the_next_step_whole():
    w = weight(3, 3)

    def refuse(g):
        raise ValueError("no gradient today")

    results = wf.map(lambda x: (x @ w).tanh(), vectors())
    results[1].register_hook(refuse)
    with pytest.raises(ValueError, match="no gradient today"):
        sum(r.sum() for r in results).backward()
    w.grad = None
    still_works()


def test_stop_iteration_and_exit_are_passed_on():
    def stopping(x):
        raise StopIteration

    def leaving(x):
        raise SystemExit(3)

    with pytest.raises((StopIteration, RuntimeError)):
        wf.map(stopping, vectors(2))
    with pytest.raises(SystemExit):
        wf.map(leaving, vectors(2))
    still_works()


# -- interrupts ------------------------------------------------------------------------------------------------


def test_an_interrupt_raised_in_an_example():
    log = []

    def function(x, i):
        try:
            h = x * 2
            if h.sum() > -100 and i == 3:
                raise KeyboardInterrupt
            return h.sum().item()
        finally:
            log.append(i)

    with pytest.raises(KeyboardInterrupt):
        wf.map(function, vectors(5), range(5))
    assert 3 in log
    still_works()


def press_ctrl_c_soon(seconds=0.15):
    """A real signal, while the main thread is busy."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer


class PressingCtrlC(threading.Thread):
    """Presses Ctrl-C, and again after some seconds until it is told to stop: Python loses a signal that comes while a
    finaliser or the callback of a weak reference runs."""

    def __init__(self):
        super().__init__(daemon=True)
        self.done = threading.Event()
        self.start()

    def run(self):
        wait = 0.3
        while not self.done.wait(wait):
            os.kill(os.getpid(), signal.SIGINT)
            wait = 3.0

    def join(self):
        self.done.set()
        super().join()


def tidy_up_after(timer):
    """Ctrl-C may come just before a mode or a limit is put back, where no Python code can help: seldom, but it does."""
    timer.join()
    set_mode(None)
    while recursion._HERE.room.blocks:
        room_for_recursion().__exit__()


def test_a_function_that_never_ends_can_be_interrupted():
    def endless(x, i):
        h = x
        while i == 1:
            h = h * 1.0001
            if h.sum() > 1e300:
                break
        return h

    timer = PressingCtrlC()
    with pytest.raises(KeyboardInterrupt):
        wf.map(endless, [numbers(3) * 0 for _ in range(3)], range(3))
    tidy_up_after(timer)
    still_works()


def test_what_no_gradient_goes_through_is_let_go_of_while_a_function_runs():
    counted = []

    def long(x):
        for step in range(60_001):
            x = x * 1.0001
            if step % 20_000 == 0:
                counted.append(sum(isinstance(thing, Group) for thing in gc.get_objects()))
        return x

    wf.map(long, vectors(2, grad=False))
    assert max(counted) < 15_000, counted


def test_a_function_that_never_reads_a_value_can_be_interrupted():
    def endless(x):
        while True:
            x = x * 1.0001

    timer = PressingCtrlC()
    with pytest.raises(KeyboardInterrupt):
        wf.map(endless, vectors(2, grad=False))
    tidy_up_after(timer)
    still_works()


@pytest.mark.parametrize("after", [0.02, 0.05, 0.1])
def test_an_interrupt_in_the_middle_of_running(after):
    w = weight(32, 32)
    timer = press_ctrl_c_soon(after)
    with pytest.raises(KeyboardInterrupt):
        while True:
            results = wf.map(lambda x: (x @ w).tanh() if (x @ w).sum() > 0 else (x @ w) * 2, vectors(20, 32))
            sum(r.sum() for r in results).backward()
    tidy_up_after(timer)
    time.sleep(0)
    still_works()
