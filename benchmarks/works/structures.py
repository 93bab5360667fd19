"""Models as people publish them for PyTorch: child-sum trees that keep their states, and a tagger with a CRF on top.

They are written for one example, with helper methods, lists of children, small views and values that Python reads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.works import Prepared
from benchmarks.works.examples import CLASSES, Node, balanced, read
from benchmarks.works.mapped import assign, constant, prepared, weights
from benchmarks.works.models import Shapes, linear
from benchmarks.works.sequences import lstm_shapes

OUTSIDE = -1e4  # the score of a start that must not be


class Word:
    """A word of a dependency tree, with the words that hang on it; a model leaves its state here."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.children: list[Word] = []
        self.state: Any = None


def dependencies(tree: Node, places: Any) -> Word:
    """A tree of words made of a binary tree: the last word of the left half hangs on that of the right one."""
    if tree.left is None or tree.right is None:
        return Word(next(places))
    other, head = dependencies(tree.left, places), dependencies(tree.right, places)
    head.children.append(other)
    return head


def child_sum(m: Any, mode: str, data: str, count: int = 64, hidden: int = 128, size: int = 128) -> Prepared:
    """The class of a sentence by a child-sum Tree-LSTM over its dependencies: any number of children, one row each."""
    corpus = read(data)
    shapes: Shapes = {
        "embed.weight": (len(corpus.letters), size),
        **linear("encoder.gates_of_input", size, 3 * hidden),
        **linear("encoder.gates_of_sum", hidden, 3 * hidden),
        **linear("encoder.forget_of_input", size, hidden),
        **linear("encoder.forget_of_child", hidden, hidden),
        **linear("head", hidden, CLASSES),
    }
    batches = balanced(corpus.trees, lambda tree: len(tree.leaves), count)
    F = m.nn.functional

    class Encoder(m.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.gates_of_input = m.nn.Linear(size, 3 * hidden)
            self.gates_of_sum = m.nn.Linear(hidden, 3 * hidden)
            self.forget_of_input = m.nn.Linear(size, hidden)
            self.forget_of_child = m.nn.Linear(hidden, hidden)

        def node(self, x: Any, cells: Any, states: Any) -> Any:
            together = m.sum(states, dim=0, keepdim=True)
            gates = self.gates_of_input(x) + self.gates_of_sum(together)
            i, o, u = m.split(gates, gates.size(1) // 3, dim=1)
            i, o, u = m.sigmoid(i), m.sigmoid(o), m.tanh(u)
            forget = m.sigmoid(self.forget_of_child(states) + self.forget_of_input(x).repeat(len(states), 1))
            c = m.mul(i, u) + m.sum(m.mul(forget, cells), dim=0, keepdim=True)
            return c, m.mul(o, m.tanh(c))

        def forward(self, tree: Word, words: Any) -> Any:
            for child in tree.children:
                self.forward(child, words)
            if tree.children:
                cells, states = zip(*[child.state for child in tree.children], strict=True)
                cells, states = m.cat(cells, dim=0), m.cat(states, dim=0)
            else:
                cells, states = m.zeros(1, hidden), m.zeros(1, hidden)
            tree.state = self.node(words[tree.place].unsqueeze(0), cells, states)
            return tree.state

    class Classifier(m.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = m.nn.Embedding(len(corpus.letters), size, sparse=True)
            self.encoder = Encoder()
            self.head = m.nn.Linear(hidden, CLASSES)

        def forward(self, tree: Word, words: Any, label: Any) -> Any:
            _, h = self.encoder(tree, self.embed(words))
            return F.cross_entropy(self.head(h), label)

    model = assign(m, Classifier(), weights(shapes))
    examples = []
    for batch in batches:
        words = [constant(m, np.array([leaf.word for leaf in tree.leaves])) for tree in batch]
        examples.append([
            (dependencies(tree, iter(range(len(tree.leaves)))), places, constant(m, np.array([tree.label])))
            for tree, places in zip(batch, words, strict=True)
        ])  # fmt: skip
    return prepared(m, mode, model, model, examples)


def crf_tagger(m: Any, mode: str, data: str, count: int = 40, hidden: int = 128, size: int = 128) -> Prepared:
    """Tags of a sentence by two LSTMs and a CRF; the best path is read tag by tag, and weighs the loss."""
    corpus = read(data)
    shapes: Shapes = {
        "embed.weight": (len(corpus.letters), size),
        **lstm_shapes("forwards", size, hidden),
        **lstm_shapes("backwards", size, hidden),
        **linear("head", 2 * hidden, CLASSES),
        "transitions": (CLASSES, CLASSES),
    }
    batches = balanced(corpus.trees, lambda tree: len(tree.leaves), count)

    class Tagger(m.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = m.nn.Embedding(len(corpus.letters), size, sparse=True)
            self.forwards = m.nn.LSTMCell(size, hidden)
            self.backwards = m.nn.LSTMCell(size, hidden)
            self.head = m.nn.Linear(2 * hidden, CLASSES)
            self.transitions = m.nn.Parameter(m.zeros(CLASSES, CLASSES))

        def forward(self, words: Any, tags: list[int]) -> Any:
            vectors = [x.view(1, -1) for x in self.embed(words)]
            ahead, back = self.read(self.forwards, vectors), self.read(self.backwards, vectors[::-1])[::-1]
            scores = [self.head(m.cat([a, b], 1)).view(-1) for a, b in zip(ahead, back, strict=True)]
            loss = self.total(scores) - self.path(scores, tags)
            with m.no_grad():
                found = self.best(scores)
            wrong = sum([mine != right for mine, right in zip(found, tags, strict=True)])
            return loss * (1 + wrong / len(tags))

        def read(self, cell: Any, vectors: list[Any]) -> list[Any]:
            state = (m.zeros(1, hidden), m.zeros(1, hidden))
            found = []
            for x in vectors:
                state = cell(x, state)
                found.append(state[0])
            return found

        def reach(self, before: Any, score: Any, tag: int) -> Any:
            ways = before + self.transitions[tag] + score[tag].view(1).expand(CLASSES)
            highest = ways.max()
            return (highest + m.log(m.sum(m.exp(ways - highest)))).view(1)

        def total(self, scores: list[Any]) -> Any:
            reached = self.start()
            for score in scores:
                reached = m.cat([self.reach(reached, score, tag) for tag in range(CLASSES)])
            return m.logsumexp(reached, 0)

        def path(self, scores: list[Any], tags: list[int]) -> Any:
            total = m.zeros(1)
            for score, before, tag in zip(scores, [0, *tags], tags, strict=False):
                total = total + self.transitions[tag][before] + score[tag]
            return total[0]

        def best(self, scores: list[Any]) -> list[int]:
            reached = self.start()
            pointers = []
            for score in scores:
                before, highest = [], []
                for tag in range(CLASSES):
                    ways = reached + self.transitions[tag]
                    place = ways.argmax().item()
                    before.append(place)
                    highest.append(ways[place].view(1))
                reached = m.cat(highest) + score
                pointers.append(before)
            tag = reached.argmax().item()
            found = [tag]
            for before in reversed(pointers[1:]):
                tag = before[tag]
                found.append(tag)
            return found[::-1]

        def start(self) -> Any:
            reached = m.full((CLASSES,), OUTSIDE)
            reached[0] = 0.0
            return reached

    model = assign(m, Tagger(), weights(shapes))
    examples = [
        [(constant(m, np.array([leaf.word for leaf in tree.leaves])), [leaf.label for leaf in tree.leaves])
         for tree in batch] for batch in batches
    ]  # fmt: skip
    return prepared(m, mode, model, model, examples)
