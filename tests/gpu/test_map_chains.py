"""Sequences read by a recurrent cell in `wf.map` on a device: all their steps are one group."""

import numpy as np
import pytest

import wayfare as wf
from tests.gpu.test_map import DTYPES, both, there
from wayfare import nn

KINDS = pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
LENGTHS = (5, 2, 7, 1, 4, 1)


def cell_of(kind, dtype=wf.float64, size=3, hidden=4):
    wf.manual_seed(0)
    return getattr(nn, kind)(size, hidden).to("cuda", dtype)


def start(kind, number=0, hidden=4, dtype=np.float64):
    state = there(hidden, seed=50 + number, dtype=dtype)
    return (state, there(hidden, seed=90 + number, dtype=dtype)) if kind == "LSTMCell" else state


def with_states(kind, examples=None):
    """Examples, each with a first state of its own."""
    return [(x, start(kind, k)) for k, x in enumerate(sequences() if examples is None else examples)]


def h_of(state):
    return state[0] if isinstance(state, tuple) else state


def sequences(dtype=np.float64, lengths=LENGTHS):
    return [there(n, 3, seed=n + k, dtype=dtype) for k, n in enumerate(lengths)]


def groups_of(stats, kind):
    return {entry.name: entry.groups for entry in stats.kinds}[kind]


@DTYPES
@KINDS
def test_all_steps_are_one_group(cuda, kind, dtype, tolerance):
    cell = cell_of(kind, dtype)

    def read(example):
        sequence, state = example
        for x in sequence:
            state = cell(x, state)
        return h_of(state).square().sum()

    examples = [(x, start(kind, k, dtype=dtype.numpy)) for k, x in enumerate(sequences(dtype.numpy))]
    stats = both(read, examples, [*cell.parameters()], tolerance)
    assert groups_of(stats, kind) == 1, str(stats)


@KINDS
def test_without_a_first_state(cuda, kind):
    cell = cell_of(kind)

    def read(sequence):
        state = None
        for x in sequence:
            state = cell(x, state)
        return h_of(state)

    stats = both(read, sequences(), [*cell.parameters()])
    assert groups_of(stats, kind) <= 2, str(stats)


@KINDS
def test_every_state_is_a_result(cuda, kind):
    cell = cell_of(kind)

    def read(example):
        (sequence, state), total = example, wf.zeros(4, device="cuda", dtype=wf.float64)
        for n, x in enumerate(sequence):
            state = cell(x, state)
            total = total + (n + 1) * h_of(state)
        return total, *(state if isinstance(state, tuple) else (state,))

    stats = both(read, with_states(kind), [*cell.parameters()])
    assert groups_of(stats, kind) == 1, str(stats)


@KINDS
def test_first_states_and_inputs_have_gradients(cuda, kind):
    cell = cell_of(kind)
    first = [t.requires_grad_() for t in (start(kind) if kind == "LSTMCell" else [start(kind)])]
    inputs = [[there(3, seed=9 * k + i).requires_grad_() for i in range(n)] for k, n in enumerate(LENGTHS)]

    def read(sequence):
        state = tuple(first) if len(first) > 1 else first[0]
        for x in sequence:
            state = cell(x * 2, state)
        return h_of(state).sum()

    both(read, inputs, [*cell.parameters(), *first, *[x for sequence in inputs for x in sequence]])


def test_rows_in_a_batch_of_one(cuda):
    cell = cell_of("LSTMCell")

    def read(sequence):
        state = (wf.zeros(1, 4, device="cuda", dtype=wf.float64),) * 2
        for x in sequence:
            state = cell(x.unsqueeze(0), state)
        return state[0].sum()

    stats = both(read, sequences(), [*cell.parameters()])
    assert groups_of(stats, "LSTMCell") == 1, str(stats)


def test_without_gradients(cuda):
    cell = cell_of("GRUCell")

    def read(example):
        sequence, state = example
        for x in sequence:
            state = cell(x, state)
        return state

    with wf.no_grad():
        stats = both(read, with_states("GRUCell"))
    assert groups_of(stats, "GRUCell") == 1, str(stats)


def test_a_state_that_two_calls_continue_is_no_chain(cuda):
    cell = cell_of("GRUCell")

    def read(example):
        sequence, state = example
        for x in sequence:
            state = cell(x, state) + cell(-x, state)
        return state.sum()

    both(read, with_states("GRUCell"), [*cell.parameters()])


def test_a_detached_state(cuda):
    cell = cell_of("LSTMCell")

    def read(example):
        sequence, state = example
        for n, x in enumerate(sequence):
            if n == 2:
                state = tuple(t.detach() for t in state)
            state = cell(x, state)
        return state[0].sum()

    both(read, with_states("LSTMCell"), [*cell.parameters()])


@KINDS
def test_dropout_between_two_layers(cuda, kind):
    cells, drop = [cell_of(kind), cell_of(kind, size=4)], nn.Dropout(0.5)

    def read(example):
        sequence, below, above = example
        for x in sequence:
            below = cells[0](x, below)
            above = cells[1](drop(h_of(below)), above)
        return h_of(above).sum()

    examples = [(x, start(kind, k), start(kind, k + 9)) for k, x in enumerate(sequences())]
    both(read, examples, [p for cell in cells for p in cell.parameters()])


def test_both_directions_and_a_value_read_in_between(cuda):
    ahead, back = cell_of("LSTMCell"), cell_of("LSTMCell", size=4)

    def read(example):
        sequence, state, begin = example
        seen = []
        for x in sequence:
            state = ahead(x, state)
            seen.append(state[0])
        factor = 1.0 if state[0].sum().item() > 0 else 2.0
        for h in reversed(seen):
            begin = back(h * factor, begin)
        return begin[0].sum()

    examples = [(x, start("LSTMCell", k), start("LSTMCell", k + 9)) for k, x in enumerate(sequences())]
    both(read, examples, [*ahead.parameters(), *back.parameters()])


def test_only_some_results_are_used(cuda):
    """What the others computed has no gradient, and is left out."""
    cell, found = cell_of("LSTMCell"), []

    def read(example):
        sequence, state = example
        for x in sequence:
            state = cell(x, state)
        return state[0].sum()

    for batch in (False, True):
        cell.zero_grad()
        made = wf.map(read, with_states("LSTMCell"), batch=batch)
        (made[0] + 2 * made[3]).backward()
        found.append([p.grad.cpu().numpy() for p in cell.parameters()])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)


def test_a_gradient_of_a_gradient(cuda):
    cell, found = cell_of("GRUCell"), []

    def read(example):
        sequence, state = example
        for x in sequence:
            state = cell(x, state)
        return state.square().sum()

    for batch in (False, True):
        total = wf.stack(wf.map(read, with_states("GRUCell"), batch=batch)).sum()
        grads = wf.autograd.grad(total, [*cell.parameters()], create_graph=True)
        cell.zero_grad()
        sum(g.square().sum() for g in grads).backward()
        found.append([p.grad.cpu().numpy() for p in cell.parameters()])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-10)


def test_examples_on_two_devices(cuda):
    here, away = cell_of("GRUCell").to("cpu"), cell_of("GRUCell")

    def read(example):
        sequence, place = example
        cell = here if place == "cpu" else away
        state = wf.zeros(4, device=place, dtype=wf.float64)
        for x in sequence:
            state = cell(x, state)
        return state.sum()

    examples = [(x.to(place), place) for k, x in enumerate(sequences()) for place in [("cpu", "cuda")[k % 2]]]
    stats = both(read, examples, [*here.parameters(), *away.parameters()])
    assert [entry.groups for entry in stats.kinds if entry.name == "GRUCell"] == [1, 1], str(stats)


def test_an_input_of_another_size_is_the_error_of_the_loop(cuda):
    cell, said = cell_of("LSTMCell"), []

    def read(example):
        sequence, state = example
        for x in sequence:
            state = cell(x, state)
        return state[0].sum()

    examples = with_states("LSTMCell", [*sequences(), there(3, 5, seed=1)])
    for batch in (False, True):
        with pytest.raises(wf.errors.ShapeError) as error:
            wf.map(read, examples, batch=batch)
        said.append(str(error.value).splitlines()[0])
    assert said[0] == said[1]


def test_a_chain_is_two_launches_a_step(cuda, counts, launched):
    """However many sequences there are, and nothing is copied from or to the device for each step."""
    cell = cell_of("LSTMCell", hidden=8)

    def read(sequence):
        state = (wf.zeros(8, device="cuda", dtype=wf.float64),) * 2
        for x in sequence:
            state = cell(x, state)
        return state[0].sum()

    found = []
    for count, length in ((4, 5), (8, 5), (4, 15), (8, 15)):
        examples = [[there(3, seed=k + i) for i in range(length - k % 3)] for k in range(count)]
        for _ in range(2):  # at first kernels are compiled
            launched.clear()
            counts.reset()
            made = wf.map(read, examples, schedule=wf.batching.Agenda())
            wf.stack(made).sum().backward()
        found.append(len(launched))
        assert counts.to_host == counts.synchronised == 0
    # Beside the product of each step and direction. (Sums over many rows take a launch more.)
    assert 0 <= found[2] - found[0] - 20 < 3 and 0 <= found[3] - found[1] - 20 < 3
