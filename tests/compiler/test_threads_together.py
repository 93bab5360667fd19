"""Threads that call one compiled function: they never wait for each other's Python."""

import sys
import threading

import pytest

import wayfare as wf
from tests.compiler.checks import equal, numbers


@pytest.mark.timeout(60)
def test_python_that_waits_for_another_thread_in_the_same_function():
    meeting = threading.Barrier(2, timeout=20)
    found = []

    @wf.compile
    def f(x):
        meeting.wait()
        return x * 2

    def call(seed):
        found.append((seed, f(numbers(3, seed=seed))))

    for turn in range(4):
        threads = [threading.Thread(target=call, args=(2 * turn + i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 8
    for seed, result in found:
        equal(result, numbers(3, seed=seed) * 2)


@pytest.mark.timeout(60)
def test_many_threads_and_many_calls():
    w = numbers(5, grad=True)
    f = wf.compile(lambda x: (x * w).sin().sum())
    wrong = []

    def call(seed):
        for number in range(60):
            x = numbers(5, seed=seed * 100 + number)
            if abs(f(x).item() - (x * w).sin().sum().item()) > 1e-12:
                wrong.append((seed, number))

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert f._lock.acquire(blocking=False)
    f._lock.release()


@pytest.mark.timeout(100)
@pytest.mark.parametrize("writer", ["in place", "optimizer", "batch norm"])
def test_a_write_in_another_thread_does_not_keep_a_function_from_being_compiled(writer):
    own = wf.nn.Linear(3, 3)
    optimizer = wf.optim.SGD(own.parameters(), lr=0.1)
    norm = wf.nn.BatchNorm1d(3)
    memory = wf.zeros(4)
    go_on = [True]

    def write():
        while go_on:
            if writer == "in place":
                memory.add_(1)
            elif writer == "optimizer":
                own(wf.ones(2, 3)).sum().backward()
                optimizer.step()
            else:
                norm(wf.randn(4, 3))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=write)
    thread.start()
    try:
        ways = []
        for number in range(10):
            w = numbers(5, grad=True)
            f = wf.compile(lambda x, w=w, number=number: ((x * w).sin() + number).sum())
            results = [(f(x), (x * w).sin() + number) for x in (numbers(5, seed=seed) for seed in range(5))]
            assert all(abs(a.item() - b.sum().item()) < 1e-12 for a, b in results)
            ways += f._plain()  # why calls ran as plain Python
    finally:
        go_on.clear()
        thread.join()
        sys.setswitchinterval(interval)
    assert not ways


def test_a_write_in_another_thread_to_what_a_function_reads_is_noticed():
    w = numbers(3)

    def write():
        w.add_(1)

    @wf.compile
    def f(x):
        y = x * w
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        return y + w

    for _ in range(4):
        x, before = numbers(3, seed=1), w.clone()
        equal(f(x), x * before + before + 1)
