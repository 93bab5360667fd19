"""Which memory was written when."""

import numpy as np

import wayfare as wf
from wayfare.backend import writes


def test_views_share_the_record_of_their_memory():
    owner = np.zeros((4, 4))
    view = owner[1:].T
    before = writes.tick()
    writes.note_write(view)
    assert writes.version(owner) == writes.version(view) == writes.version(owner[2]) == 1
    assert writes.version_at(owner, before) == 0
    assert writes.version_at(owner, writes.tick()) == 1


def test_other_memory_is_not_concerned():
    a, b = np.zeros(3), np.zeros(3)
    writes.note_write(a)
    assert writes.version(b) == 0


def test_the_record_goes_away_with_the_memory():
    count = writes.memories_with_history()
    array = np.zeros(3)
    writes.note_write(array)
    assert writes.memories_with_history() == count + 1
    del array
    assert writes.memories_with_history() == count


def test_many_writes_keep_a_bounded_record_and_the_right_count():
    array = np.zeros(3)
    for _ in range(1000):
        writes.note_write(array)
    start = writes.tick()
    writes.note_write(array)
    assert writes.version(array) == 1001 and writes.version_at(array, start) == 1000


def test_few_times_are_remembered_of_many_writes():
    x = wf.zeros(2)
    for _ in range(1000):
        x.add_(1)
    history = writes._history(x._array)
    assert history.count == writes.version(x._array) == 1000 and len(history.times) <= 128
    assert writes.version_at(x._array, history.times[-10]) == 991
