"""Patterns of `examples/`: their models and training steps, on functions of a few files of Python's library."""

from __future__ import annotations

import importlib.util
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.works import Unavailable
from benchmarks.works.patterns import RATE, Case, pattern

FOLDER = Path(__file__).resolve().parent.parent.parent / "examples"
FILES, BATCH, BATCHES = 8, 2, 64
LARGEST = 40  # nodes of a tree, words of a sentence


@cache
def _example(name: str) -> Any:
    """A file of examples/ as a module."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", FOLDER / f"{name}.py")
    if spec is None or spec.loader is None or not (FOLDER / f"{name}.py").exists():
        raise Unavailable(f"there is no examples/{name}.py.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def _functions(packages: bool = False) -> list[Any]:
    """The functions of a few files of the library: modules that stand alone, or parts of packages."""
    from wayfare.cli.demo.corpus import functions_of, source_files

    files = [file for file in source_files() if (len(file.parts) > 1) == packages]
    return list(functions_of(files[:FILES]))


def _only_here(m: Any) -> None:
    if m.__name__ != "wayfare":
        raise Unavailable("the examples are written for Wayfare.")
    m.manual_seed(0)


def _batches(examples: Sequence[Any]) -> Iterator[tuple[list[Any]]]:
    """Random batches, a list of examples each."""
    draw = random.Random(0)
    assert len(examples) > BATCH, f"only {len(examples)} examples"
    return cycle([(draw.sample(examples, BATCH),) for _ in range(BATCHES)])


def _step(m: Any, model: Any, loss_of: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    """The step that all examples make: losses of a batch by `map`, backward, clipped norm, update."""
    optimiser = m.optim.Adam(model.parameters(), lr=RATE)

    def step(examples: list[Any]) -> Any:
        loss = m.stack(m.map(loss_of, examples)).mean()
        optimiser.zero_grad()
        loss.backward()
        m.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        return loss

    return step


def _trees(m: Any) -> tuple[Any, list[Any]]:
    """The Tree-LSTM, and trees with a label each."""
    from wayfare.cli.demo.syntax import build_tree
    from wayfare.cli.demo.words import Vocabulary

    trees = [tree for function in _functions() if 5 <= (tree := build_tree(function.node)).size <= LARGEST]
    kinds = Vocabulary.of([[node.kind for node in tree] for tree in trees], at_least=3)
    example = _example("trees")
    encoded = [(example.encoded(tree, kinds), m.tensor(tree.size % 5)) for tree in trees]
    return example.TreeReader(len(kinds), 5), encoded


@pattern("examples", "trees.py, training step")
def example_trees(m: Any) -> Case:
    _only_here(m)
    model, trees = _trees(m)
    return Case(_step(m, model, lambda pair: m.nn.functional.cross_entropy(model(pair[0]), pair[1])), _batches(trees))


@pattern("examples", "trees.py, the model alone, one tree a call")
def example_tree(m: Any) -> Case:
    _only_here(m)
    model, trees = _trees(m)
    return Case(model, cycle([(tree,) for tree, _ in trees]))


def _tagger(m: Any) -> tuple[Any, list[Any], Callable[[Any], Any]]:
    """The tagger, functions as names with tags, and the loss of one."""
    example = _example("sequences")
    pairs = [found for function in _functions() if 5 <= len(found := example.tagged_names(function)) <= LARGEST]
    counts = Counter(name for names in pairs for name, _ in names)
    frequent = [name for name, number in counts.most_common() if number >= 8]
    model = example.Tagger({name: m.tensor(number) for number, name in enumerate(frequent)})

    def loss_of(names: list[Any]) -> Any:
        tags = m.tensor([example.TAGS.index(tag) for _, tag in names])
        return m.nn.functional.cross_entropy(model([name for name, _ in names]), tags)

    return model, pairs, loss_of


@pattern("examples", "sequences.py, training step")
def example_sequences(m: Any) -> Case:
    _only_here(m)
    model, pairs, loss_of = _tagger(m)
    return Case(_step(m, model, loss_of), _batches(pairs))


@pattern("examples", "sequences.py, the model alone, one a call")
def example_sequence(m: Any) -> Case:
    _only_here(m)
    model, pairs, _ = _tagger(m)
    return Case(model, cycle([([name for name, _ in names],) for names in pairs]))


@pattern("examples", "graphs.py, training step")
def example_graphs(m: Any) -> Case:
    from wayfare.cli.demo.words import Vocabulary

    _only_here(m)
    example, draw = _example("graphs"), random.Random(0)
    graphs = [graph for function in _functions() if (graph := example.graph_of(function, draw))]
    model = example.Messenger(Vocabulary.of([graph.kinds for graph in graphs], at_least=3))
    loss_of = lambda graph: m.nn.functional.cross_entropy(model(graph), m.tensor(graph.answer))
    return Case(_step(m, model, loss_of), _batches(graphs))


@pattern("examples", "adaptive.py, training step")
def example_adaptive(m: Any) -> Case:
    _only_here(m)
    model, sentences = _skimmer(m)

    def loss_of(pair: Any) -> Any:
        scores, read, left = model(pair[0])
        return m.nn.functional.cross_entropy(scores, pair[1]) + 0.03 * (read + left.sum())

    return Case(_step(m, model, loss_of), _batches(sentences))


@pattern("examples", "adaptive.py, the model alone, one a call")
def example_reader(m: Any) -> Case:
    _only_here(m)
    model, sentences = _skimmer(m)
    return Case(model, cycle([(words,) for words, _ in sentences]))


def _skimmer(m: Any) -> tuple[Any, list[Any]]:
    """The reader that stops when it is sure, and sentences with a label each."""
    from wayfare.cli.demo.words import Vocabulary, words_of

    found = [words for function in _functions(packages=True) if 5 <= len(words := words_of(function)) <= LARGEST]
    vocabulary = Vocabulary.of(found, at_least=3)
    model = _example("adaptive").Skimmer(len(vocabulary), 5)
    return model, [(vocabulary.encode(words), m.tensor(len(words) % 5)) for words in found]


def _speller() -> tuple[Any, Any, list[str]]:
    example = _example("beam_search")
    letters = set(example.LETTERS)
    names = sorted({function.name for function in _functions()})
    return example, example.Speller(), [name for name in names if set(name) <= letters and 3 < len(name) < 20]


@pattern("examples", "beam_search.py, training step")
def example_spelling(m: Any) -> Case:
    _only_here(m)
    _, model, names = _speller()

    def loss_of(name: str) -> Any:
        state, scores = model.start(), []
        for letter in "$" + name:
            ahead, state = model(letter, state)
            scores.append(ahead)
        wanted = m.stack([model.numbers[letter] for letter in name + "$"])
        return m.nn.functional.cross_entropy(m.stack(scores), wanted, reduction="sum")

    return Case(_step(m, model, loss_of), _batches(names))


@pattern("examples", "beam_search.py, one search a call")
def example_search(m: Any) -> Case:
    _only_here(m)
    example, model, _ = _speller()

    def search(beginning: str) -> Any:
        with m.no_grad():
            return example.complete(model, beginning, 2)

    return Case(search, cycle([(beginning,) for beginning in example.BEGINNINGS]))
