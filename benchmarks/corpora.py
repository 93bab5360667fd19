"""Trees and sentences for the suite `batching`: read once, written to one file that the processes of all sides read.

The Stanford Sentiment Treebank is used where it lies in a folder `sst` of the data folder: that of the environment
variable WAYFARE_BENCHMARK_DATA, or `data` beside the project. Elsewhere syntax trees of Python's own standard library
take its place.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.worker import ROOT

COUNT = 256
SEED = 0
CLASSES = 5
_PARTS = re.compile(r"[()]|[^() ]+")  # words may hold other kinds of white space

# [class, word] or [class, left, right]
Tree = list[Any]


def folder() -> Path:
    """Where data that is not part of the project may lie."""
    return Path(os.environ.get("WAYFARE_BENCHMARK_DATA") or ROOT.parent / "data")


def write(path: Path, count: int = COUNT) -> str:
    """Write `count` trees, and how often each of their words occurs in all, to `path`; returns where they are from."""
    treebank = folder() / "sst" / "train.txt"
    if treebank.exists():
        source = "sentences of the Stanford Sentiment Treebank"
        trees = [parsed(line) for line in treebank.read_text(encoding="utf-8").split("\n") if line]
    else:
        source = "syntax trees of Python's standard library (there is no Sentiment Treebank here)"
        trees = syntax_trees()
    trees = [tree for tree in trees if len(tree) == 3]  # a sentence of one word has no inner node
    frequencies = Counter(word for tree in trees for word in words_of(tree))
    chosen = random.Random(SEED).sample(trees, min(count, len(trees)))
    known = sorted({word for tree in chosen for word in words_of(tree)})
    number = {word: index for index, word in enumerate(known)}
    content = {
        "words": known,
        "frequencies": [frequencies[word] for word in known],
        "trees": [_numbered(tree, number) for tree in chosen],
    }
    path.write_text(json.dumps(content))
    nodes = sum(_size(tree) for tree in chosen) / len(chosen)
    return f"{len(chosen)} {source}, {nodes:.0f} nodes each, {len(known)} words"


def parsed(line: str) -> Tree:
    """The tree that a line such as `(3 (2 very) (4 good))` writes down."""
    waiting: list[Tree] = [[]]
    for part in _PARTS.findall(line):
        if part == "(":
            waiting.append([])
        elif part == ")":
            done = waiting.pop()
            waiting[-1].append(done)
        else:
            top = waiting[-1]
            top.append(part if top else int(part))
    tree: Tree = waiting[0][0]
    return tree


def syntax_trees() -> list[Tree]:
    """Functions as binary trees: a node's kind is a word, its children are joined to it one by one."""
    from wayfare.cli.demo.syntax import read_trees

    found = read_trees()
    labels = {label: index % CLASSES for index, label in enumerate(sorted({named.label for named in found}))}
    return [_binary(named.tree, labels[named.label]) for named in found]


def words_of(tree: Tree) -> Iterator[str]:
    """The words of a tree from left to right."""
    if len(tree) == 2:
        yield tree[1]
    else:
        yield from words_of(tree[1])
        yield from words_of(tree[2])


def _binary(node: Any, label: int) -> Tree:
    # A class that is not the same for all words of a tree, so that tagging them is not trivial.
    tree: Tree = [(label + len(node.children)) % CLASSES, node.kind]
    for child in node.children:
        tree = [label, tree, _binary(child, label)]
    return tree


def _numbered(tree: Tree, number: dict[str, int]) -> Tree:
    if len(tree) == 2:
        return [tree[0], number[tree[1]]]
    return [tree[0], _numbered(tree[1], number), _numbered(tree[2], number)]


def _size(tree: Tree) -> int:
    return 1 if len(tree) == 2 else 1 + _size(tree[1]) + _size(tree[2])
