"""Sequences of words: the identifiers of a function in the order of its source, and the package it belongs to."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import wayfare as wf
from wayfare.cli.demo.corpus import (
    Function,
    NoSourcesError,
    functions_of,
    library_folder,
    source_files,
    text_of,
    without_repeats,
)

CLASSES = 6
SHORTEST = 4
FEWEST_FILES, FEWEST_FUNCTIONS = 4, 60
UNKNOWN = "<unknown>"
_DEFINITION = re.compile(rb"^\s*(?:async )?def ", re.MULTILINE)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


@dataclass(frozen=True)
class Sentence:
    """The words of one function."""

    file: Path
    name: str
    label: str
    words: tuple[str, ...]

    @property
    def content(self) -> tuple[str, ...]:
        """What the model sees."""
        return self.words


def words_of(function: Function) -> tuple[str, ...]:
    """readHeader, self.file_name → read header self file name, without the name of the package itself."""
    found: list[tuple[int, int, str]] = []
    for node in ast.walk(function.node):
        match node:
            case ast.arg(arg=str(name)) | ast.keyword(arg=str(name)):
                found.append((node.lineno, node.col_offset, name))
            # The name of an attribute stands at the end of its node, behind what it is an attribute of.
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found.append((node.end_lineno or 0, node.end_col_offset or 0, name))
    words = [word.lower() for *_, name in sorted(found) for word in _WORD.findall(name) if len(word) > 1]
    own = function.package.lower()
    return tuple(word for word in words if own not in word)


def read_sentences(classes: int = CLASSES) -> list[Sentence]:
    """The words of the functions in the largest packages of the library, repeats left out."""
    packages: dict[str, list[Path]] = {}
    for file in source_files():
        if len(file.parts) > 1:
            packages.setdefault(file.parts[0], []).append(file)
    sizes = {name: _definitions(files) for name, files in packages.items() if len(files) >= FEWEST_FILES}
    largest = sorted((name for name, size in sizes.items() if size >= FEWEST_FUNCTIONS), key=lambda name: -sizes[name])
    if len(largest) < 2:
        raise NoSourcesError(f"The sources in {library_folder()} are too few: this demo needs two packages of "
                             f"{FEWEST_FUNCTIONS} functions.")  # fmt: skip
    return without_repeats([
        Sentence(function.file, function.name, package, words)
        for package in largest[:classes]
        for function in functions_of(packages[package])
        if len(words := words_of(function)) >= SHORTEST
    ])  # fmt: skip


def _definitions(files: Sequence[Path]) -> int:
    """How many functions some files define, counted without parsing them."""
    return sum(len(_DEFINITION.findall(text_of(file))) for file in files)


class Vocabulary:
    """Words and their numbers: those that occur often enough, by how often; 0 stands for any other."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self._numbers = {word: number for number, word in enumerate(self.words)}

    @classmethod
    def of(cls, sentences: Sequence[Sequence[str]], at_least: int) -> Vocabulary:
        """The words that occur at least so often; equally frequent ones by the alphabet."""
        counts = Counter(word for words in sentences for word in words)
        frequent = sorted((-count, word) for word, count in counts.items() if count >= at_least)
        return cls([UNKNOWN, *(word for _, word in frequent)])

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Sequence[str]) -> wf.Tensor:
        """Words as their numbers: int64 [length]."""
        return wf.tensor([self._numbers.get(word, 0) for word in words], dtype=wf.int64)
