"""Sequences of different lengths end to end, without padding: which package do these words come from?

Six stages: raw sequences, preparation, embedding, a dynamic RNN over true lengths, metrics per epoch, and the
prediction for a sequence longer than any that was trained on. The network is written for one sequence, with a Python
loop over its words; `wf.map` runs it over many.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import wayfare as wf
from wayfare import nn
from wayfare.cli.demo.corpus import library_folder, split_by_file
from wayfare.cli.demo.page import Page, described, described_batching, numbers
from wayfare.cli.demo.results import Outcome, Results
from wayfare.cli.demo.shipping import ship
from wayfare.cli.demo.words import Sentence, Vocabulary, read_sentences
from wayfare.core.format import cut
from wayfare.nn.functional import cross_entropy
from wayfare.see.report.trace import traced

EPOCHS = 8
LONGEST = 60  # words; longer functions wait for the last stage
RARE = 3  # words of fewer occurrences are unknown
EMBEDDING, HIDDEN = 48, 96
BATCH = 32
LEARNING_RATE = 0.003
HIDDEN_WORDS = 0.5  # the share of words that training makes unknown, so that it does not cling to single ones
SHOWN = 5  # sequences of the batch that is looked at

Pair = tuple[wf.Tensor, int]


@dataclass(frozen=True)
class Corpus:
    """Sentences to train on, held out, and too long for both; words and classes by number."""

    train: list[Sentence]
    held_out: list[Sentence]
    long: list[Sentence]
    vocabulary: Vocabulary
    classes: list[str]

    def encoded(self, sentences: Sequence[Sentence]) -> list[Pair]:
        """Each sentence as the numbers of its words, int64 [length], and the number of its class."""
        return [(self.vocabulary.encode(s.words), self.classes.index(s.label)) for s in sentences]


def prepare(sentences: Sequence[Sentence], seed: int) -> Corpus:
    """Part the sentences by file; the vocabulary is that of the training files alone."""
    train, held_out = split_by_file(sentences, seed)
    short = [s for s in train if len(s.words) <= LONGEST]
    return Corpus(
        short,
        [s for s in held_out if len(s.words) <= LONGEST],
        [s for s in held_out if len(s.words) > LONGEST],
        Vocabulary.of([s.words for s in short], at_least=RARE),
        sorted({s.label for s in short}),
    )


class Reader(nn.Module):
    """Reads words with an LSTM cell, and tells the package by the largest value of each feature on the way."""

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, EMBEDDING)
        self.cell = nn.LSTMCell(EMBEDDING, HIDDEN)
        self.dropout = nn.Dropout(0.6)
        self.output = nn.Linear(HIDDEN, classes)
        # Words seen a few times only should not shout: they begin near zero.
        nn.init.normal_(self.embedding.weight, std=0.05)

    def forward(self, words: wf.Tensor) -> wf.Tensor:
        """The numbers of one sequence's words [length] to its scores [classes]."""
        state, outputs = None, []
        for row in self.look_up(words):
            state = self.cell(row, state)
            outputs.append(state[0])
        scores: wf.Tensor = self.output(self.dropout(wf.stack(outputs).amax(0)))
        return scores

    def look_up(self, words: wf.Tensor) -> wf.Tensor:
        """Numbers of words [words] to their rows [words, embedding]."""
        if self.training:
            words = words * (wf.rand(len(words)) >= HIDDEN_WORDS)
        rows: wf.Tensor = self.dropout(self.embedding(words))
        return rows


def step(model: nn.Module, batch: tuple[list[wf.Tensor], wf.Tensor]) -> tuple[wf.Tensor, wf.Tensor, wf.Tensor]:
    """(loss, scores, classes) of a few sequences, batched by itself."""
    sequences, classes = batch
    scores = wf.stack(wf.map(model, sequences, batch=True))
    return cross_entropy(scores, classes), scores, classes


# -- the stages ------------------------------------------------------------------------------------------------------


def show_raw(page: Page, sentences: Sequence[Sentence], corpus: Corpus) -> None:
    """Stage 1: what there is."""
    page.heading("Stage 1 · Raw sequences")
    page.say("The identifiers of functions in the largest packages of Python's own library, in the order of the "
             "source and split into words; a package's own name is taken out. Which package is it?")  # fmt: skip
    page.show(read_from=cut(str(library_folder()), 60))
    trained, kept = Counter(s.label for s in corpus.train), Counter(s.label for s in corpus.held_out)
    files = Counter(label for label, _ in {(s.label, s.file) for s in sentences})
    rows = [(name, str(files[name]), str(trained[name]), str(kept[name])) for name in corpus.classes]
    page.table(("package", "files", "train", "held out"), rows)
    page.say("Held out are whole files, and nothing is in both. Three of the sequences:")
    for sentence in _spread(corpus.train, 3):
        page.listing(f"  {sentence.label}: {sentence.name}(), {len(sentence.words)} words")
        page.listing("    " + cut(" ".join(sentence.words), 74))
    page.say("How many words they have:")
    lengths = [len(sentence.words) for sentence in sentences]
    bounds = [4, 8, 16, 32, LONGEST + 1, max(lengths) + 1]
    page.bars({
        f"{low} to {high - 1}": sum(low <= length < high for length in lengths)
        for low, high in itertools.pairwise(bounds) if low < high
    })  # fmt: skip
    page.say(f"Those of more than {LONGEST} words are not trained on: stage 6 reads one of them.")


def _spread(sentences: Sequence[Sentence], count: int) -> list[Sentence]:
    """A few of different classes and lengths."""
    by_length = sorted(sentences, key=lambda s: (len(s.words), s.words))
    chosen: list[Sentence] = []
    for part in range(count):
        at = (2 * part + 1) * len(by_length) // (2 * count)
        seen = {s.label for s in chosen}
        chosen.append(next((s for s in by_length[at:] if s.label not in seen), by_length[at]))
    return chosen


def padding_of(lengths: Sequence[int], batches: Sequence[Sequence[int]]) -> tuple[int, int]:
    """(cells, how many of them are padding) when each batch of indices is padded to its longest."""
    cells = sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)
    return cells, cells - sum(lengths[i] for batch in batches for i in batch)


def show_preparation(page: Page, corpus: Corpus, sampler: wf.data.BucketSampler, pairs: Sequence[Pair]) -> None:
    """Stage 2: words as numbers; what padding would cost."""
    page.heading("Stage 2 · Preparation")
    known = sum(int((numbers_ > 0).sum().item()) for numbers_, _ in corpus.encoded(corpus.held_out))
    total = sum(len(s.words) for s in corpus.held_out)
    page.show(
        vocabulary=f"{len(corpus.vocabulary):,} words that occur {RARE} times or more",
        held_out=f"{1 - known / total:.1%} of the words are unknown there: number 0",
    )
    shown = [(corpus.vocabulary.encode(s.words), 0) for s in _spread(corpus.train, SHOWN)]
    padded = wf.data.pad_collate([numbers_ for numbers_, _ in shown])
    cells, filled = padded.data.numel(), int(padded.lengths.sum().item())
    page.say(f"{SHOWN} sequences, padded to one tensor (· is padding) …")
    for row, length in zip(padded.data.tolist(), padded.lengths.tolist(), strict=True):
        cells_of_row = [f"{number:>5}" if i < length else "    ·" for i, number in enumerate(row[:14])]
        page.listing(f"  {''.join(cells_of_row)}{'  …' if len(row) > 14 else ''}")
    page.show(
        padded=f"{list(padded.data.shape)}, {cells} cells, {cells - filled} of them padding ({1 - filled / cells:.0%})",
        unpadded=f"tensors of {', '.join(map(str, padded.lengths.tolist()))} numbers: {filled} cells, no padding",
    )
    page.say("… and all training sequences. What an epoch would compute for nothing:")
    lengths = [len(numbers_) for numbers_, _ in pairs]
    order = wf.randperm(len(pairs)).tolist()
    ways = {
        "all padded to the longest": [order],
        f"random batches of {BATCH}, padded": [order[at : at + BATCH] for at in range(0, len(order), BATCH)],
        "batches of similar length, padded": list(sampler),
    }
    rows = []
    for way, batches in ways.items():
        cells, waste = padding_of(lengths, batches)
        rows.append((way, f"{cells:,}", f"{waste:,}", f"{waste / cells:.1%}"))
    rows.append(("lists, not padded (this demo)", f"{sum(lengths):,}", "0", "0.0%"))
    page.table(("batches", "cells", "padding", "waste"), rows)


def show_embedding(page: Page, corpus: Corpus, model: Reader, batch: Sequence[wf.Tensor]) -> None:
    """Stage 3: numbers of words to rows of a table that is learnt."""
    page.heading("Stage 3 · Embedding")
    page.say("Each word is a row of a table that is learnt with the rest; now it is random.")
    with wf.no_grad():
        rows = model.embedding(wf.cat(list(batch)))
        page.show(
            table=described(model.embedding.weight, 4),
            words_in=f"{len(batch)} sequences, {len(rows)} words, one behind the other",
            rows_out=described(rows, 4),
        )
        words = corpus.vocabulary.words[1:4]
        page.entries({
            f"{word!r}": f"row {number}: {numbers(model.embedding.weight[number], 4)}"
            for number, word in enumerate(words, start=1)
        })  # fmt: skip


def show_rnn(page: Page, model: Reader, batch: Sequence[wf.Tensor]) -> None:
    """Stage 4: a recurrent network over each sequence as long as it is."""
    page.heading("Stage 4 · A dynamic RNN over true lengths")
    page.say("An LSTM cell reads a sequence in a Python loop of as many steps as it has words. The loop knows one "
             "sequence only: wf.map(model, sequences) runs it for each, notes the calls, and runs equal ones of "
             "different sequences together.")  # fmt: skip
    model.eval()
    with wf.no_grad():
        together = wf.stack(wf.map(model, batch, batch=True))
        batched = described_batching(wf.batching.last())
        alone = wf.stack([model(sequence) for sequence in batch])
    model.train()
    difference = float((together - alone).abs().max().item())
    page.show(
        into=", ".join(str(list(sequence.shape)) for sequence in batch),
        out_of=described(together, 4),
        batched=batched,
        one_by_one=f"the same to {difference:.0e}" if difference else "the very same",
    )
    page.listing("")
    page.say(f"The model on the longest of them, of {len(batch[-1])} words:")
    page.listing(str(model.summary(batch[-1])))


def show_training(
    page: Page, results: Results, corpus: Corpus, model: Reader, data: wf.data.DataLoader, epochs: int
) -> wf.train.History:
    """Stage 5: training, with metrics."""
    page.heading("Stage 5 · Training and metrics")
    page.say("Scores of the training batches, and (val.) of the files held out.")
    held_out = corpus.encoded(corpus.held_out)
    validation = wf.data.DataLoader(
        held_out, batch_sampler=wf.data.BucketSampler([len(n) for n, _ in held_out], BATCH, shuffle=False),
        collate_fn=wf.data.list_collate,
    )  # fmt: skip
    optimizer = wf.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.1)
    history = results.train(
        page, model, data, optimizer,
        step=step, epochs=epochs, validation=validation, clip=1.0,
        scheduler=wf.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs),
        metrics={"acc": wf.metrics.Accuracy(), "F1": wf.metrics.F1(average="macro")},
    )  # fmt: skip
    accuracy = float(history[-1]["validation acc"])
    with wf.no_grad():
        step(model, next(iter(validation)))
    page.show(
        a_batch=described_batching(wf.batching.last()),
        held_out=f"{accuracy:.1%} of the functions in files it never saw",
        commonest=f"{majority(corpus):.1%}, always answering the commonest package",
        counting=f"{counting(corpus):.1%}, counting words without their order (naive Bayes)",
    )
    return history


def majority(corpus: Corpus) -> float:
    """The accuracy on the held-out files of always answering the class that is commonest in training."""
    (commonest, _), = Counter(s.label for s in corpus.train).most_common(1)
    return sum(s.label == commonest for s in corpus.held_out) / len(corpus.held_out)


def counting(corpus: Corpus) -> float:
    """The accuracy of naive Bayes on the held-out files: each word votes by how often each class uses it."""
    known = set(corpus.vocabulary.words)
    counts = {name: Counter(w for s in corpus.train if s.label == name for w in s.words) for name in corpus.classes}
    totals = {name: counts[name].total() + len(known) for name in corpus.classes}
    prior = Counter(s.label for s in corpus.train)

    def score(sentence: Sentence, name: str) -> float:
        votes = (math.log((counts[name][word] + 1) / totals[name]) for word in sentence.words if word in known)
        return math.log(prior[name]) + sum(votes)

    answers = (max(corpus.classes, key=lambda name: score(s, name)) for s in corpus.held_out)
    return sum(a == s.label for a, s in zip(answers, corpus.held_out, strict=True)) / len(corpus.held_out)


def long_sentence(corpus: Corpus) -> Sentence:
    """A sentence about twice as long as any that was trained on; the longest held out where there is none."""
    if not corpus.long:
        return max(corpus.held_out, key=lambda s: (len(s.words), s.file, s.name))
    return min(corpus.long, key=lambda s: (abs(len(s.words) - 2 * LONGEST), s.file, s.name))


def show_prediction(page: Page, corpus: Corpus, model: Reader) -> None:
    """Stage 6: a sequence longer than all that were trained on, layer by layer."""
    page.heading("Stage 6 · A new sequence of a length never seen")
    longest = max(len(s.words) for s in corpus.train)
    if not corpus.long:
        page.say(f"No held-out function has more than {LONGEST} words here, so there is none to read.")
        return
    sentence = long_sentence(corpus)
    page.say(f"{sentence.name}() in {sentence.file.as_posix()}, held out. It has {len(sentence.words)} words; the "
             f"longest in training had {longest}.")  # fmt: skip
    page.listing("  " + cut(" ".join(sentence.words), 76))
    page.say("Layer by layer, what every layer gave last (seen through forward hooks):")
    scores, calls = traced(model, corpus.vocabulary.encode(sentence.words))
    # Of the cells, which were called once a word, the last call.
    outputs = {f"{call.layer} {call.kind}": call.output for call in calls if call.kind != "Dropout"}
    page.entries({
        **{name: described(output, 4) for name, output in outputs.items()},
        "probabilities": described(scores.softmax(0), 4),
    })  # fmt: skip
    page.listing("")
    page.chances(dict(zip(corpus.classes, scores.softmax(0).tolist(), strict=True)), sentence.label)


def compared(corpus: Corpus, model: Reader) -> wf.profile.Comparison:
    """One sequence forward and backward as plain Python and as plans, for two lengths: each has a plan of its own."""

    def one_sequence(words: wf.Tensor, label: wf.Tensor) -> wf.Tensor:
        model.zero_grad()
        loss = cross_entropy(model(words), label)
        loss.backward()
        return loss

    sentences = zip(_spread(corpus.train, 2), (6, 12), strict=True)
    pairs = [(corpus.vocabulary.encode(s.words[:length]), wf.tensor(corpus.classes.index(s.label)))
             for s, length in sentences]  # fmt: skip
    return wf.profile.compare(one_sequence, pairs, rounds=2)


def write_report(
    results: Results, corpus: Corpus, model: Reader, data: wf.data.DataLoader, history: wf.train.History
) -> None:
    """The same as a page."""
    model.eval()
    with wf.no_grad():
        said = wf.stack(wf.map(model, [numbers_ for numbers_, _ in corpus.encoded(corpus.held_out)], batch=True))
    batch = next(iter(data))
    first, longest = _spread(corpus.train, 1)[0], long_sentence(corpus)
    results.report(
        model, title="Which package do a function's words come from?", history=history, batch=batch, step=step,
        stages=[
            ("functions", "The identifiers of a function of Python's own library, in the order of its source.",
             f"{first.name}() in {first.file.as_posix()}", "a function"),
            ("words", "Split into words; the package's own name is taken out.", list(first.words)),
            ("numbers", f"Each word is its number among the {len(corpus.vocabulary):,} that occur {RARE} times or "
             "more; 0 stands for any other.", corpus.vocabulary.encode(first.words)),
            ("batch", f"{BATCH} sequences of similar length, as a list: nothing is padded. wf.map runs the model, "
             "which is written for one sequence, over them.", batch[0]),
        ],
        predictions=(said, wf.tensor([label for _, label in corpus.encoded(corpus.held_out)])), names=corpus.classes,
        example=corpus.vocabulary.encode(longest.words), truth=longest.label, comparison=compared(corpus, model),
    )  # fmt: skip


def show_shipping(page: Page, results: Results, corpus: Corpus, model: Reader) -> None:
    """The model as a file, for a sequence of any length."""
    calls = [words for words, _ in corpus.encoded([*corpus.held_out, *corpus.long])]
    model.eval()
    example = corpus.vocabulary.encode(_spread(corpus.held_out, 1)[0].words)
    ship(
        page, results, model, (example,), {"words": {0: "length"}},
        about="The Python loop over the words is a Loop in it, of as many steps as there are words.",
        one=f"{len(example)} words", held_out=f"{len(calls)} sequences of up to {max(map(len, calls))} words",
        calls=[(words,) for words in calls], scores=lambda: wf.stack(wf.map(model, calls, batch=True)),
    )  # fmt: skip


def run(page: Page, results: Results, epochs: int = EPOCHS, seed: int = 0) -> Outcome:
    """Run the demo on a page."""
    wf.manual_seed(seed)
    page.title("Wayfare demo, sequences: which package do a function's words come from?")
    sentences = read_sentences()
    corpus = prepare(sentences, seed)
    pairs = corpus.encoded(corpus.train)
    sampler = wf.data.BucketSampler([len(numbers_) for numbers_, _ in pairs], BATCH)
    data = wf.data.DataLoader(pairs, batch_sampler=sampler, collate_fn=wf.data.list_collate)
    model = Reader(len(corpus.vocabulary), len(corpus.classes))
    batch = [corpus.vocabulary.encode(s.words) for s in _spread(corpus.train, SHOWN)]

    show_raw(page, sentences, corpus)
    show_preparation(page, corpus, sampler, pairs)
    show_embedding(page, corpus, model, batch)
    show_rnn(page, model, batch)
    history = show_training(page, results, corpus, model, data, epochs)
    show_prediction(page, corpus, model)
    write_report(results, corpus, model, data, history)
    results.keep("words.json", "the words and classes by number",
                 {"words": corpus.vocabulary.words, "classes": corpus.classes})  # fmt: skip
    show_shipping(page, results, corpus, model)
    results.finish(page)
    return Outcome(float(history[-1]["validation acc"]), majority(corpus))
