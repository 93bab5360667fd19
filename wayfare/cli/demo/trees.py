"""A recursive network over syntax trees: what does a function's name begin with, by the shape of its body?

The network is a Tree-LSTM that is called once for each node, children first. It is plain Python recursion, written for
one tree; `wf.map` runs it over many and does equal work of different trees and branches together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import wayfare as wf
from wayfare import nn
from wayfare.cli.demo.corpus import library_folder, split_by_file
from wayfare.cli.demo.page import Page, described, described_batching
from wayfare.cli.demo.results import Outcome, Results
from wayfare.cli.demo.shipping import ship
from wayfare.cli.demo.syntax import LARGEST, SMALLEST, NamedTree, Tree, first_word, read_trees
from wayfare.cli.demo.words import Vocabulary
from wayfare.core.format import cut
from wayfare.nn.functional import cross_entropy
from wayfare.see.report.trace import traced

EPOCHS = 5
RARE = 3  # kinds of nodes that occur less often are unknown
EMBEDDING, HIDDEN = 32, 32
BATCH = 16
LEARNING_RATE = 0.01
SHOWN = 14  # nodes of the tree that is looked at, at most

Pair = tuple[Tree, int]


@dataclass(frozen=True)
class Corpus:
    """Trees to train on and held out; kinds of nodes and classes by number."""

    train: list[NamedTree]
    held_out: list[NamedTree]
    kinds: Vocabulary
    classes: list[str]

    def labelled(self, trees: Sequence[NamedTree]) -> list[Pair]:
        """Each tree with the number of its class."""
        return [(named.tree, self.classes.index(named.label)) for named in trees]


def prepare(trees: Sequence[NamedTree], seed: int) -> Corpus:
    """Part the trees by file; the kinds of nodes are those of the training files."""
    train, held_out = split_by_file(trees, seed)
    kinds = Vocabulary.of([[node.kind for node in named.tree] for named in train], at_least=RARE)
    return Corpus(train, held_out, kinds, sorted({named.label for named in train}))


class Climber(nn.Module):
    """Reads a tree from the leaves to the root; the root's state tells the class."""

    def __init__(self, kinds: Vocabulary, classes: int) -> None:
        super().__init__()
        self.kinds = kinds
        self.embedding = nn.Embedding(len(kinds), EMBEDDING)
        self.cell = nn.ChildSumTreeLSTMCell(EMBEDDING, HIDDEN)
        self.dropout = nn.Dropout(0.3)
        self.output = nn.Linear(HIDDEN, classes)

    def forward(self, tree: Tree) -> wf.Tensor:
        """One tree to its scores [classes]."""
        embedded = self.embedding(self.kinds.encode([node.kind for node in tree]))
        h, _ = self.climb(tree, iter(embedded.unbind()))
        scores: wf.Tensor = self.output(self.dropout(h))
        return scores

    def climb(self, node: Tree, embedded: Iterator[wf.Tensor]) -> tuple[wf.Tensor, wf.Tensor]:
        """The state (h, c) of a node: that of its children first, then its own."""
        children = [self.climb(child, embedded) for child in node.children]
        state: tuple[wf.Tensor, wf.Tensor] = self.cell(next(embedded), children)
        return state


class LevelClimber(nn.Module):
    """The same network for a model file, which knows no recursion: trees come as arrays, level by level."""

    def __init__(self, climber: Climber) -> None:
        super().__init__()
        self.climber = climber

    def arrays(self, trees: Sequence[Tree], places: int) -> wf.onnx.Levels:
        """Trees as arrays, with `places` places for the children of a node, beside the node's own kind."""
        numbers_ = {kind: number for number, kind in enumerate(self.climber.kinds.words)}

        def numbered(node: Tree) -> tuple[Any, ...]:
            return numbers_.get(node.kind, 0), *map(numbered, node.children)

        return wf.onnx.levels([numbered(tree) for tree in trees], arity=1 + places)

    def forward(self, values: wf.Tensor, children: wf.Tensor, roots: wf.Tensor) -> wf.Tensor:
        """Trees as arrays to their scores [trees, classes]."""
        _, h, _ = wf.onnx.over_levels((values, children, roots), self.kind, self.node)
        scores: wf.Tensor = self.climber.output(self.climber.dropout(h))
        return scores

    def kind(self, numbers_: wf.Tensor) -> tuple[wf.Tensor, ...]:
        """The rows of kinds; h and c are for nodes."""
        empty = wf.zeros(len(numbers_), HIDDEN)
        return self.climber.embedding(numbers_), empty, empty

    def node(self, kind: tuple[wf.Tensor, ...], *children: tuple[wf.Tensor, ...]) -> tuple[wf.Tensor, ...]:
        """The states of a level's nodes. A place without a child holds zeros, and adds nothing to a sum."""
        return wf.zeros_like(kind[0]), *self.climber.cell(kind[0], [(h, c) for _, h, c in children])


def step(model: nn.Module, batch: Sequence[Pair]) -> tuple[wf.Tensor, wf.Tensor, wf.Tensor]:
    """(loss, scores, classes) of a few trees, batched by itself."""
    scores = wf.stack(wf.map(model, [tree for tree, _ in batch], batch=True))
    classes = wf.tensor([label for _, label in batch])
    return cross_entropy(scores, classes), scores, classes


# -- the stages ------------------------------------------------------------------------------------------------------


def show_trees(page: Page, trees: Sequence[NamedTree], corpus: Corpus) -> None:
    """Stage 1: what there is."""
    page.heading("Stage 1 · Trees")
    page.say("Functions of Python's own library, as the syntax trees of their bodies. What does the name of such a "
             "function begin with? All names inside are hidden, but for self, cls and Python's builtins, unless an "
             "answer is part of them.")  # fmt: skip
    page.show(read_from=cut(str(library_folder()), 60))
    trained, kept = Counter(named.label for named in corpus.train), Counter(named.label for named in corpus.held_out)
    rows = []
    for name in corpus.classes:
        own = [named for named in trees if named.label == name]
        sizes, depths = [named.tree.size for named in own], [named.tree.depth for named in own]
        means = f"{sum(sizes) / len(sizes):.1f}", f"{sum(depths) / len(depths):.1f}"
        instance = next((named.name for named in own if first_word(named.name) != named.name.strip("_")), own[0].name)
        rows.append((f"{name}…", str(trained[name]), str(kept[name]), *means, cut(instance, 24)))
    page.table(("class", "train", "held out", "nodes", "depth", "for instance"), rows)
    page.say(f"Trees of {SMALLEST} to {LARGEST} nodes, repeats left out; held out are whole files.")


def show_one_tree(page: Page, corpus: Corpus, model: Climber) -> None:
    """Stages 2 and 3: how one tree goes through the network."""
    named = _example(corpus.train)
    page.heading("Stage 2 · Preparation")
    page.say(f"{named.name}() of {named.file.as_posix()} as the model sees it: a node has a kind and children, and "
             f"each kind a number. There are {len(corpus.kinds)} kinds, number 0 for rare ones.")  # fmt: skip
    kinds = [node.kind for node in named.tree]
    numbers_ = dict(zip(kinds, corpus.kinds.encode(kinds).tolist(), strict=True))
    page.listing("\n".join(f"  {line:<44} {numbers_[line.strip()]:>4}" for line in named.tree.drawn()))
    page.heading("Stage 3 · One cell for every node")
    page.say("The cell is called once a node: with the node's row of the embedding and the states of its children. "
             "The recursion is plain Python and knows of one tree only.")  # fmt: skip
    page.listing(str(model.summary(named.tree)))
    page.listing("")
    page.say("The graph follows the tree: another tree, another graph.")
    other = max(corpus.train, key=lambda each: (each.tree.size, each.tree.depth, each.name))
    page.entries({
        f"{each.name}()": f"{each.tree.size:>3} nodes, {each.tree.depth:>2} deep: a graph of "
        f"{len(wf.graph(model(each.tree)).nodes)} operations" for each in (named, other)
    })  # fmt: skip


def _example(trees: Sequence[NamedTree]) -> NamedTree:
    """A small tree that branches: the one of the most kinds among those that fit the page."""
    small = [named for named in trees if named.tree.size <= SHOWN] or list(trees)
    return max(small, key=lambda named: (len({node.kind for node in named.tree}), named.name))


def show_training(
    page: Page, results: Results, corpus: Corpus, model: Climber, epochs: int
) -> tuple[wf.train.History, wf.metrics.ClassificationReport]:
    """Stage 4: training, and a report on the held-out files."""
    page.heading("Stage 4 · Training and metrics")
    cells = sum(named.tree.size for named in corpus.train)
    page.say(f"An epoch calls the cell {cells:,} times, forward and backward; val. are the files held out. A step is "
             f"wf.map(model, {BATCH} trees): calls of all are recorded, and equal ones run together.")  # fmt: skip
    data = wf.data.DataLoader(corpus.labelled(corpus.train), batch_size=BATCH, shuffle=True, collate_fn=list)
    held_out = wf.data.DataLoader(corpus.labelled(corpus.held_out), batch_size=BATCH, collate_fn=list)
    optimizer = wf.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    history = results.train(
        page, model, data, optimizer,
        step=step, epochs=epochs, validation=held_out, clip=1.0,
        scheduler=wf.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs),
        metrics={"acc": wf.metrics.Accuracy(), "F1": wf.metrics.F1(average="macro")},
    )  # fmt: skip
    last_batch = described_batching(wf.batching.last())
    model.eval()
    with wf.no_grad():
        scores = wf.stack(wf.map(model, [named.tree for named in corpus.held_out], batch=True))
    page.show(last_batch=last_batch, all_held_out=described_batching(wf.batching.last()))
    page.say("On the files held out, class by class, and beside always giving the commonest answer:")
    classes = wf.tensor([label for _, label in corpus.labelled(corpus.held_out)])
    report = wf.metrics.classification_report(scores, classes, names=corpus.classes)
    page.listing(str(report))
    return history, report


def show_prediction(page: Page, corpus: Corpus, model: Climber) -> None:
    """Stage 5: one held-out tree, call by call."""
    named = _example(corpus.held_out)
    page.heading("Stage 5 · A prediction, layer by layer")
    page.say(f"A function of {named.file.as_posix()}, held out. Every call of a layer, seen through forward hooks; "
             "the cell goes from the leaves to the root.")  # fmt: skip
    scores, calls = traced(model, named.tree)
    nodes = iter(named.tree)
    rows = []
    for call in calls:
        if call.kind != "Dropout":
            node = next(nodes) if call.layer == "cell" else None
            below = f"{node.kind}, {len(node.children)} below" if node else call.kind
            rows.append((call.layer, below, described(call.output, 3)))
    page.table(("layer", "node", "output"), rows)
    page.say(f"What its name begins with (it is {named.name}):")
    page.chances(dict(zip(corpus.classes, scores.softmax(0).tolist(), strict=True)), named.label)


def write_report(
    results: Results, corpus: Corpus, model: Climber, history: wf.train.History,
    metrics: wf.metrics.ClassificationReport,
) -> None:  # fmt: skip
    """The same as a page."""
    named, other = _example(corpus.train), _example(corpus.held_out)
    batch = corpus.labelled(corpus.train)[:BATCH]
    kinds = [node.kind for node in named.tree]
    results.report(
        model, title="What does a function's name begin with?", history=history, batch=batch, step=step,
        stages=[
            ("functions", "A function of Python's own library; what does its name begin with?",
             f"{named.name}() in {named.file.as_posix()}", "a function"),
            ("tree", "The syntax tree of its body; names are hidden.", kinds, f"{named.tree.size} nodes"),
            ("numbers", f"Each node's kind is its number among the {len(corpus.kinds)} that are known; 0 is any "
             "other.", corpus.kinds.encode(kinds)),
            ("batch", f"{BATCH} trees and their classes, as a list. wf.map runs the model, which is written for one "
             "tree, over them.", [tree.kind for tree, _ in batch], f"{len(batch)} trees of "
             f"{min(tree.size for tree, _ in batch)} to {max(tree.size for tree, _ in batch)} nodes"),
        ],
        metrics=metrics, names=[f"{name}…" for name in corpus.classes], example=other.tree, truth=f"{other.label}…",
    )  # fmt: skip


def show_shipping(page: Page, results: Results, corpus: Corpus, model: Climber) -> None:
    """The model as a file, for any number of trees of any shape."""
    places = max(len(node.children) for named in (*corpus.train, *corpus.held_out) for node in named.tree)
    levels = LevelClimber(model).eval()
    trees = [named.tree for named in corpus.held_out]
    axes = {"values": {0: "kinds"}, "children": {0: "levels", 1: "width"}, "roots": {0: "trees"}}
    one = _example(corpus.held_out).tree
    ship(
        page, results, levels, tuple(levels.arrays([one], places)), axes,
        about=f"The recursion is a Loop over levels in it: wf.onnx.levels makes arrays of trees, with places for "
        f"{places} children.",
        one=f"{one.size} nodes", held_out=f"{len(trees)} trees, in one call", calls=[levels.arrays(trees, places)],
        scores=lambda: wf.stack(wf.map(model, trees, batch=True)),
    )  # fmt: skip


def run(page: Page, results: Results, epochs: int = EPOCHS, seed: int = 0) -> Outcome:
    """Run the demo on a page."""
    wf.manual_seed(seed)
    page.title("Wayfare demo, trees: what does a function's name begin with?")
    trees = read_trees()
    corpus = prepare(trees, seed)
    model = Climber(corpus.kinds, len(corpus.classes))
    show_trees(page, trees, corpus)
    show_one_tree(page, corpus, model)
    history, metrics = show_training(page, results, corpus, model, epochs)
    show_prediction(page, corpus, model)
    write_report(results, corpus, model, history, metrics)
    results.keep("kinds.json", "the kinds of nodes and classes by number",
                 {"kinds": corpus.kinds.words, "classes": corpus.classes})  # fmt: skip
    show_shipping(page, results, corpus, model)
    results.finish(page)
    return Outcome(metrics.accuracy, metrics.baseline)
