"""Recurrent models written for one sequence: a classifier, a tagger that spells rare words, one that halts itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.works import CPU, Prepared, constant, dynet_steps
from benchmarks.works.examples import BATCHES, CLASSES, Corpus, balanced, read, sequences
from benchmarks.works.mapped import Values, assign, index, indices, look_up, prepared, vector, weights
from benchmarks.works.models import Shapes, linear

LETTER_SIZE = 32
INNER = 64  # of the tagger's last but one layer
HALT_BIAS = -1.5  # by which examples need two to two dozen turns
MOST_TURNS = 30


def lstm_shapes(name: str, size: int, hidden: int) -> Shapes:
    """The parameters of an LSTMCell."""
    return {
        f"{name}.weight_ih": (4 * hidden, size),
        f"{name}.weight_hh": (4 * hidden, hidden),
        f"{name}.bias_ih": (4 * hidden,),
        f"{name}.bias_hh": (4 * hidden,),
    }


def classifier(
    m: Any,
    mode: str,
    count: int = 64,
    size: int = 64,
    hidden: int = 128,
    longest: int = 60,
    device: str = CPU,
) -> Prepared:
    """The class of a sequence of 5 to 60 by the last state of an LSTM: a cell in a loop, or packed sequences."""
    shapes = lstm_shapes("cell", size, hidden) | linear("head", hidden, CLASSES)
    batches = sequences(count, size, longest=longest)
    if mode == "packed":
        return _packed(m, weights(shapes), batches, size, hidden, device)

    class Classifier(m.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.cell = m.nn.LSTMCell(size, hidden)
            self.head = m.nn.Linear(hidden, CLASSES)

        def forward(self, sequence: Any, label: Any) -> Any:
            state: Any = None
            for x in sequence:
                state = self.cell(x, state)
            return m.nn.functional.cross_entropy(self.head(state[0]), label)

    model = assign(m, Classifier(), weights(shapes), device)
    examples = [
        [([vector(m, x, device) for x in xs], index(m, label, device)) for xs, label in batch] for batch in batches
    ]
    return prepared(m, mode, model, model, examples)


def _packed(m: Any, values: Values, batches: list[Any], size: int, hidden: int, device: str) -> Prepared:
    """The same as a user batches it by hand; the sequences are packed beforehand."""

    class Classifier(m.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.lstm = m.nn.LSTM(size, hidden)
            self.head = m.nn.Linear(hidden, CLASSES)

        def forward(self, packed: Any, labels: Any) -> Any:
            _, (h, _) = self.lstm(packed)
            return m.nn.functional.cross_entropy(self.head(h[-1]), labels, reduction="none")

    renamed = {f"lstm.{name.removeprefix('cell.')}_l0" if "cell." in name else name: v for name, v in values.items()}
    model = assign(m, Classifier(), renamed, device)
    pack = m.nn.utils.rnn.pack_sequence
    examples = [
        [
            (
                pack([constant(m, xs, device) for xs, _ in batch], enforce_sorted=False),
                constant(m, np.array([label for _, label in batch]), device),
            )
        ]
        for batch in batches
    ]

    def compared(gradients: Values) -> Values:
        return {name.replace("lstm.", "cell.").removesuffix("_l0"): grad for name, grad in gradients.items()}

    whole = prepared(m, "loop", model, model, examples, compared)
    # Here one "example" is the whole batch, and its losses come in one array.
    return Prepared(whole.step, lambda: [array.reshape(-1) if n == 0 else array for n, array in
                                         enumerate(whole.results())], kept=model)  # fmt: skip


def tagger(m: Any, mode: str, data: str, count: int = 64, hidden: int = 128, size: int = 128) -> Prepared:
    """A class for each word, by two LSTMs over the sentence; a rare word's vector is made by one over its letters."""
    corpus = read(data)
    shapes = tagger_shapes(corpus, size, hidden)
    batches = balanced(corpus.trees, lambda tree: len(tree.leaves), count)
    sentences = [[[(leaf.word, leaf.label) for leaf in tree.leaves] for tree in batch] for batch in batches]
    if m.__name__ == "dynet":
        return dynet_steps.tagger(m, weights(shapes), corpus, sentences)

    class Tagger(m.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = m.nn.Embedding(len(corpus.letters), size, sparse=True)
            self.embed_letters = m.nn.Embedding(corpus.alphabet, LETTER_SIZE)
            self.speller = m.nn.LSTMCell(LETTER_SIZE, size)
            self.forwards = m.nn.LSTMCell(size, hidden)
            self.backwards = m.nn.LSTMCell(size, hidden)
            self.inner = m.nn.Linear(2 * hidden, INNER)
            self.head = m.nn.Linear(INNER, CLASSES)

        def vector_of(self, word: Any, letters: Any) -> Any:
            if letters is None:
                return self.embed(word)
            state: Any = None
            for letter in look_up(m, self.embed_letters, letters):
                state = self.speller(letter, state)
            return state[0]

        def forward(self, words: list[Any], labels: list[Any]) -> Any:
            vectors = [self.vector_of(*word) for word in words]
            ahead = states(self.forwards, vectors)
            back = states(self.backwards, vectors[::-1])[::-1]
            losses = []
            for one, other, label in zip(ahead, back, labels, strict=True):
                scores = self.head(self.inner(m.cat([one, other], -1)).tanh())
                losses.append(m.nn.functional.cross_entropy(scores, label))
            return m.stack(losses).sum()

    def states(cell: Any, vectors: list[Any]) -> list[Any]:
        state: Any = None
        found = []
        for x in vectors:
            state = cell(x, state)
            found.append(state[0])
        return found

    def prepared_word(word: int) -> tuple[Any, Any]:
        return index(m, word), indices(m, corpus.letters[word]) if corpus.rare[word] else None

    model = assign(m, Tagger(), weights(shapes))
    examples = [
        [([prepared_word(word) for word, _ in s], [index(m, label) for _, label in s]) for s in batch]
        for batch in sentences
    ]
    return prepared(m, mode, model, model, examples)


def tagger_shapes(corpus: Corpus, size: int, hidden: int) -> Shapes:
    """The parameters of the tagger."""
    return {
        "embed.weight": (len(corpus.letters), size),
        "embed_letters.weight": (corpus.alphabet, LETTER_SIZE),
        **lstm_shapes("speller", LETTER_SIZE, size),
        **lstm_shapes("forwards", size, hidden),
        **lstm_shapes("backwards", size, hidden),
        **linear("inner", 2 * hidden, INNER),
        **linear("head", INNER, CLASSES),
    }


def halting(m: Any, mode: str, count: int = 64, hidden: int = 128, device: str = CPU) -> Prepared:
    """Adaptive computation: an example turns until what it has given its own states adds up to one."""
    shapes: Shapes = {
        "cell.weight_ih": (3 * hidden, hidden),
        "cell.weight_hh": (3 * hidden, hidden),
        "cell.bias_ih": (3 * hidden,),
        "cell.bias_hh": (3 * hidden,),
        **linear("halt", hidden, 1),
        **linear("head", hidden, CLASSES),
    }

    class Halting(m.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.cell = m.nn.GRUCell(hidden, hidden)
            self.halt = m.nn.Linear(hidden, 1)
            self.head = m.nn.Linear(hidden, CLASSES)

        def forward(self, x: Any, label: Any) -> Any:
            h, mean, halting, turns = x, 0.0, 0.0, 0
            while halting < 1 and turns < MOST_TURNS:
                h = self.cell(x, h)
                share = self.halt(h).sigmoid()
                halting = halting + share
                mean = mean + share * h
                turns += 1
            return m.nn.functional.cross_entropy(self.head(mean), label)

    model = assign(m, Halting(), halting_weights(shapes), device)
    numbers = np.random.default_rng(0)
    examples = [
        [
            (
                vector(m, numbers.standard_normal(hidden, dtype=np.float32), device),
                index(m, int(numbers.integers(CLASSES)), device),
            )
            for _ in range(count)
        ]
        for _ in range(BATCHES)
    ]
    return prepared(m, mode, model, model, examples)


def halting_weights(shapes: Shapes) -> Values:
    """Weights by which examples need different numbers of turns."""
    values = weights(shapes)
    values["halt.bias"][:] = HALT_BIAS
    return values
