"""What random programs for `wf.map` work on: weights, and examples of every form, the same again for each run."""

import random

import numpy as np

import wayfare as wf
from tests.batch.program_effects import Things
from wayfare import nn

WORDS = 20


class Node:
    """A node of a tree or of a graph without cycles."""

    def __init__(self, x, word, children=()):
        self.x, self.word, self.children = x, word, list(children)


class Example:
    """One example: a vector, a matrix with any number of rows, a sequence, words, a tree, a DAG and a graph."""


class World:
    """Weights and examples, made afresh from a seed."""

    def __init__(self, seed, count, width=3, dtype="float64", grads=True, chosen=None):
        self.draw = random.Random(seed)
        self.rng = np.random.default_rng(seed)
        self.width, self.dtype, self.grads = width, dtype, grads
        d = width
        self.w = self.new((d, d), True, 0.5)
        self.b = self.new((d,), True)
        self.table = self.new((WORDS, d), True)
        self.c0 = self.new((d,), False)
        self.c1 = self.new((2, d), True)
        wf.manual_seed(seed % 1000)
        kind = getattr(wf, dtype)
        self.net = nn.Sequential(nn.Linear(d, d), nn.Tanh(), nn.LayerNorm(d)).to(kind)
        self.cell = nn.LSTMCell(d, d).to(kind)
        self.tree_cell = nn.ChildSumTreeLSTMCell(d, d).to(kind)
        self.gru = nn.GRUCell(d, d).to(kind)
        self.norm = nn.BatchNorm1d(d, track_running_stats=False).to(kind)
        self.attend = nn.MultiheadAttention(d, 1, batch_first=True).to(kind)
        self.drop = nn.Dropout(0.3)
        # Made from weights outside of every example.
        self.u = (self.b * 2).tanh()
        self.uu = self.w @ self.w.mT
        self.leaves = [self.w, self.b, self.table, self.c1]
        self.leaves += [p for m in (self.net, self.cell, self.tree_cell, self.gru, self.norm, self.attend)
                        for p in m.parameters()]  # fmt: skip
        self.common = [self.leaf((d,), self.draw.random() < 0.5) for _ in range(2)]
        self.nodes = self._dag(5)
        self.things = Things(seed, width, dtype)
        self.leaves += self.things.leaves
        self.memo = {}
        self.kept = {}
        # Which examples have the same sizes decides what can run together.
        examples = [self._example(i) for i in range(count)]
        self.examples = examples if chosen is None else [examples[i] for i in chosen]

    def new(self, shape, grad, scale=1.0):
        """A tensor of this world; most of what has a gradient is a leaf to be compared."""
        values = self.rng.uniform(-1.5, 1.5, shape) * scale
        t = wf.from_numpy(np.asarray(values, self.dtype)).to(wf.get_default_device())
        return t.requires_grad_(bool(grad and self.grads))

    def leaf(self, shape, grad):
        t = self.new(shape, grad)
        if t.requires_grad:
            self.leaves.append(t)
        return t

    def names(self):
        """What programs may name."""
        given = (
            "w", "b", "table", "c0", "c1", "net", "cell", "tree_cell", "gru", "u", "uu", "memo", "kept", "nodes",
            "norm", "attend", "drop",
        )  # fmt: skip
        names = {name: getattr(self, name) for name in given} | {"d": self.width, "settings": {"scale": 1.5}}
        return names | self.things.names()

    def shared(self):
        """All tensors that every example may see and change."""
        buffers = [b for m in (self.net, self.norm) for b in m.buffers()]
        made = [self.w, self.b, self.table, self.c0, self.c1, self.u, self.uu, *self.common, *buffers]
        return [*made, *[node.x for node in self.nodes], *self.things.tensors()]

    def _example(self, index):
        e, d, draw = Example(), self.width, self.draw
        e.index = index
        e.x = self.leaf((d,), draw.random() < 0.6)
        e.m = self.leaf((draw.choice((2, 2, 2, 3, 1)), d), draw.random() < 0.6)
        e.length = draw.choice((0, 1, 2, 2, 3, 3, 4))
        e.xs = [self.leaf((d,), draw.random() < 0.3) for _ in range(e.length)]
        e.words = [draw.randrange(WORDS) for _ in range(e.length)]
        e.k = draw.randrange(4)
        e.scale = round(draw.uniform(0.5, 1.5), 1)
        e.shared = draw.choice(self.common)
        there = wf.get_default_device()
        e.whole = wf.from_numpy(self.rng.integers(-3, 4, (d,))).to(there)
        e.flags = wf.from_numpy(self.rng.random(d) > 0.5).to(there)
        other = self.rng.uniform(-1, 1, d).astype("float32" if self.dtype == "float64" else "float64")
        e.other = wf.from_numpy(other).to(there)
        e.tree = self._tree(draw.choice((0, 1, 2, 3)))
        e.root = draw.choice(self.nodes)
        size = draw.randint(1, 4)
        e.states = [self.leaf((d,), draw.random() < 0.3) for _ in range(size)]
        e.near = [[j for j in range(size) if j != i and draw.random() < 0.6] for i in range(size)]
        return e

    def _tree(self, depth):
        children = [self._tree(depth - 1) for _ in range(self.draw.choice((1, 2, 2, 3)))] if depth > 0 else []
        if children and self.draw.random() < 0.3:
            children = children[:1]
        return Node(self.leaf((self.width,), self.draw.random() < 0.3), self.draw.randrange(WORDS), children)

    def _dag(self, size):
        """Nodes with children that others have too; examples share them all."""
        nodes = []
        for _ in range(size):
            below = self.draw.sample(nodes, min(len(nodes), self.draw.randint(0, 2)))
            nodes.append(Node(self.leaf((self.width,), self.draw.random() < 0.5), self.draw.randrange(WORDS), below))
        return nodes
