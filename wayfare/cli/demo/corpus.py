"""Real data without a download: the functions that the standard library of this Python is written in.

Everything is read in one fixed order, and examples are parted by file: no function of a file that is trained on is
ever among those held out.
"""

from __future__ import annotations

import ast
import os
import random
import sysconfig
import warnings
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

# Tests and tables of data are not ordinary code, and installed packages are not part of the library.
LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "encodings", "pydoc_data"}
HELD_OUT_SHARE = 0.2


class NoSourcesError(Exception):
    """The standard library is there without enough of its sources; the message says so to a user."""


@dataclass(frozen=True)
class Function:
    """A function of the library: the file it stands in, from the library's folder, and its syntax tree."""

    file: Path
    name: str
    node: ast.AST

    @property
    def package(self) -> str:
        """The package it belongs to; nothing for a module that stands alone."""
        return self.file.parts[0] if len(self.file.parts) > 1 else ""


def library_folder() -> Path:
    """Where the sources of the standard library are, if they are there."""
    return Path(sysconfig.get_path("stdlib"))


def source_files() -> list[Path]:
    """The library's files from its folder, in the order of their names."""
    folder, found = library_folder(), []
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        found += [Path(root, name).relative_to(folder) for name in names if name.endswith(".py")]
    if not found:
        raise NoSourcesError(f"There are no Python sources in {folder}, so this demo has no data to learn from.")
    return sorted(found)


def functions_of(files: Sequence[Path]) -> Iterator[Function]:
    """The functions of some files, in the order in which they are written; a file that cannot be read is left out."""
    for file in files:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = ast.parse(text_of(file))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in _definitions(module):
            yield Function(file, node.name, node)


def _definitions(module: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of a module, those inside others too, in the order in which they are written."""
    waiting: list[ast.AST] = [module]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        # Definitions stand in blocks: expressions, most of a tree, need not be looked into.
        blocks = [getattr(node, name, []) for name in ("body", "handlers", "cases", "orelse", "finalbody")]
        waiting.extend(reversed([child for block in blocks if isinstance(block, list) for child in block]))


def text_of(file: Path) -> bytes:
    """What a file of the library holds; nothing if it cannot be read."""
    try:
        return (library_folder() / file).read_bytes()
    except OSError:
        return b""


class Example(Protocol):
    """What can be parted by file: it knows its file and its class."""

    @property
    def file(self) -> Path:
        """Where it was found."""

    @property
    def label(self) -> str:
        """Its class."""

    @property
    def content(self) -> Hashable:
        """What the model sees of it."""


AnyExample = TypeVar("AnyExample", bound=Example)


def without_repeats(examples: Sequence[AnyExample]) -> list[AnyExample]:
    """The examples without those of which the model would see the very same again."""
    found: dict[Hashable, AnyExample] = {}
    for example in examples:
        found.setdefault(example.content, example)
    return list(found.values())


def split_by_file(examples: Sequence[AnyExample], seed: int) -> tuple[list[AnyExample], list[AnyExample]]:
    """(to train on, held out): whole files, drawn until about a fifth of each class is held out."""
    files = sorted({example.file for example in examples})
    random.Random(seed).shuffle(files)
    totals = Counter(example.label for example in examples)
    by_file: dict[Path, Counter[str]] = {file: Counter() for file in files}
    for example in examples:
        by_file[example.file][example.label] += 1
    taken: Counter[str] = Counter()
    kept_aside = set()
    for file in files:
        own = by_file[file]
        # A file is taken if some class still needs it and none would be held out far beyond its share.
        needed = any(taken[label] < HELD_OUT_SHARE * totals[label] for label in own)
        fits = all(taken[label] + count <= 1.5 * HELD_OUT_SHARE * totals[label] for label, count in own.items())
        if needed and fits:
            kept_aside.add(file)
            taken += own
    train = [example for example in examples if example.file not in kept_aside]
    held_out = [example for example in examples if example.file in kept_aside]
    if not train or not held_out:
        raise NoSourcesError(f"The sources in {library_folder()} are too few to hold some of the files out.")
    return train, held_out
