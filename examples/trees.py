"""Trees: a Tree-LSTM written for one tree, trained on many at once.

What does the name of a function begin with, by the syntax tree of its body? The functions are those of Python's own
library. The model is a plain recursion over one tree; `wf.map` runs it over a batch, and equal work of different trees
and branches is done together.

    python examples/trees.py
    python examples/trees.py --loop         # the same, one tree after the other
    python examples/trees.py --device cuda  # on a GPU
"""

import argparse
import random
import time
from typing import TypeAlias

import wayfare as wf
from wayfare import nn
from wayfare.cli.demo.corpus import split_by_file
from wayfare.cli.demo.syntax import Tree, read_trees
from wayfare.cli.demo.words import Vocabulary
from wayfare.nn.functional import cross_entropy

# The number of a node's kind, and its children.
Encoded: TypeAlias = "tuple[wf.Tensor, list[Encoded]]"


class TreeReader(nn.Module):
    """The state of a node comes from its kind and from the states of its children."""

    def __init__(self, kinds: int, classes: int, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(kinds, width)
        self.cell = nn.ChildSumTreeLSTMCell(width, width)
        self.output = nn.Linear(width, classes)

    def climb(self, node: Encoded) -> tuple[wf.Tensor, wf.Tensor]:
        kind, children = node
        return self.cell(self.embedding(kind), [self.climb(child) for child in children])

    def forward(self, tree: Encoded) -> wf.Tensor:
        h, _ = self.climb(tree)
        return self.output(h)


def encoded(tree: Tree, kinds: Vocabulary) -> Encoded:
    """A tree as (number of its kind, subtrees); the number is a tensor, made once and not at every step."""
    return kinds.encode([tree.kind])[0], [encoded(child, kinds) for child in tree.children]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A Tree-LSTM over Python's own syntax trees.")
    parser.add_argument("--steps", type=int, default=100, help="training steps (100)")
    parser.add_argument("--batch", type=int, default=64, help="trees in a step (64)")
    parser.add_argument("--loop", action="store_true", help="one tree after the other, without batching")
    parser.add_argument("--device", default="cpu", help="where it learns: cpu, cuda or cuda:1 (cpu)")
    options = parser.parse_args(arguments)
    try:
        wf.set_default_device(options.device)  # tensors are made there from now on
    except wf.errors.WayfareError as error:
        parser.error(str(error))
    batch = not options.loop

    wf.manual_seed(0)
    draw = random.Random(0)
    parts = split_by_file(read_trees(), seed=0)
    kinds = Vocabulary.of([[node.kind for node in named.tree] for named in parts[0]], at_least=3)
    classes = sorted({named.label for named in parts[0]})
    train, held_out = (
        [(encoded(named.tree, kinds), wf.tensor(classes.index(named.label))) for named in part]
        for part in parts
    )
    print(f"{len(train)} trees to learn from, {len(held_out)} held out; a name begins with {', '.join(classes)}")

    model = TreeReader(len(kinds), len(classes))
    optimizer = wf.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.1)

    def loss_of(tree: Encoded, label: wf.Tensor) -> wf.Tensor:
        return cross_entropy(model(tree), label)

    start = time.perf_counter()
    for step in range(1, options.steps + 1):
        trees, labels = zip(*draw.sample(train, options.batch), strict=True)
        loss = wf.stack(wf.map(loss_of, trees, labels, batch=batch)).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step == 1 or step % 25 == 0 or step == options.steps:
            print(f"step {step:>4}   loss {loss.item():.4f}")
    seconds = time.perf_counter() - start
    print(f"{options.steps} steps in {seconds:.1f} s, {1000 * seconds / options.steps:.0f} ms each\n")
    if batch:
        print("The last step, forward:")
        print(wf.batching.last(), "\n")

    some = draw.sample(held_out, min(len(held_out), 8 * options.batch))
    with wf.no_grad():
        answers = wf.map(lambda pair: model(pair[0]).argmax(), some, batch=batch)
    right = sum(int(answer == label) for answer, (_, label) in zip(answers, some, strict=True))
    commonest = max(sum(int(label == number) for _, label in some) for number in range(len(classes)))
    print(f"held out: {right / len(some):.1%} right; the commonest answer alone would be {commonest / len(some):.1%}")


if __name__ == "__main__":
    main()
