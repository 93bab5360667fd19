"""Chains of one recurrent cell, and stacks of rows: one group each, with the numbers and gradients of the loop."""

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn

CELLS = ("RNNCell", "LSTMCell", "GRUCell")
LENGTHS = (3, 1, 6, 6, 2, 9, 4)


def sequences(lengths=LENGTHS, size=5):
    numbers = np.random.default_rng(0)
    return [[wf.tensor(numbers.standard_normal(size, dtype=np.float32)) for _ in range(n)] for n in lengths]


def h_of(state):
    return state[0] if isinstance(state, tuple) else state


def read(cell, rows):
    state, states = None, []
    for x in rows:
        state = cell(x, state)
        states.append(state)
    return states


def batched(function, examples):
    with wf.batching():
        return [function(x) for x in examples]


def groups_of(name):
    return [(kind.nodes, kind.groups) for kind in wf.batching.last().kinds if kind.name == name]


def results(modules, outputs, chosen=slice(None)):
    """Values, and the gradients of all parameters from some of the outputs."""
    parameters = [p for module in modules for p in module.parameters()]
    for p in parameters:
        p.grad = None
    wf.stack(outputs[chosen]).sum().backward()
    return [out.item() for out in outputs], [None if p.grad is None else p.grad.numpy() for p in parameters]


def compare(function, examples, modules, chosen=slice(None)):
    """The batched function against the loop."""
    values, gradients = results(modules, [function(x) for x in examples], chosen)
    found, of_found = results(modules, batched(function, examples), chosen)
    np.testing.assert_allclose(found, values, rtol=1e-5, atol=1e-6)
    for mine, loops in zip(of_found, gradients, strict=True):
        assert (mine is None) == (loops is None)
        if loops is not None:
            np.testing.assert_allclose(mine, loops, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chosen", [slice(None), slice(1, None, 2), slice(2, 3), slice(1, 2)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", CELLS)
def test_a_chain_of_cells_is_one_group(name, bias, chosen):
    wf.manual_seed(0)
    cell, head = getattr(nn, name)(5, 7, bias=bias), nn.Linear(7, 3)

    def last(rows):
        return head(h_of(read(cell, rows)[-1])).tanh().sum()

    compare(last, sequences(), [cell, head], chosen)
    # The first step has no state to read, so it has a signature of its own.
    assert groups_of(name) == [(len(LENGTHS), 1), (sum(LENGTHS) - len(LENGTHS), 1)]


@pytest.mark.parametrize("chosen", [slice(None), slice(1, None, 2), slice(1, 2)], ids=str)
@pytest.mark.parametrize("name", CELLS)
def test_a_chain_of_cells_that_are_given_batches_of_one_row_is_one_group(name, chosen):
    wf.manual_seed(0)
    cell, head = getattr(nn, name)(5, 7), nn.Linear(7, 3)

    def total(rows):
        states = read(cell, [x.view(1, -1) for x in rows])
        return sum(head(h_of(state)).tanh().sum() for state in states)

    compare(total, sequences(), [cell, head], chosen)
    assert groups_of(name) == [(len(LENGTHS), 1), (sum(LENGTHS) - len(LENGTHS), 1)]


def test_cells_that_are_given_several_rows_run_level_by_level():
    wf.manual_seed(0)
    cell = nn.GRUCell(5, 7)
    examples = [[wf.randn(2, 5) for _ in range(n)] for n in LENGTHS]
    compare(lambda rows: read(cell, rows)[-1].sum(), examples, [cell])
    assert groups_of("GRUCell") == [(len(LENGTHS), 1), (sum(LENGTHS) - len(LENGTHS), max(LENGTHS) - 1)]


@pytest.mark.parametrize("chosen", [slice(None), slice(0, 4)], ids=str)
def test_every_state_of_a_chain_can_be_read(chosen):
    wf.manual_seed(0)
    cell = nn.LSTMCell(5, 7)

    def all_states(rows):
        states = read(cell, rows)
        return sum((h * (i + 1) + c.sin()).sum() for i, (h, c) in enumerate(states))

    compare(all_states, sequences(), [cell], chosen)
    assert groups_of("LSTMCell")[1][1] == 1


def test_inputs_that_are_computed_get_their_gradients():
    wf.manual_seed(0)
    below, above, table = nn.GRUCell(5, 4), nn.LSTMCell(4, 6), nn.Linear(5, 5)

    def layers(rows):
        return read(above, read(below, [table(x) for x in rows]))[-1][0].sum()

    compare(layers, sequences(), [below, above, table])
    compare(layers, sequences(), [below, above, table], slice(1, 5))
    assert [groups for name in ("GRUCell", "LSTMCell") for _, groups in groups_of(name)] == [1, 1, 1, 1]


def test_one_input_for_all_steps_of_all_sequences():
    wf.manual_seed(0)
    cell, x = nn.LSTMCell(5, 7), wf.randn(5)
    start = (wf.zeros(7), wf.ones(7))

    def turn(count):
        state = start
        for _ in range(count):
            state = cell(x, state)
        return (state[0] * state[1]).sum()

    compare(turn, [3, 1, 4, 4, 2], [cell])


def test_a_state_that_two_calls_read_is_no_chain():
    wf.manual_seed(0)
    cell = nn.GRUCell(5, 7)

    def fork(rows):
        h = cell(rows[0], wf.zeros(7))
        for x in rows[1:]:
            h = cell(x, h) + cell(-x, h)
        both = cell(rows[0], h), cell(rows[-1], h)
        return (both[0] * both[1]).sum()

    compare(fork, sequences((2, 3, 2)), [cell])

    def only_fork(rows):
        h = cell(rows[0], wf.zeros(7))
        return (cell(rows[1], h) * cell(rows[2], h)).sum()

    compare(only_fork, sequences((3, 3, 3)), [cell])
    assert groups_of("GRUCell") == [(9, 2)]


def test_a_state_that_is_also_an_input_is_no_chain():
    wf.manual_seed(0)
    cell = nn.GRUCell(7, 7)

    def feed(rows):
        h = wf.zeros(7)
        for x in rows:
            h = cell(x, h)
        for _ in rows:
            h = cell(h, h)
        return h.sum()

    compare(feed, sequences((2, 3, 1), size=7), [cell])


def test_a_class_derived_from_a_cell_keeps_its_own_steps():
    class Doubled(nn.LSTMCell):
        def _products(self, input, h):
            x, a = super()._products(input, h)
            return x * 2, a

    wf.manual_seed(0)
    cell = Doubled(5, 7)
    compare(lambda rows: read(cell, rows)[-1][0].sum(), sequences(), [cell])


def test_a_layer_that_changed_before_the_calls_ran():
    wf.manual_seed(0)
    cell, rows = nn.RNNCell(5, 7), sequences((4, 2))
    expected = [read(cell, x)[-1].detach().numpy() for x in rows]
    with wf.batching():
        found = [read(cell, x)[-1] for x in rows]
        cell.nonlinearity = "relu"
    for mine, loops in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), loops, rtol=1e-5, atol=1e-6)


def test_values_that_are_not_finite_stay_in_their_sequence():
    wf.manual_seed(0)
    cell = nn.LSTMCell(5, 7)
    rows = sequences((3, 5, 2, 4))
    rows[1][2] = wf.full((5,), float("inf"))
    rows[2][0] = wf.full((5,), float("nan"))
    outputs = batched(lambda x: read(cell, x)[-1][0].sum(), rows)
    (outputs[0] + outputs[3]).backward()
    assert all(p.grad.isfinite().all() for p in cell.parameters())


def test_second_derivatives_and_intermediate_gradients_of_a_chain():
    wf.manual_seed(0)
    cell, rows = nn.LSTMCell(5, 7), sequences((3, 2, 4))

    def penalty(outputs):
        first = wf.autograd.grad(sum(outputs), list(cell.parameters()), create_graph=True)
        return wf.autograd.grad(sum((g * g).sum() for g in first), list(cell.parameters()))

    def last(x):
        return read(cell, x)[-1][0].sum()

    for mine, loops in zip(penalty(batched(last, rows)), penalty([last(x) for x in rows]), strict=True):
        np.testing.assert_allclose(mine.numpy(), loops.numpy(), rtol=1e-4, atol=1e-5)

    def of_middle(run):
        held = []

        def function(x):
            states = read(cell, x)
            held.append(states[0][0])
            return states[-1][1].sum()

        return wf.autograd.grad(sum(run(function, rows)), held)

    for mine, loops in zip(of_middle(batched), of_middle(lambda f, xs: [f(x) for x in xs]), strict=True):
        np.testing.assert_allclose(mine.numpy(), loops.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("join", [wf.stack, wf.cat], ids=["stack", "cat"])
def test_rows_of_a_stack_are_gathered_at_once(join):
    wf.manual_seed(0)
    layer = nn.Linear(5, 4)

    def joined(rows):
        made = [layer(x).tanh() for x in rows]
        return (join(made[::-1]) * join([made[0], rows[0][:4]])[:1].sum()).sin().sum()

    examples = sequences((3, 4, 3, 4, 3))
    compare(joined, examples, [layer])
    compare(joined, examples, [layer], slice(0, 2))
    assert wf.batching.last().gathers <= 7

    def twice(rows):
        x = layer(rows[0])
        return join([x, x, x]).exp().sum()

    compare(twice, examples, [layer])

    def of_weights(_):
        double = layer.bias * 2
        return join([layer.bias, layer.bias]).sum() + join([double, double]).sin().sum()

    compare(of_weights, [0, 1], [layer])


CUTS = {
    "detach": lambda t: t.detach(),
    "data": lambda t: t.data,
    "a view without gradients": lambda t: wf.no_grad()(lambda: t.view(-1))(),
}


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("cell", CELLS)
def test_a_state_that_is_detached_passes_no_gradient_on(cell, cut, frozen):
    """Truncated backpropagation: the same numbers go into the next step, but the chain ends there."""
    cell = getattr(nn, cell)(5, 4).requires_grad_(not frozen)
    start = wf.randn(4, requires_grad=True)
    parameters = [start] if frozen else [*cell.parameters(), start]

    def last(rows):
        state = (start * 1, start * 2) if isinstance(cell, nn.LSTMCell) else start * 1
        for i, x in enumerate(rows):
            state = cell(x + (start.sum() if i % 2 else 0), state)
            if i in (1, 4):
                state = tuple(map(CUTS[cut], state)) if isinstance(state, tuple) else CUTS[cut](state)
        return h_of(state).sum()

    rows, found = sequences((7, 3, 6, 4)), []
    for run in (lambda f, xs: [f(x) for x in xs], batched, lambda f, xs: wf.map(f, xs)):
        for p in parameters:
            p.grad = None
        wf.stack(run(last, rows)).sum().backward()
        found.append([p.grad if p.grad is None else p.grad.numpy().copy() for p in parameters])
    for other in found[1:]:
        for mine, loops in zip(other, found[0], strict=True):
            assert (mine is None) == (loops is None)
            if loops is not None:
                np.testing.assert_allclose(mine, loops, rtol=1e-4, atol=1e-5)
