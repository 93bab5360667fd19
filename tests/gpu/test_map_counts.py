"""What `wf.map` asks of a device: launches, copies and waits are counted."""

import numpy as np
import pytest

import wayfare as wf
from tests.gpu.test_map import there, trees
from wayfare import nn
from wayfare.batch.session import Session


def in_groups(f, examples):
    """The results in groups, and their statistics."""
    made = wf.map(f, examples, schedule=wf.batching.Agenda())
    return made, wf.batching.last()


def test_groups_are_few_launches(cuda, counts, launched):
    wf.manual_seed(0)
    cell = nn.BinaryTreeLSTMCell(3, 4).to("cuda", wf.float64)
    examples = trees(8, 3)

    def loss(tree):
        def state(tree):
            return cell(*map(state, tree)) if isinstance(tree, tuple) else cell.leaf(tree)

        return state(tree)[0].sum()

    found = []
    for batch in (False, True):
        wf.stack(wf.map(loss, examples, batch=batch)).sum().backward()  # kernels are compiled
        counts.reset()
        launched.clear()
        made = wf.map(loss, examples, batch=False) if not batch else in_groups(loss, examples)[0]
        wf.stack(made).sum().backward()
        found.append((counts.launched + len(launched), counts.to_host, counts.synchronised))
    (loop, *_), (groups, to_host, synchronised) = found
    assert groups < loop / 3, found
    assert to_host == synchronised == 0


def test_one_copy_for_each_round_of_reads(cuda, counts):
    w = there(4, 4, seed=1)

    def settle(x):
        while x.norm() > 1:
            x = wf.tanh(w @ x) * 0.05 + x * 0.7
        return x

    examples = [there(4, seed=s) * (s + 1) for s in range(9)]
    in_groups(settle, examples)
    counts.reset()
    _, stats = in_groups(settle, examples)
    assert stats.rounds > 2 and stats.waits
    assert counts.to_host <= stats.rounds and counts.synchronised == 0


def test_reads_of_several_results_are_one_copy(cuda, counts):
    """Examples that wait at different lines, for values of different shapes and dtypes."""

    def run(pair):
        x, odd = pair
        if odd:
            return x * x.sum().item()
        largest = int((x * 2).argmax())
        return x[largest] + x.tolist()[0]

    examples = [(there(4, seed=s), s % 2 == 1) for s in range(8)]
    want = [run(pair).cpu().numpy() for pair in examples]
    counts.reset()
    made, stats = in_groups(run, examples)
    # Eight `x.tolist()` of tensors from outside are copies of their own, as in the loop.
    assert counts.to_host == 1 + 4 and counts.synchronised == 0, stats
    for mine, theirs in zip(made, want, strict=True):
        np.testing.assert_allclose(mine.cpu().numpy(), theirs)


def test_what_one_example_reads_is_there_for_all(cuda, counts):
    def run(x):
        y = wf.tanh(x)
        total = y.sum()
        first = total.item()
        return first + y[1].item() + total.item()

    examples = [there(3, seed=s) for s in range(6)]
    counts.reset()
    made, _ = in_groups(run, examples)
    assert counts.to_host == 2 and counts.synchronised == 0  # the totals; then y
    assert made == pytest.approx([run(x) for x in examples])


def test_a_large_result_is_not_copied_for_one_value(cuda, counts):
    def run(x):
        y = wf.tanh(x)
        return y[0].item()

    examples = [there(40_000, seed=s) for s in range(4)]
    assert in_groups(run, examples)[0] == pytest.approx([run(x) for x in examples])


def test_rows_are_gathered_by_one_launch_each(cuda, counts, launched):
    w = there(4, 4, seed=1)
    examples = [there(4, seed=s) for s in range(70)]
    in_groups(lambda x: w @ x, examples)
    counts.reset()
    launched.clear()
    in_groups(lambda x: w @ x, examples)
    gathers = [name for name in launched if name.startswith("gather_at")]
    assert len(gathers) == 2, launched  # the inputs; the results, each in memory of its own
    assert counts.to_device == counts.to_host == 0


def test_calls_that_look_like_an_earlier_one_are_recorded_quickly(cuda, monkeypatch):
    """Calls of a cell take a fast path on a device too, also those that read tensors from outside."""
    wf.manual_seed(0)
    cell, slow = nn.GRUCell(3, 4).to("cuda", wf.float64), []
    general = Session._opaque_call
    monkeypatch.setattr(Session, "_opaque_call", lambda self, *args: slow.append(1) or general(self, *args))

    def read(sequence):
        h = wf.zeros(4, device="cuda", dtype=wf.float64)
        for x in sequence:
            h = cell(x, h)
        return h.sum()

    examples = [[there(3, seed=9 * s + k) for k in range(6)] for s in range(5)]
    made, stats = in_groups(read, examples)
    assert sum(kind.nodes for kind in stats.kinds if kind.name == "GRUCell") == 30 and len(slow) <= 4
    for mine, sequence in zip(made, examples, strict=True):
        np.testing.assert_allclose(mine.detach().cpu().numpy(), read(sequence).detach().cpu().numpy())


def test_checks_of_indices_come_with_a_read_in_one_copy(cuda, counts):
    table = there(9, 3, seed=1)

    def run(i):
        a = table[i]
        b = table[i + 1]
        return (a * b).sum().item()

    examples = [wf.tensor([k], device="cuda") for k in range(6)]
    in_groups(run, examples)
    counts.reset()
    in_groups(run, examples)
    assert counts.to_host == 2  # the checks, then the values


def test_gradients_are_the_same_bits_at_every_run(cuda):
    table = there(7, 3, seed=1, dtype=np.float32).requires_grad_()
    examples = [wf.tensor([k % 7, (3 * k) % 7], device="cuda") for k in range(12)]

    def run(i):
        x = table[i]
        return (x[0] * wf.tanh(x[1]) + x.sum(0)).sum()

    found = []
    for _ in range(3):
        table.grad = None
        sum(in_groups(run, examples)[0]).backward()
        found.append(table.grad.cpu().numpy().tobytes())
    assert len(set(found)) == 1


@pytest.mark.parametrize("count", [5, 200, 600])
def test_inputs_of_one_shape_are_gathered_by_one_launch(cuda, counts, launched, count):
    """Up to 480 addresses are arguments of the kernel; more are one copy to the device."""

    def run(pair):
        x, y = pair
        return wf.tanh(x) * wf.tanh(y).flip(0) + wf.sin(x)

    examples = [(there(4, seed=s), there(4, seed=count + s)) for s in range(count)]
    made, _ = in_groups(run, examples)
    for mine, pair in zip(made, examples, strict=True):
        np.testing.assert_allclose(mine.cpu().numpy(), run(pair).cpu().numpy())


def test_children_of_a_tree_are_gathered_by_one_launch(cuda, counts, launched):
    wf.manual_seed(0)
    cell = nn.BinaryTreeLSTMCell(3, 4).to("cuda", wf.float64)

    def state(tree):
        return cell(*map(state, tree)) if isinstance(tree, tuple) else cell.leaf(tree)

    examples = trees(8, 3)
    with wf.no_grad():
        in_groups(lambda tree: state(tree)[0], examples)
        launched.clear()
        counts.reset()
        _, stats = in_groups(lambda tree: state(tree)[0], examples)
    # Four states of two children each; and the words, and the results.
    gathers = [name for name in launched if name.startswith("gather_at")]
    assert stats.groups + 1 >= len(gathers) and counts.to_device == 0, stats
