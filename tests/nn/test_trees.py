"""Tree-LSTM cells against their formulas in NumPy, gradients against finite differences, kernels counted."""

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.codegen.runtime import kernel
from wayfare.core.counters import counted
from wayfare.errors import ArgumentTypeError, DTypeError, ShapeError


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def array(t):
    return t.detach().numpy()


def close(state, expected):
    for ours, array_ in zip(state, expected, strict=True):
        np.testing.assert_allclose(array(ours), array_, rtol=1e-10, atol=1e-13)


def weights(cell, gates):
    """Weights and biases of each gate: of the input, of the state, and the bias."""
    bias = np.zeros(gates * cell.hidden_size) if cell.bias is None else array(cell.bias)
    of_state = [array(cell.weight_hh)] + ([array(cell.weight_fh)] if hasattr(cell, "weight_fh") else [])
    return np.split(array(cell.weight_ih), 4), np.split(np.concatenate(of_state), gates), np.split(bias, gates)


def binary(cell, left, right, x=None):
    """An inner node as Tai, Socher and Manning have it (equations 9 to 14, two children)."""
    (wi, wo, wu, wf_), (ui, uo, uu, ul, ur), (bi, bo, bu, bl, br) = weights(cell, 5)
    x = np.zeros(cell.input_size) if x is None else x
    h = np.concatenate([left[0], right[0]])
    i, o, u = sigmoid(wi @ x + ui @ h + bi), sigmoid(wo @ x + uo @ h + bo), np.tanh(wu @ x + uu @ h + bu)
    c = i * u + sigmoid(wf_ @ x + ul @ h + bl) * left[1] + sigmoid(wf_ @ x + ur @ h + br) * right[1]
    return o * np.tanh(c), c


def leaf(cell, x, gates):
    (wi, wo, wu, _), _, biases = weights(cell, gates)
    c = sigmoid(wi @ x + biases[0]) * np.tanh(wu @ x + biases[2])
    return sigmoid(wo @ x + biases[1]) * np.tanh(c), c


def child_sum(cell, x, children):
    """Equations 2 to 8 of the same."""
    (wi, wo, wu, wf_), (ui, uo, uu, uf), (bi, bo, bu, bf) = weights(cell, 4)
    total = sum((h for h, _ in children), np.zeros(cell.hidden_size))
    i, o = sigmoid(wi @ x + ui @ total + bi), sigmoid(wo @ x + uo @ total + bo)
    c = i * np.tanh(wu @ x + uu @ total + bu)
    for h, old in children:
        c = c + sigmoid(wf_ @ x + uf @ h + bf) * old
    return o * np.tanh(c), c


def states(count, hidden=4, batch=()):
    rng = np.random.default_rng(count)
    return [tuple(rng.normal(size=(*batch, hidden)) for _ in range(2)) for _ in range(count)]


def tensors(state):
    return tuple(wf.tensor(s) for s in state)


@pytest.mark.parametrize("bias", [True, False])
def test_a_binary_node_and_a_leaf_are_their_formulas(bias):
    cell = nn.BinaryTreeLSTMCell(3, 4, bias=bias).double()
    left, right = states(2)
    x = np.random.default_rng(5).normal(size=3)
    close(cell(tensors(left), tensors(right)), binary(cell, left, right))
    close(cell(tensors(left), tensors(right), wf.tensor(x)), binary(cell, left, right, x))
    close(cell.leaf(wf.tensor(x)), leaf(cell, x, 5))
    assert repr(cell) == f"BinaryTreeLSTMCell(3, 4{'' if bias else ', bias=False'})"


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_a_child_sum_node_is_its_formula_for_any_number_of_children(count, bias):
    cell = nn.ChildSumTreeLSTMCell(3, 4, bias=bias).double()
    x = np.random.default_rng(5).normal(size=3)
    children = states(count)
    close(cell(wf.tensor(x), [tensors(s) for s in children]), child_sum(cell, x, children))
    turned = cell(wf.tensor(x), [tensors(s) for s in reversed(children)])
    close(turned, child_sum(cell, x, children))


def test_nodes_without_children_need_no_list():
    cell = nn.ChildSumTreeLSTMCell(3, 4).double()
    close(cell(wf.ones(3, dtype=wf.float64)), leaf(cell, np.ones(3), 4))


def test_a_batch_of_nodes_is_each_node():
    binary_cell, sum_cell = nn.BinaryTreeLSTMCell(3, 4).double(), nn.ChildSumTreeLSTMCell(3, 4).double()
    batch = states(3, batch=(6,))
    x = np.random.default_rng(5).normal(size=(6, 3))
    made = binary_cell(tensors(batch[0]), tensors(batch[1]), wf.tensor(x))
    summed = sum_cell(wf.tensor(x), [tensors(s) for s in batch])
    leaves = binary_cell.leaf(wf.tensor(x))
    for row in range(6):
        one = [tuple(s[row] for s in state) for state in batch]
        close([s[row] for s in made], binary(binary_cell, one[0], one[1], x[row]))
        close([s[row] for s in summed], child_sum(sum_cell, x[row], one))
        close([s[row] for s in leaves], leaf(binary_cell, x[row], 5))


def of_weights(cell, function):
    """`function(*further tensors)` as a function of the cell's parameters too, and the values of those."""
    names, values = zip(*[(n, p.detach().requires_grad_()) for n, p in cell.named_parameters()], strict=True)

    def run(*given):
        cell.__dict__.update(zip(names, given, strict=False))
        return function(*given[len(names) :])

    return run, values


def test_gradients_through_a_small_binary_tree():
    cell = nn.BinaryTreeLSTMCell(2, 2).double()

    def tree(x):
        inner = cell(cell.leaf(x[0]), cell.leaf(x[1]))
        return cell(inner, cell.leaf(x[2]), x[3])

    run, values = of_weights(cell, tree)
    x = wf.randn(4, 2, dtype=wf.float64, requires_grad=True)
    assert wf.autograd.gradcheck(run, (*values, x))
    assert wf.autograd.gradgradcheck(lambda x: run(*[v.detach() for v in values], x)[0], (x,))


def test_gradients_through_a_small_child_sum_tree():
    cell = nn.ChildSumTreeLSTMCell(2, 2).double()

    def tree(x):
        leaves = [cell(x[k]) for k in range(3)]
        return cell(x[4], [cell(x[3], leaves), leaves[0]])

    run, values = of_weights(cell, tree)
    x = wf.randn(5, 2, dtype=wf.float64, requires_grad=True)
    assert wf.autograd.gradcheck(run, (*values, x))


@pytest.mark.skipif(not kernel.available(), reason="llvmlite does not work here")
def test_kernels_of_a_node():
    cell = nn.BinaryTreeLSTMCell(16, 32)
    child = tuple(wf.randn(8, 32) for _ in range(2))
    cell(child, child)[0].sum().backward()
    with counted() as forward:
        h, _ = cell(child, child)
    with counted() as back:
        h.backward(wf.ones(8, 32))
    assert (forward.kernels_run, back.kernels_run) == (1, 1)
    cell = nn.ChildSumTreeLSTMCell(16, 32)
    x = wf.randn(8, 16)
    for count in (2, 3, 6):  # backward, one kernel goes over the children and one over the node
        h, _ = cell(x, [child] * count)
        h.backward(wf.ones(8, 32))
        with counted() as forward:
            h, _ = cell(x, [child] * count)
        with counted() as back:
            h.backward(wf.ones(8, 32))
        assert (forward.kernels_run, back.kernels_run) == (1, 2)


@pytest.mark.parametrize(
    "error, pattern, call",
    [
        (ArgumentTypeError, r"left must be a state \(h, c\), not Tensor", lambda b, s: b(wf.zeros(4), wf.zeros(4))),
        (ShapeError, r"right must be \[4\]", lambda b, s: b((wf.zeros(4),) * 2, (wf.zeros(2, 4),) * 2)),
        (ShapeError, r"left must be \[4\] or \[batch, 4\]", lambda b, s: b((wf.zeros(5),) * 2, (wf.zeros(5),) * 2)),
        (ShapeError, r"x must be \[3\] or \[batch, 3\]", lambda b, s: b.leaf(wf.zeros(4))),
        (ShapeError, "does not fit states", lambda b, s: b((wf.zeros(4),) * 2, (wf.zeros(4),) * 2, wf.zeros(2, 3))),
        (DTypeError, "float64", lambda b, s: b.leaf(wf.zeros(3, dtype=wf.float64))),
        (ArgumentTypeError, "list of states", lambda b, s: s(wf.zeros(3), (wf.zeros(4), wf.zeros(4)))),
        (ArgumentTypeError, "list of states", lambda b, s: s(wf.zeros(3), wf.zeros(4))),
        (ArgumentTypeError, "not one state", lambda b, s: s(wf.zeros(3), [wf.zeros(4), wf.zeros(4)])),
        (ArgumentTypeError, r"child 0 must be a state \(h, c\), not Tensor",
         lambda b, s: s(wf.zeros(3), [wf.zeros(4)])),
        (ArgumentTypeError, "child 1 must be a state.* not Tensor",
         lambda b, s: s(wf.zeros(3), [(wf.zeros(4),) * 2, wf.zeros(4)])),
        (ShapeError, r"child 1 must be \[4\]", lambda b, s: s(wf.zeros(3), [(wf.zeros(4),) * 2, (wf.zeros(3),) * 2])),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_words(error, pattern, call):
    with pytest.raises(error, match=pattern):
        call(nn.BinaryTreeLSTMCell(3, 4), nn.ChildSumTreeLSTMCell(3, 4))
