"""Examples of different sizes in batches of about the same work: trees, sentences, sequences, graphs. NumPy only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

CLASSES = 5
RARE = 5  # a word that occurs less often in all sentences is read letter by letter
BATCHES = 4  # of made-up examples: a step takes the next, so that none is the repetition of the last
Any_ = TypeVar("Any_")


@dataclass
class Node:
    """A node of a binary tree: a leaf has a word, any other a left and a right child."""

    label: Any
    word: Any = None
    left: Node | None = None
    right: Node | None = None

    def __iter__(self) -> Iterator[Node]:
        """All nodes, children before their parent."""
        if self.left is not None and self.right is not None:
            yield from self.left
            yield from self.right
        yield self

    @property
    def leaves(self) -> list[Node]:
        """The leaves from left to right."""
        return [node for node in self if node.left is None]

    @property
    def actions(self) -> list[int]:
        """What a parser does to build the tree: 0 takes the next word, 1 joins the last two trees."""
        return [0 if node.left is None else 1 for node in self]


@dataclass(frozen=True)
class Corpus:
    """Trees, and for each of their words its letters, and whether it is rare."""

    trees: list[Node]
    letters: list[list[int]]
    rare: list[bool]
    alphabet: int


def read(path: str) -> Corpus:
    """What `benchmarks.corpora.write` wrote."""
    content = json.loads(Path(path).read_text())
    letters = sorted({letter for word in content["words"] for letter in word})
    number = {letter: index for index, letter in enumerate(letters)}
    return Corpus(
        [_node(tree) for tree in content["trees"]],
        [[number[letter] for letter in word] for word in content["words"]],
        [frequency < RARE for frequency in content["frequencies"]],
        len(letters),
    )


def balanced(examples: Sequence[Any_], size: Callable[[Any_], int], count: int) -> list[list[Any_]]:
    """Batches of `count` examples whose sizes add up to about the same; examples that fill no batch are left out."""
    number = max(1, len(examples) // count)
    batches: list[list[Any_]] = [[] for _ in range(number)]
    ordered = sorted(examples[: number * count], key=size)
    for turn, start in enumerate(range(0, len(ordered), number)):
        row = ordered[start : start + number]
        # The largest of a row goes to another batch each time.
        for place, example in enumerate(row):
            batches[(place + turn) % number].append(example)
    order = np.random.default_rng(0)
    return [[batch[index] for index in order.permutation(len(batch))] for batch in batches]


def sequences(count: int, size: int, shortest: int = 5, longest: int = 60) -> list[list[tuple[np.ndarray, int]]]:
    """Batches of labelled sequences, the same lengths in each, in different orders."""
    numbers = np.random.default_rng(0)
    lengths = np.linspace(shortest, longest, count).round().astype(int)
    return [
        [
            (numbers.standard_normal((length, size), dtype=np.float32), int(numbers.integers(CLASSES)))
            for length in numbers.permutation(lengths)
        ]
        for _ in range(BATCHES)
    ]


@dataclass(frozen=True)
class Graph:
    """Like a molecule: kinds of atoms, and for each atom its neighbours, one to four of them."""

    kinds: list[int]
    neighbours: list[list[int]]
    label: int


def graphs(count: int, kinds: int, smallest: int = 6, largest: int = 30) -> list[list[Graph]]:
    """Batches of random graphs: trees with some rings closed, the same sizes in each batch."""
    numbers = np.random.default_rng(0)
    sizes = np.linspace(smallest, largest, count).round().astype(int)
    return [[_graph(numbers, size, kinds) for size in numbers.permutation(sizes)] for _ in range(BATCHES)]


def _graph(numbers: np.random.Generator, size: int, kinds: int, most: int = 4) -> Graph:
    neighbours: list[list[int]] = [[] for _ in range(size)]

    def join(one: int, other: int) -> None:
        if one != other and other not in neighbours[one] and max(len(neighbours[one]), len(neighbours[other])) < most:
            neighbours[one].append(other)
            neighbours[other].append(one)

    for node in range(1, size):
        open_nodes = [other for other in range(node) if len(neighbours[other]) < most]
        join(node, int(numbers.choice(open_nodes)))
    for _ in range(size // 6):
        join(*(int(node) for node in numbers.integers(0, size, 2)))
    return Graph([int(kind) for kind in numbers.integers(0, kinds, size)], neighbours, int(numbers.integers(CLASSES)))


def _node(tree: list[Any]) -> Node:
    if len(tree) == 2:
        return Node(tree[0], tree[1])
    return Node(tree[0], None, _node(tree[1]), _node(tree[2]))
