"""Locks that a fork waits for: all that live, and none that is gone."""

import gc
import os
import threading
import weakref

import pytest

import wayfare as wf
from wayfare.core import locks

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def test_a_compiled_function_that_is_gone_leaves_no_lock(monkeypatch):
    hooks = []
    if hasattr(os, "register_at_fork"):
        monkeypatch.setattr(os, "register_at_fork", lambda **given: hooks.append(given))
    wf.compile(lambda x: x + 1)
    gc.collect()
    before = locks.count_of_locks()
    for _ in range(50):
        wf.compile(lambda x: x + 1)
    gc.collect()
    assert locks.count_of_locks() == before and not hooks


def test_a_compiled_function_that_was_called_leaves_no_lock():
    f = wf.compile(lambda x: x * 2 + 1)
    for _ in range(4):
        f(wf.ones(3))
    turn = weakref.ref(f._lock)
    del f
    gc.collect()
    assert turn() is None


@needs_fork
def test_a_fork_waits_for_a_lock_and_the_child_finds_it_free():
    older, newer = locks.lock(), locks.lock()
    held, order = threading.Event(), []

    def work():
        with older, newer:
            held.set()
            for _ in range(200):  # the fork waits meanwhile
                order.append("work")
                threading.Event().wait(0.001)

    thread = threading.Thread(target=work)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        free = older.acquire(blocking=False) and newer.acquire(blocking=False)
        os._exit(0 if free and len(order) == 200 else 1)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()
    assert older.acquire(blocking=False) and newer.acquire(blocking=False)
    assert not locks._taken
