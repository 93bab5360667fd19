"""Models over binary trees, written for one tree: a Tree-LSTM, and a parser that decides by its own scores."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.works import CPU, Prepared, Unavailable, dynet_steps
from benchmarks.works.examples import CLASSES, Node, balanced, read
from benchmarks.works.mapped import Values, assign, index, indices, look_up, prepared, weights
from benchmarks.works.models import Shapes, linear

GUIDED = 0.5  # how often the parser does what is right instead of what it thinks best


def shapes_of(words: int, size: int, hidden: int) -> Shapes:
    """The parameters of a Tree-LSTM classifier whose cell is the user's own."""
    return {
        "embed.weight": (words, size),
        **linear("cell.of_input", size, 3 * hidden),
        **linear("cell.of_children", 2 * hidden, 5 * hidden),
        **linear("head", hidden, CLASSES),
    }


def tree_lstm(
    m: Any,
    mode: str,
    data: str,
    cell: str = "library",
    every: bool = False,
    count: int = 64,
    hidden: int = 128,
    size: int = 128,
    device: str = CPU,
) -> Prepared:
    """The class of a sentence from its tree; the loss is that of the root, or with `every` those of all nodes."""
    if mode.endswith(", library cell"):
        mode, cell = mode.removesuffix(", library cell"), "library"
    corpus = read(data)
    shapes = shapes_of(len(corpus.letters), size, hidden)
    batches = balanced(corpus.trees, lambda tree: len(tree.actions), count)
    if m.__name__ == "dynet":
        return dynet_steps.tree_lstm(m, weights_of(shapes, hidden), batches, every, hidden)

    class Classifier(m.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = m.nn.Embedding(len(corpus.letters), size, sparse=True)
            self.cell = cell_of(m, cell, size, hidden)
            self.head = m.nn.Linear(hidden, CLASSES)

        def forward(self, tree: Node, words: Any) -> Any:
            losses: list[Any] = []
            h, _ = self.state(tree, iter(look_up(m, self.embed, words)), losses)
            return m.stack(losses).sum() if every else self.loss(h, tree)

        # A method: a function in `forward` that calls itself would keep every step's tensors for the garbage collector.
        def state(self, node: Node, leaves: Iterator[Any], losses: list[Any]) -> Any:
            if node.left is None or node.right is None:
                found = self.cell.leaf(next(leaves))
            else:
                found = self.cell(self.state(node.left, leaves, losses), self.state(node.right, leaves, losses))
            if every:
                losses.append(self.loss(found[0], node))
            return found

        def loss(self, h: Any, node: Node) -> Any:
            return m.nn.functional.cross_entropy(self.head(h), node.label)

    model = start(m, Classifier(), shapes, hidden, device)
    examples = [[(_planted(m, tree, device), indices(m, _words(tree), device)) for tree in batch] for batch in batches]
    return prepared(m, mode, model, model, examples, lambda gradients: _of_cell(gradients, hidden))


def parser(
    m: Any, mode: str, data: str, cell: str = "library", count: int = 64, hidden: int = 128, size: int = 128
) -> Prepared:
    """A stack and a buffer: scores of the two actions are read, and Python goes on as they say, or as is right."""
    corpus = read(data)
    shapes = shapes_of(len(corpus.letters), size, hidden) | linear("look", 3 * hidden, hidden)
    shapes |= linear("head", hidden, 2)
    batches = balanced(corpus.trees, lambda tree: len(tree.actions), count)

    class Parser(m.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = m.nn.Embedding(len(corpus.letters), size, sparse=True)
            self.cell = cell_of(m, cell, size, hidden)
            self.look = m.nn.Linear(3 * hidden, hidden)
            self.head = m.nn.Linear(hidden, 2)

        def forward(self, words: Any, actions: list[int], targets: list[Any], seed: int) -> Any:
            guide = random.Random(seed)
            buffer = [self.cell.leaf(word) for word in look_up(m, self.embed, words)][::-1]
            stack: list[Any] = []
            losses = []
            for right, target in zip(actions, targets, strict=True):
                if len(stack) < 2:
                    action = 0
                elif not buffer:
                    action = 1
                else:
                    scores = self.head(self.look(m.cat([stack[-2][0], stack[-1][0], buffer[-1][0]], -1)).tanh())
                    losses.append(m.nn.functional.cross_entropy(scores, target))
                    action = scores.argmax().item()
                    if guide.random() < GUIDED:
                        action = right
                if action == 0:
                    stack.append(buffer.pop())
                else:
                    last = stack.pop()
                    stack.append(self.cell(stack.pop(), last))
            # A sentence of two words is never in doubt, yet every example has a loss.
            losses.append(stack[0][0].mean())
            return m.stack(losses).sum()

    model = start(m, Parser(), shapes, hidden)
    examples = [
        [
            (indices(m, _words(tree)), tree.actions, [index(m, action) for action in tree.actions], seed)
            for seed, tree in enumerate(batch)
        ]
        for batch in batches
    ]
    return prepared(m, mode, model, model, examples, lambda gradients: _of_cell(gradients, hidden))


def cell_of(m: Any, kind: str, size: int, hidden: int) -> Any:
    """A Tree-LSTM cell: the library's where it has one, the user's own, or that one compiled."""
    if kind == "library" and hasattr(m.nn, "BinaryTreeLSTMCell"):
        return m.nn.BinaryTreeLSTMCell(size, hidden)

    # Only Wayfare compiles its cell: for one example at a time torch.compile would not pay for its own checks.
    compiling = kind == "compiled" and m.__name__ != "torch"
    if compiling and not hasattr(m, "compile"):
        raise Unavailable(f"{m.__name__} has no compile().")
    as_written = m.compile if compiling else lambda function: function

    class Cell(m.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.of_input = m.nn.Linear(size, 3 * hidden)
            self.of_children = m.nn.Linear(2 * hidden, 5 * hidden)

        @as_written  # type: ignore[untyped-decorator]
        def leaf(self, x: Any) -> Any:
            i, o, u = self.of_input(x).chunk(3, -1)
            c = i.sigmoid() * u.tanh()
            return o.sigmoid() * c.tanh(), c

        @as_written  # type: ignore[untyped-decorator]
        def forward(self, left: Any, right: Any) -> Any:
            i, o, u, of_left, of_right = self.of_children(m.cat([left[0], right[0]], -1)).chunk(5, -1)
            c = i.sigmoid() * u.tanh() + of_left.sigmoid() * left[1] + of_right.sigmoid() * right[1]
            return o.sigmoid() * c.tanh(), c

    return Cell()


def weights_of(shapes: Shapes, hidden: int) -> Values:
    """Weights of the user's cell; leaves have the biases of inner nodes, as in the library's cell, which has one."""
    values = weights(shapes)
    values["cell.of_input.bias"] = values["cell.of_children.bias"][: 3 * hidden].copy()
    return values


def start(m: Any, model: Any, shapes: Shapes, hidden: int, device: str = CPU) -> Any:
    """The model with the weights that every side starts from, whichever cell it has."""
    values = weights_of(shapes, hidden)
    if hasattr(model.cell, "weight_hh"):
        leaf, children = values.pop("cell.of_input.weight"), values.pop("cell.of_children.weight")
        del values["cell.of_input.bias"]
        unused = np.zeros((hidden, leaf.shape[1]), np.float32)  # leaves have nothing to forget
        values |= {"cell.weight_ih": np.concatenate([leaf, unused]), "cell.weight_hh": children}
        values["cell.bias"] = values.pop("cell.of_children.bias")
    return assign(m, model, values, device)


def _of_cell(gradients: Values, hidden: int) -> Values:
    """Those that all cells have, by the names of the user's own: biases the library's cell adds up."""
    found = {name: grad for name, grad in gradients.items() if not name.startswith("cell.")}
    library = "cell.weight_hh" in gradients
    leaf = gradients["cell.weight_ih"][: 3 * hidden] if library else gradients["cell.of_input.weight"]
    children = gradients["cell.weight_hh" if library else "cell.of_children.weight"]
    return found | {"cell.of_input.weight": leaf, "cell.of_children.weight": children}


def _words(tree: Node) -> list[int]:
    return [leaf.word for leaf in tree.leaves]


def _planted(m: Any, tree: Node, device: str) -> Node:
    """The tree with its classes as tensors."""
    if tree.left is None or tree.right is None:
        return Node(index(m, tree.label, device), tree.word)
    children = _planted(m, tree.left, device), _planted(m, tree.right, device)
    return Node(index(m, tree.label, device), None, *children)
