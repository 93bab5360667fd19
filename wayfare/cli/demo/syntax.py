"""Syntax trees to learn from: the body of a function with its names hidden, and the word its name begins with."""

from __future__ import annotations

import ast
import builtins
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from wayfare.cli.demo.corpus import NoSourcesError, functions_of, library_folder, source_files, text_of, without_repeats

CLASSES = 6
SMALLEST, LARGEST = 8, 40
FEWEST_FUNCTIONS, FEWEST_FILES = 20, 5
_FIRST_WORD = re.compile(r"_*([A-Z]?[a-z]+)")
_DEFINITION = re.compile(rb"^[ \t]*(?:async )?def ([a-zA-Z_]+)", re.MULTILINE)
_BUILTINS = {name for name in dir(builtins) if not name.startswith("_")} | {"self", "cls"}


@dataclass(frozen=True)
class Tree:
    """A node: what kind of syntax it is, and the nodes below it."""

    kind: str
    children: tuple[Tree, ...] = ()

    def __iter__(self) -> Iterator[Tree]:
        """This node and all below it, children before their parent."""
        for child in self.children:
            yield from child
        yield self

    @property
    def size(self) -> int:
        """The number of nodes."""
        return 1 + sum(child.size for child in self.children)

    @property
    def depth(self) -> int:
        """The number of nodes from this one to the farthest leaf."""
        return 1 + max((child.depth for child in self.children), default=0)

    def drawn(self, indent: str = "") -> Iterator[str]:
        """The tree as lines, a node each, children indented below their parent."""
        yield indent + self.kind
        for child in self.children:
            yield from child.drawn(indent + "  ")


@dataclass(frozen=True)
class NamedTree:
    """A function's tree, and the word its name begins with."""

    file: Path
    name: str
    label: str
    tree: Tree

    @property
    def content(self) -> Tree:
        """What the model sees."""
        return self.tree


def first_word(name: str) -> str:
    """The first word of _getName and of get_name is get; a special method such as __init__ has none."""
    found = None if name.startswith("__") else _FIRST_WORD.match(name)
    return found[1].lower() if found else ""


def kind_of(node: ast.AST, hidden: Sequence[str]) -> str:
    """What the model may know of a node: its syntax, Python's own names that tell no class, never other names."""
    kind = type(node).__name__
    match node:
        case ast.Name(id=name, ctx=context) if name not in _BUILTINS or any(word in name for word in hidden):
            return f"{kind} {type(context).__name__.lower()}"
        case ast.Name(id=name) | ast.arg(arg="self" as name) | ast.arg(arg="cls" as name):
            return f"{kind} {name}"
        case ast.Attribute(ctx=context) | ast.Subscript(ctx=context):
            return f"{kind} {type(context).__name__.lower()}"
        case ast.Constant(value=None | True | False as value):
            return f"{kind} {value}"
        case ast.Constant(value=value):
            return f"{kind} {type(value).__name__}"
        case ast.BinOp(op=operator) | ast.BoolOp(op=operator) | ast.UnaryOp(op=operator) | ast.AugAssign(op=operator):
            return f"{kind} {type(operator).__name__}"
        case ast.Compare(ops=operators):
            return f"{kind} {type(operators[0]).__name__}"
    return kind


def build_tree(node: ast.AST, hidden: Sequence[str] = ()) -> Tree:
    """The tree of a syntax tree: operators and contexts are part of their node's kind, docstrings are left out."""
    part_of_kind = ast.expr_context | ast.operator | ast.boolop | ast.unaryop | ast.cmpop
    below = [child for child in ast.iter_child_nodes(node) if not isinstance(child, part_of_kind)]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node, clean=False) is not None:
        below.remove(node.body[0])
    return Tree(kind_of(node, hidden), tuple(build_tree(child, hidden) for child in below))


def read_trees(classes: int = CLASSES) -> list[NamedTree]:
    """The functions of the library whose names begin with one of the commonest words, repeats left out."""
    files = source_files()
    common = commonest_words(files)[:classes]
    if len(common) < 2:
        raise NoSourcesError(f"The sources in {library_folder()} are too few: this demo needs two words that "
                             f"{FEWEST_FUNCTIONS} functions begin with.")  # fmt: skip
    return without_repeats([
        NamedTree(function.file, function.name, word, tree)
        for function in functions_of(files)
        if (word := first_word(function.name)) in common
        and _can_be_built(function.node)
        and SMALLEST <= (tree := build_tree(function.node, common)).size <= LARGEST
    ])  # fmt: skip


def commonest_words(files: Sequence[Path]) -> list[str]:
    """The words that most functions' names begin with, counted without parsing; special methods do not count."""
    counts: Counter[str] = Counter()
    spread: Counter[str] = Counter()
    for file in files:
        found = Counter(first_word(name.decode()) for name in _DEFINITION.findall(text_of(file)))
        counts += found
        spread.update(found.keys())
    return [
        word for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        if word and count >= FEWEST_FUNCTIONS and spread[word] >= FEWEST_FILES
    ]  # fmt: skip


def _can_be_built(node: ast.AST) -> bool:
    """Few enough nodes for recursion, whatever the shape; a node's contexts and operators count here."""
    most = 3 * LARGEST
    return sum(1 for _ in itertools.islice(ast.walk(node), most + 1)) <= most
