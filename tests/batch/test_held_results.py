"""Results that Python holds, or drops, while they are pending; what is freed, and the fibers of examples."""

import gc
import weakref

import pytest
from greenlet import greenlet

import wayfare as wf
from wayfare import nn
from wayfare.batch.fibers import hub
from wayfare.core.errors import WayfareError
from wayfare.core.mode import current


def random_rows(count, size=5):
    numbers = wf.Generator().manual_seed(3)
    return [wf.randn(size, generator=numbers) for _ in range(count)]


def test_every_third_of_many_results_is_held():
    cell = nn.LSTMCell(5, 5)

    def states(x):
        h, c = wf.zeros(5), wf.zeros(5)
        kept = []
        for step in range(60):
            state = cell(x + step, (h, c))
            if step % 3 == 0:
                kept.append(state)  # the tuple itself
            if step % 7 == 0:
                kept.append((state[1],))
            h, c = state
        return kept

    xs = random_rows(4)
    mapped, looped = wf.map(states, xs, batch=True), [states(x) for x in xs]
    for one, other in zip(mapped, looped, strict=True):
        assert len(one) == len(other)
        for some, expected in zip(one, other, strict=True):
            for t, u in zip(some, expected, strict=True):
                assert wf.allclose(t, u, atol=1e-5)
                assert t.requires_grad
    sum(t.sum() for some in mapped[0] for t in some).backward()
    found = cell.weight_ih.grad.clone()
    cell.zero_grad()
    sum(t.sum() for some in looped[0] for t in some).backward()
    assert wf.allclose(found, cell.weight_ih.grad, atol=1e-4)


def test_what_was_held_is_known_to_the_collector_again():
    cell = nn.LSTMCell(5, 5)
    states = wf.map(lambda x: cell(x, (x, x)), random_rows(3), batch=True)
    for state in states:
        assert gc.is_tracked(state) and all(gc.is_tracked(t) for t in state)
        h, c = state
        h.register_hook(lambda g, state=state: None)  # a cycle through the tuple and the tensor
    gone = [weakref.ref(t) for state in states for t in state]
    del states, state, h, c
    gc.collect()
    assert [t() for t in gone] == [None] * 6


def test_calls_that_are_dropped_are_freed_without_the_collector():
    x = wf.ones(5)
    gc.collect()
    gc.disable()
    try:
        with wf.batching():
            session = current().executor
            kept, y = x * 3, x * 2
            kept = kept.tanh()
            y = y.tanh()
            gone = weakref.ref(y)
            session._keep_only([kept._handle.call])  # as it does when other examples restart
            assert len(session.pending) == 2
            del y
            assert gone() is None
        assert wf.allclose(kept, wf.full((5,), 3.0).tanh())
    finally:
        gc.enable()


def test_a_long_chain_of_calls_is_dropped():
    with wf.batching():
        session = current().executor
        y = wf.ones(3) * 2
        for _ in range(20_000):
            y = y + 1.0
        assert len(session.pending) > 10_000
        session._keep_only([])
        assert not session.pending
        del y  # the last one holds all before it


def test_examples_that_do_not_wait_share_a_fiber(monkeypatch):
    made = []

    def counting(*args):
        made.append(1)
        return greenlet(*args)

    monkeypatch.setattr(hub, "greenlet", counting)
    assert len(wf.map(lambda x: (x * 2).sum(), random_rows(20), batch=True)) == 20
    assert len(made) == 1

    def waits(x):
        return x * 2 if (x.sum() * 2).item() > 0 else x * 3

    made.clear()
    xs = random_rows(20)
    for y, x in zip(wf.map(waits, xs, schedule=wf.batching.ByDepth()), xs, strict=True):
        assert wf.allclose(y, waits(x))
    assert len(made) == 20
    made.clear()


def test_fibers_end_with_their_map():
    class Held:
        pass

    gone = []

    def holds(x):
        held = Held()
        gone.append(weakref.ref(held))
        if x.sum().item() > 1e9:
            raise ValueError
        return x * 2

    def fails(x):
        holds(x)
        raise ValueError("no")

    wf.map(holds, random_rows(5), schedule=wf.batching.ByDepth())
    with pytest.raises(ValueError, match="no"):
        wf.map(fails, random_rows(5), schedule=wf.batching.ByDepth())
    gc.collect()
    assert len(gone) >= 6 and not any(held() for held in gone)


@pytest.mark.parametrize("number", [-1, 7, 10**12])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_an_index_outside_a_table_fails_on_its_line(number, shape):
    table = nn.Embedding(7, 4)
    caught = []

    def looks_up(i):
        try:
            return table(i) * 2
        except WayfareError as error:
            caught.append(str(error))
            return table(i * 0)

    good = wf.zeros(shape, dtype=wf.int64) + 6
    bad = wf.zeros(shape, dtype=wf.int64) + number
    made = wf.map(looks_up, [good, good, bad, good], batch=True)
    assert len(caught) == 1 and "Embedding" in caught[0]
    for t, i in zip(made, [good, good, good * 0, good], strict=True):
        assert wf.equal(t, table(i) * (1 if i is not good else 2))
    table.num_embeddings = 6  # `below` is asked anew
    with pytest.raises(WayfareError):
        table.weight = nn.Parameter(table.weight.detach()[:6])
        wf.map(table, [good, good], batch=True)
