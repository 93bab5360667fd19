"""Which memory was written when."""

import numpy as np

import wayfare as wf
from wayfare.core import write_clock


def test_views_share_the_record_of_their_memory():
    owner = np.zeros((4, 4))
    view = owner[1:].T
    before = write_clock.tick()
    write_clock.note_write(view)
    assert write_clock.version(owner) == write_clock.version(view) == write_clock.version(owner[2]) == 1
    assert write_clock.version_at(owner, before) == 0
    assert write_clock.version_at(owner, write_clock.tick()) == 1


def test_other_memory_is_not_concerned():
    a, b = np.zeros(3), np.zeros(3)
    write_clock.note_write(a)
    assert write_clock.version(b) == 0


def test_the_record_goes_away_with_the_memory():
    count = write_clock.memories_with_history()
    array = np.zeros(3)
    write_clock.note_write(array)
    assert write_clock.memories_with_history() == count + 1
    del array
    assert write_clock.memories_with_history() == count


def test_many_writes_keep_a_bounded_record_and_the_right_count():
    array = np.zeros(3)
    for _ in range(1000):
        write_clock.note_write(array)
    start = write_clock.tick()
    write_clock.note_write(array)
    assert write_clock.version(array) == 1001 and write_clock.version_at(array, start) == 1000


def test_few_times_are_remembered_of_many_writes():
    x = wf.zeros(2)
    for _ in range(1000):
        x.add_(1)
    history = write_clock._history(x._array)
    assert history.count == write_clock.version(x._array) == 1000 and len(history.times) <= 128
    assert write_clock.version_at(x._array, history.times[-10]) == 991
