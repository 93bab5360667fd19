"""Trees go into a file as levels."""

import random

import numpy as np
import pytest

import wayfare as wf
from tests.exporters.onnx.exporting import export, kinds, runtime
from wayfare import nn
from wayfare.errors import ArgumentError, ArgumentTypeError


def tree(depth):
    if depth == 0 or (depth < 4 and random.random() < 0.2):
        return random.randrange(20)
    return (tree(depth - 1), tree(depth - 1))


def test_a_tree_model_runs_over_levels(path):
    random.seed(0)
    node, embed = nn.BinaryTreeLSTMCell(4, 5), nn.Embedding(20, 4)

    def recursive(t):
        return node(*map(recursive, t)) if isinstance(t, tuple) else node.leaf(embed(wf.tensor(t)))

    def f(values, children, roots):
        return wf.onnx.over_levels((values, children, roots), lambda w: node.leaf(embed(w)), node)[0]

    axes = {"values": {0: "leaves"}, "children": {0: "levels", 1: "width"}, "roots": {0: "trees"}}
    trees = [tree(3), tree(4), tree(5)]
    export(f, [tuple(wf.onnx.levels(t)) for t in trees], path, dynamic_axes=axes)
    assert kinds(path).count("Loop") == 1
    session = runtime.InferenceSession(str(path))
    for given in ([tree(6)], [3], [tree(2), tree(7), tree(1)]):
        arrays = wf.onnx.levels(given)._asdict()
        (got,) = session.run(None, {name: t.numpy() for name, t in arrays.items()})
        wanted = [recursive(t)[0].detach().numpy() for t in given]
        np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_levels_of_trees():
    values, children, roots = wf.onnx.levels((1, (2, 3)))
    assert values.tolist() == [1, 2, 3]
    assert children.tolist() == [[[2, 3]], [[1, 4]]] and roots.tolist() == [5]
    shared = (7, 8)
    values, children, roots = wf.onnx.levels([(shared, shared), 9])
    assert values.tolist() == [7, 8, 9] and children.tolist() == [[[1, 2]], [[4, 4]]] and roots.tolist() == [5, 3]


def test_levels_with_places_for_more_children():
    # A file takes the arity it was made with, whatever the tree at hand has.
    _, children, _ = wf.onnx.levels([(1, (2, 3)), (4,)], arity=3)
    assert children.tolist() == [[[2, 3, 0], [4, 0, 0]], [[1, 5, 0], [0, 0, 0]]]
    assert wf.onnx.levels(7, arity=4).children.shape == (0, 0, 4)
    for wrong in (1, 0, -1, 2.0, "2"):
        with pytest.raises(ArgumentError, match="and a node has 2 children"):
            wf.onnx.levels((1, 2), arity=wrong)


class Node:
    def __init__(self, *children, value=None):
        self.children, self.value = list(children), value


def test_levels_of_objects_and_of_what_is_no_tree():
    values, children, _ = wf.onnx.levels(Node(Node(value=1.5), Node(value=2.5), Node(value=0.5)))
    assert values.tolist() == [1.5, 2.5, 0.5] and children.shape == (1, 1, 3)
    ring = Node(Node(value=1.0))
    ring.children.append(ring)
    with pytest.raises(ArgumentError, match="a node is below itself"):
        wf.onnx.levels(ring)
    with pytest.raises(ArgumentTypeError, match="what a leaf of type str holds"):
        wf.onnx.levels(("a", "b"))
    with pytest.raises(ArgumentError, match="the list of trees is empty"):
        wf.onnx.levels([])
