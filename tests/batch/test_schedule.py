"""Schedules: groups are lawful for any graph of calls, and as few as can be for families where the number is known."""

import random
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.batch.recorded import (
    Recording,
    chains,
    height,
    library_cell,
    misaligned,
    plain_cell,
    producers,
    random_shapes,
    tagger,
    trees,
)
from wayfare.batch.record.call import Value
from wayfare.batch.record.memory import HOST, Memory
from wayfare.batch.run import call_loops
from wayfare.batch.run import schedule as schedules
from wayfare.batch.run.call_loops import order_rows
from wayfare.batch.run.schedule import Agenda, ByDepth
from wayfare.core.native import NATIVE, STATE_OF_NATIVE

both = pytest.mark.parametrize("schedule", [ByDepth(), Agenda()], ids=repr)


class Like:
    """A signature that is equal to every other, so that only identity tells them apart."""

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1


@st.composite
def graphs(draw):
    """Random calls: some have run already, inputs are earlier values (whole or parts) or come from outside."""
    record = Recording()
    record.signatures = {k: Like() for k in range(draw(st.integers(1, 5)))}
    values = ["outside"]
    for _ in range(draw(st.integers(0, 40))):
        recent = st.integers(max(0, len(values) - draw(st.integers(1, 40))), len(values) - 1)
        inputs = [values[i] for i in draw(st.lists(recent, max_size=3))]
        made = record(draw(st.integers(0, len(record.signatures) - 1)), *inputs, outputs=draw(st.integers(2, 3)))
        values += [*made, made[0].part(made[0].row, 0, False)]
    # What has run is a beginning of the recording.
    run = draw(st.integers(0, len(record.calls) // 2))
    for call in record.calls[:run]:
        call.group = "run"
        call.depth = draw(st.integers(0, 1 << 70))
    return record.calls[run:]


def check_lawful(calls, groups):
    assert sorted(id(call) for group in groups for call in group) == sorted(map(id, calls))
    at = {id(call): i for i, group in enumerate(groups) for call in group}
    for i, group in enumerate(groups):
        assert group
        assert all(call.signature is group[0].signature for call in group)
        assert all(at[id(producer)] < i for call in group for producer in producers(call))


def names(groups):
    """The signatures of the groups and how many calls each has."""
    return [(group[0].signature, len(group)) for group in groups]


@both
@settings(max_examples=300, deadline=None)
@given(calls=graphs())
def test_any_graph_runs_lawfully(schedule, calls):
    groups = schedule.order(calls)
    check_lawful(calls, groups)
    assert schedule.order(calls) == groups
    order_rows(groups)
    check_lawful(calls, groups)


@settings(max_examples=300, deadline=None)
@given(calls=graphs())
def test_agenda_never_makes_more_groups_than_depth(calls):
    assert len(Agenda().order(calls)) <= len(ByDepth().order(calls))


@settings(max_examples=100, deadline=None)
@given(calls=graphs())
def test_agenda_is_lawful_where_it_gives_up_early(calls):
    by_depth = ByDepth().order(calls)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedules, "one_after_another", lambda calls: [])
        patch.setattr(schedules, "_FREE_WORK", -100)
        bundled = Agenda().order(calls)
        check_lawful(calls, bundled)
        assert len(bundled) <= len(by_depth)
        patch.setattr(schedules, "_MOST_BUNDLES", 0)
        assert Agenda().order(calls) == by_depth


def fewest_groups(calls):
    """The smallest possible number of groups, found by trying every signature at every step."""
    signatures = list({id(call.signature): call.signature for call in calls}.values())
    reached = {frozenset()}
    steps = 0
    while not any(len(done) == len(calls) for done in reached):
        steps += 1
        after = set()
        for done in reached:
            ready = [c for c in calls if id(c) not in done and all(id(p) in done for p in producers(c))]
            for signature in signatures:
                if running := {id(c) for c in ready if c.signature is signature}:
                    after.add(done | running)
        reached = after
    return steps


@settings(max_examples=150, deadline=None)
@given(shape=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=4))
def test_agenda_is_best_possible_for_examples_with_the_same_stages(shape):
    """Each example goes through three stages, in each of them a different number of steps."""
    record = Recording()
    for lengths in shape:
        x = "token"
        for signature, n in zip("abc", lengths, strict=True):
            for _ in range(n):
                x = record(signature, x)
    assert len(Agenda().order(record.calls)) == fewest_groups(record.calls) == sum(map(max, zip(*shape, strict=True)))


@settings(max_examples=60, deadline=None)
@given(words=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4))
def test_agenda_is_close_where_kinds_wait_for_each_other(words):
    """Chains of two signatures in any order: to find the fewest groups is hard, but depth is never better."""
    record = Recording()
    for word in words:
        x = "token"
        for signature in word:
            x = record(signature, x)
    fewest, found, by_depth = (
        fewest_groups(record.calls), len(Agenda().order(record.calls)), len(ByDepth().order(record.calls)),
    )
    assert fewest <= found <= by_depth


def test_depth_groups_are_in_the_order_of_depth_and_first_appearance():
    record = Recording()
    x = record("b", "token")
    y = record("a", x)
    record("c", "token")
    record("b", y)
    record("a", "token")
    record("b", "token")
    groups = ByDepth().order(record.calls)
    assert names(groups) == [("b", 2), ("c", 1), ("a", 1), ("a", 1), ("b", 1)]
    assert [call.depth for group in groups for call in group] == [1, 1, 1, 1, 2, 3]


def test_losses_wait_for_the_longest_chain():
    lengths = [5, 3, 9, 1, 7, 7]
    calls = chains(lengths)
    assert names(Agenda().order(calls)) == [
        ("embed", sum(lengths)),
        *(("cell", sum(n >= step for n in lengths)) for step in range(1, 10)),
        ("loss", 6),
    ]
    # By depth the losses stand beside the cells: one more group for each different length but one.
    assert len(ByDepth().order(calls)) == 1 + 9 + len(set(lengths))


def test_losses_wait_also_where_calls_move_in_bundles(monkeypatch):
    """The losses of the short chains lie less deep than the cells of the long one, and wait all the same."""
    calls = chains([1, 1, 1, 2, 2, 20])
    expected = names(Agenda().order(calls))
    monkeypatch.setattr(schedules, "_FREE_WORK", -1000)
    assert names(Agenda().order(calls)) == expected
    assert expected[-1] == ("loss", 6)


def test_chains_that_begin_late_join_those_that_waited():
    calls = misaligned([4, 6, 3, 5], [0, 2, 5, 1])
    assert names(Agenda().order(calls)) == [
        *(("before", sum(n >= step for n in (0, 2, 5, 1))) for step in range(1, 6)),
        *(("cell", sum(n >= step for n in (4, 6, 3, 5))) for step in range(1, 7)),
        ("loss", 4),
    ]
    assert len(ByDepth().order(calls)) == 5 + 8 + 3  # the ends are at depths 4, 8, 8 and 6, each loss one deeper


def test_trees_take_one_group_a_level():
    shapes = random_shapes(1, 20)
    calls = trees(shapes, library_cell)
    cells = max(map(height, shapes))
    assert len(Agenda().order(calls)) == 2 + cells + 1
    assert len(ByDepth().order(calls)) == 2 + cells + len(set(map(height, shapes)))


def test_words_spelled_by_characters():
    calls = tagger(random.Random(0), 8)
    groups = Agenda().order(calls)
    check_lawful(calls, groups)
    signatures = [signature for signature, _ in names(groups)]
    longest = {signature: signatures.count(signature) for signature in signatures}
    # One group for each step of the longest chain of each signature, and everything else once.
    for signature in ("character", "embed", "project", "score", "loss"):
        assert longest[signature] == 1
    assert longest["char cell"] <= 12 and longest["onward"] == longest["back"] <= 30
    assert len(groups) < len(ByDepth().order(calls)) // 2


def test_cells_of_plain_ops():
    calls = trees(random_shapes(2, 12), plain_cell)
    groups = Agenda().order(calls)
    check_lawful(calls, groups)
    assert len(groups) < len(ByDepth().order(calls))


@both
def test_many_calls_in_one_chain(schedule):
    record = Recording()
    x = "token"
    for i in range(100_000):
        x = record("ab"[i % 2], x)
    assert [group[0] for group in schedule.order(record.calls)] == record.calls


@both
def test_as_many_kinds_as_calls(schedule):
    record = Recording()
    for i in range(5_000):
        record(i, record(-i - 1, "token"))
    groups = schedule.order(record.calls)
    check_lawful(record.calls, groups)
    assert len(groups) == 10_000


@both
def test_nothing_to_do(schedule):
    assert schedule.order([]) == []
    order_rows([])


def rows_together(groups):
    """How many inputs of groups lie together in the result of one group, and how many there are."""
    at = {id(call): (i, place) for i, group in enumerate(groups) for place, call in enumerate(group)}
    together = inputs = 0
    for group in groups:
        for column in zip(*[call.inputs for call in group], strict=True):
            if all(isinstance(v, Value) for v in column):
                first, place = at[id(column[0].call)]
                inputs += 1
                together += [at[id(v.call)] for v in column] == [(first, place + i) for i in range(len(column))]
    return together, inputs


def test_rows_of_chains_lie_together():
    lengths = random.Random(4).sample(range(5, 60), 30)
    groups = Agenda().order(chains(lengths))
    before, inputs = rows_together(groups)
    order_rows(groups)
    # x of each step, h and c of all but the first; only what the losses read lies in as many groups as there are ends.
    assert inputs == 3 * max(lengths) - 2 + 1
    assert before < inputs // 2
    assert rows_together(groups) == (inputs - 1, inputs)


def test_chains_that_go_on_come_first():
    groups = Agenda().order(chains([2, 4, 1, 3]))
    order_rows(groups)
    steps = [group for group in groups if group[0].signature == "cell"]
    for step, following in pairwise(steps):
        assert [call.inputs[1].call for call in following] == step[: len(following)]


def test_both_sides_of_full_trees_lie_together():
    def full(levels):
        return None if levels == 0 else (full(levels - 1), full(levels - 1))

    groups = ByDepth().order(trees([full(4)] * 3, library_cell))
    before, inputs = rows_together(groups)
    order_rows(groups)
    assert before < inputs
    assert rows_together(groups) == (inputs, inputs)


def test_placing_leaves_unread_calls_last_and_in_order():
    record = Recording()
    rows = [record("row", "token") for _ in range(5)]
    record("far", rows[4])
    for i in (3, 1):
        record("near", rows[i])
    row, far, near = ByDepth().order(record.calls)
    groups = [row, near, far]
    for depth, call in enumerate(row):
        call.depth = 9 - depth  # whatever a schedule has left there
    order_rows(groups)
    assert groups[0] == [rows[i].call for i in (3, 1, 4, 0, 2)]


def test_the_first_input_decides_where_rows_lie():
    record = Recording()
    a, b, c, d = (record("row", "token") for _ in range(4))
    record("pair", a, b)
    record("pair", c, d)
    groups = ByDepth().order(record.calls)
    order_rows(groups)
    assert groups[0] == [v.call for v in (a, c, b, d)]


@pytest.mark.skipif(NATIVE is None, reason=STATE_OF_NATIVE)
@settings(max_examples=300, deadline=None)
@given(calls=graphs())
def test_the_native_loops_make_the_same_groups(calls):
    reads = []
    for native, python in (
        (call_loops.by_depth, call_loops._by_depth), (call_loops.one_after_another, call_loops._one_after_another),
    ):  # fmt: skip
        found = [[(id(call), call.depth) for call in group] for group in native(calls)]
        assert found == [[(id(call), call.depth) for call in group] for group in python(calls)]
    groups = call_loops.by_depth(calls)
    for read in (call_loops.reads_of, call_loops._reads_of):
        call_loops.by_depth(calls)
        reads.append([(read(group, number), [call.depth for call in group]) for number, group in enumerate(groups, 1)])
    assert reads[0] == reads[1]
    copies = [list(group) for group in groups]
    call_loops.order_rows(groups)
    call_loops._order_rows(copies)
    assert [list(map(id, group)) for group in groups] == [list(map(id, group)) for group in copies]


class Finished:
    """What the loops ask an example."""

    def __init__(self, done):
        self.done = done


def taken(take, calls, rounds):
    """What each round takes and leaves, by the numbers of the calls; a call that was taken has run."""
    number = {id(call): n for n, call in enumerate(calls)}
    pending, looked_at, found = list(calls), 0, []
    for targets, together in rounds:
        due = take(pending, looked_at, [calls[n] for n in targets], together)
        looked_at = len(pending)
        found.append(([number[id(c)] for c in due], [number[id(c)] for c in pending]))
        for call in due:
            call.group = "run"
    for call in calls:
        call.group = None
    return found


@settings(max_examples=300, deadline=None)
@given(calls=graphs(), data=st.data())
def test_a_round_takes_what_is_needed_and_what_joins_its_groups(calls, data):
    some = st.lists(st.integers(0, len(calls) - 1), max_size=3) if calls else st.just([])
    rounds = data.draw(st.lists(st.tuples(some, st.booleans()), min_size=1, max_size=4))
    for call in calls:
        call.example = data.draw(st.sampled_from([None, Finished(False), Finished(True)]))
    found = taken(call_loops._take_needed, calls, rounds)
    assert taken(call_loops.take_needed, calls, rounds) == found
    run = set()
    for (targets, together), (due, left) in zip(rounds, found, strict=True):
        assert due == sorted(due) and left == sorted(left)
        assert set(targets) <= set(due) | run and not run & set(due)
        needed = numbers_needed(calls, targets, run)
        for n in due:
            assert all(calls.index(p) in run | set(due) for p in producers(calls[n]))
            assert n in needed or (together and not (calls[n].example or Finished(False)).done)
            assert calls[n].signature in {calls[k].signature for k in needed}
        run |= set(due)
        assert run | set(left) == set(range(len(calls)))


def numbers_needed(calls, targets, run):
    """The numbers of the calls that targets need, directly or not, and that have not run."""
    needed, waiting = set(), [n for n in targets if n not in run]
    while waiting:
        n = waiting.pop()
        if n not in needed | run:
            needed.add(n)
            waiting += [calls.index(p) for p in producers(calls[n])]
    return needed


@pytest.mark.skipif(NATIVE is None, reason=STATE_OF_NATIVE)
@pytest.mark.parametrize("ids, offsets", [([4], [0]), ([4, 6, 8], [0, 0, 0]), ([4, 6, 9], [0, 0, 0]), ([4, 6], [0, 8]),
                                          ([4, 6, 8], [8, 8, 8]), ([4, 4], [0, 0]), ([8, 6], [0, 0])])  # fmt: skip
def test_the_native_loops_find_the_same_rows(ids, offsets):
    record = Recording()
    values = []
    for number, (row_id, offset) in enumerate(zip(ids, offsets, strict=True)):
        (value, *_) = record(0, outputs=2)
        value.call.row_id = row_id
        values.append(value.part(value.row, offset, number != 1))
    addresses, outputs = np.arange(10) * 100, np.array([0, 0, 1, 1, 3, -1, 2, 0, 3, 1], np.int32)
    for rows in (tuple(values), (*values, "outside"), tuple([v.part(v.row, 0, True) for v in values])):
        found, expected = (find(rows, addresses, outputs) for find in (call_loops.rows_of, call_loops._rows_of))
        assert (found is None) == (expected is None) == ("outside" in rows)
        if found is not None:
            assert [np.asarray(x).tolist() for x in found] == [np.asarray(x).tolist() for x in expected]


@pytest.mark.skipif(NATIVE is None, reason=STATE_OF_NATIVE)
def test_the_native_loops_place_rows_and_count_flags_alike():
    for array in (np.zeros((4, 3)), np.zeros((4, 3), np.float32)[::2], np.zeros((1, 2)), np.zeros((0, 2))):
        tables = [np.zeros(12, np.int64) for _ in range(2)]
        for table, place in zip(tables, (HOST.place_rows, partial(Memory.place_rows, HOST)), strict=True):
            place(table, 1, 3, array)
        assert (tables[0] == tables[1]).all()
    with pytest.raises(IndexError):
        HOST.place_rows(np.zeros(9, np.int64), 1, 3, np.zeros((4, 3)))
    for flags in ([True, True], [True, False], [False, False]):
        assert call_loops.how_many(np.array(flags)) == call_loops._how_many(np.array(flags)) == sum(flags)
